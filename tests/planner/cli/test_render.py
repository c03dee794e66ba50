"""Plain text: aligned, within the width, and nothing of a stranger's text but its characters."""

from __future__ import annotations

import pytest

from planner.cli.blocks import Block, Row, change_text, decision_blocks, value_text
from planner.cli.render import plain
from planner.documents.plan import Decision


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


def test_long_lists_of_sizes_show_both_their_ends_and_no_size_in_part() -> None:
    primes = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71]
    assert value_text(primes) == "[2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, ..., 71]"
    assert value_text(primes, 20) == "[2, 3, 5, ..., 71]"
    assert value_text(primes, 4) == "[..., 71]"


def test_a_long_value_stands_above_its_reason_and_leaves_that_its_room() -> None:
    decisions = [
        Decision(path="compilation.mode", became="NONE", rule="r", because="short"),
        Decision(
            path="compilation.cudagraph_capture_sizes",
            became=[number * number for number in range(1, 30)],
            rule="r",
            because="many words " * 20,
        ),
    ]
    text = plain(decision_blocks(decisions))
    assert max(map(len, text.splitlines())) <= 100
    first, second, third, fourth = text.splitlines()[1:5]
    assert first.split() == ["compilation.mode", "NONE", "short"]
    assert first.index("short") == second.index("[") == fourth.index("many")
    assert f"{second} {third.strip()}".endswith(", ..., 841]")


@pytest.mark.parametrize("longest", ["FULL_AND_PIECEWISE", "a word " * 9])
def test_decisions_stay_within_the_width(longest: str) -> None:
    decision = Decision(
        path="resolved.target.cudagraph_mode_and_more", became=longest, rule="r", because="many words " * 20
    )
    assert max(map(len, plain(decision_blocks([decision])).splitlines())) <= 102
