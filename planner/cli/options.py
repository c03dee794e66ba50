"""Arguments and options that commands share."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from planner.documents.plan import TARGET

F = TypeVar("F", bound=Callable[..., Any])

_DECIMAL = re.compile(r"0|[1-9][0-9]{0,17}")


def count(least: int) -> Callable[[str], int]:
    """The type of options that are whole numbers, in plain decimal digits, of at least ``least``."""

    def convert(text: str) -> int:
        if not _DECIMAL.fullmatch(text) or int(text) < least:
            raise click.BadParameter(f"{text[:40]!r} is not a whole number of at least {least}")
        return int(text)

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
