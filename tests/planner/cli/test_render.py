"""Plain text: aligned, within the width, and nothing of a stranger's text but its characters."""

from __future__ import annotations

from planner.cli.blocks import Block, Row, change_text, value_text
from planner.cli.render import plain


def test_columns_align_and_numbers_stand_to_the_right() -> None:
    block = Block((Row(("a", "1", "x")), Row(("bcd", "22", "yz"))), numbers=frozenset({1}))
    assert plain([block]) == "a     1  x\nbcd  22  yz\n"


def test_a_title_indents_what_stands_below_and_blocks_are_apart() -> None:
    blocks = [Block((Row(("a",)),)), Block((Row(("b", "c")),), title="t"), Block(())]
    assert plain(blocks) == "a\n\nt\n  b  c\n"


def test_a_long_last_column_is_wrapped_under_itself() -> None:
    lines = plain([Block((Row(("key", "word " * 50)),))]).splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 100
    assert all(line.startswith("     word") for line in lines[1:])


def test_a_word_is_never_cut() -> None:
    assert "x" * 300 in plain([Block((Row(("key", "x" * 300)),))])


def test_control_characters_are_shown_not_sent() -> None:
    assert plain([Block((Row(("a\x1b[2J", "b\nc")),))]) == r"'a\x1b[2J'  'b\nc'" + "\n"


def test_values_are_short() -> None:
    assert value_text(list(range(8, 257, 8))) == "[8..256/8]"
    assert value_text("FULL") == "FULL"
    assert value_text(None) == "null"
    assert value_text({"a": True}) == '{"a": true}'
    assert len(value_text("x" * 500)) == 60
    assert change_text(None, 1) == "1"
    assert change_text(2, None) == "2 -> null"
