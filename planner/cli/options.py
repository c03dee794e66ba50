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


def number(least: float, most: float) -> Callable[[str], float]:
    """The type of options that are numbers from ``least`` to ``most``."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise click.BadParameter(f"{shown(text)} is not a number") from None
        if not least <= value <= most:
            raise click.BadParameter(f"{shown(text)} is not within {least:g} and {most:g}")
        return value

    return convert


def not_empty(what: str) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """The callback of parameters that name ``what``: an empty name is a variable that was not set."""

    def checked(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        if value is not None and not value.strip():
            name = parameter.opts[0] if isinstance(parameter, click.Option) else parameter.human_readable_name
            raise click.UsageError(f"{name} is empty; give {what}", ctx)
        return value

    return checked


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
