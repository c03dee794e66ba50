"""An audit of every command's help: no option without a word, no name that a library made up."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from attrs import frozen

from planner.cli.main import main
from tests.planner.cli.conftest import Run

METAVAR = re.compile("[A-Z]+(=[A-Z]+)?")

MADE_UP = {
    "INTEGER",
    "FLOAT",
    "BOOLEAN",
    "PATH",
    "FILENAME",
    "UUID",
    "CONVERT",
    "FUNC",
    "CALLABLE",
    "<LAMBDA>",
}
"""What click calls the values of types and functions; it also says TEXT, which people do as well."""


@frozen
class Found:
    """One command, with the words that call it."""

    words: tuple[str, ...]
    command: click.Command

    def __str__(self) -> str:
        return " ".join(("planner", *self.words))

    @property
    def options(self) -> tuple[click.Option, ...]:
        """Its own options, which ``--help`` is not."""
        return tuple(each for each in self.command.params if isinstance(each, click.Option))


def commands(command: click.Command = main, words: tuple[str, ...] = ()) -> Iterator[Found]:
    """Every command and group of the program, itself first."""
    yield Found(words, command)
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            assert inner is not None
            yield from commands(inner, (*words, name))


every_command = pytest.mark.parametrize("found", tuple(commands()), ids=str)


def test_the_audit_sees_commands_within_groups() -> None:
    assert {"planner", "planner compile", "planner cache", "planner cache list"} <= set(map(str, commands()))


@every_command
def test_every_option_is_explained(found: Found) -> None:
    assert [option.opts[0] for option in found.options if not option.help] == []


@every_command
def test_no_value_has_a_name_that_was_made_up(found: Found) -> None:
    for option in found.options:
        if option.is_flag or isinstance(option.type, click.Choice):
            continue
        assert option.metavar is not None, option.opts[0]
        assert METAVAR.fullmatch(option.metavar), option.opts[0]
        assert option.metavar not in MADE_UP, option.opts[0]


@every_command
def test_the_help_as_it_is_printed_has_no_such_name_either(run: Run, found: Found) -> None:
    result = run(*found.words, "--help")
    assert result.exit_code == 0
    shown = re.findall(r"^ +(?:-\w, )?--[a-z-]+ (\S+)", result.stdout, re.MULTILINE)
    assert set(shown).isdisjoint(MADE_UP)


@every_command
def test_every_command_says_what_it_does_and_shows_a_call(run: Run, found: Found) -> None:
    text = run(*found.words, "--help").stdout
    assert found.command.help
    calls = text.partition("Examples:\n")[2].splitlines()
    assert any(str(found) in call for call in calls)


def examples() -> Iterator[tuple[str, ...]]:
    """The words of every call of the program in an example, what is piped into it or out of it aside."""
    for found in commands():
        for line in (found.command.epilog or "").splitlines():
            words = shlex.split(line, comments=True)
            ends = [at for at, word in enumerate(words) if word in ("|", ">")]
            for begin, end in zip((0, *(at + 1 for at in ends)), (*ends, len(words)), strict=True):
                if words[begin:end][:1] == ["planner"]:
                    yield tuple(words[begin + 1 : end])


@pytest.mark.parametrize("words", tuple(examples()), ids=" ".join)
def test_every_example_is_a_call_that_can_be_made(words: tuple[str, ...]) -> None:
    command: click.Command = main
    ctx, rest = click.Context(main, info_name="planner"), list(words)
    while isinstance(command, click.Group):
        name = rest.pop(0)
        found = command.get_command(ctx, name)
        assert found is not None
        command = found
        if isinstance(command, click.Group):
            ctx = click.Context(command, info_name=name, parent=ctx)
    command.make_context(name, rest, parent=ctx)  # reads the arguments, and calls nothing
