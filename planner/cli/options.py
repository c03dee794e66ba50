"""Arguments and options that commands share."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from planner.describe import range_fault
from planner.documents.plan import TARGET
from planner.documents.tree import shown
from planner.queries import LARGEST

MOST_DIGITS = 100

F = TypeVar("F", bound=Callable[..., Any])

_DECIMAL = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)


def count(least: int) -> Callable[[str], int]:
    """The type of options that are whole numbers, in plain decimal digits, of at least ``least``."""

    def convert(text: str) -> int:
        if not _DECIMAL.fullmatch(text):
            raise click.BadParameter(f"{shown(text)} is not a whole number in plain decimal digits")
        # Python makes no number of thousands of digits; a longer one is as far out of range as this.
        value = int(text[:MOST_DIGITS])
        if fault := range_fault(value, least, LARGEST):
            raise click.BadParameter(fault)
        return value

    return convert


def output_format(*choices: str) -> Callable[[F], F]:
    """``--format``: the first choice is the default."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(choices),
        default=choices[0],
        show_default=True,
        help="Output format.",
    )


family_option = click.option(
    "--family", default=TARGET, show_default=True, metavar="NAME", help="The family of graphs that is asked."
)


def examples(*lines: str) -> str:
    """An epilog of example calls, one a line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
