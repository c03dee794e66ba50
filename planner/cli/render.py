"""Drawing blocks: plain text for pipes and files, rich tables where somebody looks at a terminal."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Sequence

from planner.cli.blocks import Block
from planner.cli.streams import write_stderr, write_stdout
from planner.documents.tree import printable

WIDTH = 100
NARROWEST = 30
"""The last column is wrapped at ``WIDTH``, but never made narrower than this."""

_INDENT = "  "
_GAP = "  "


def show(blocks: Sequence[Block], *, err: bool = False) -> None:
    """Draws ``blocks`` on standard output, or on standard error."""
    stream = sys.stderr if err else sys.stdout
    if is_terminal(stream):
        from planner.cli.rich_render import drawn

        text = drawn(blocks, stream)
    else:
        text = plain(blocks)
    if err:
        write_stderr(text)
    else:
        write_stdout(text)


def is_terminal(stream: object) -> bool:
    """Whether ``stream`` is a terminal that can do more than print lines."""
    isatty = getattr(stream, "isatty", None)
    return isatty is not None and bool(isatty()) and os.environ.get("TERM") != "dumb"


def plain(blocks: Iterable[Block]) -> str:
    """``blocks`` as text, an empty line between them."""
    return "\n".join(_plain_block(block) for block in blocks if block.rows or block.title)


def _plain_block(block: Block) -> str:
    rows = [tuple(printable(cell) for cell in row.cells) for row in block.rows]
    widths = _widths(rows)
    indent = _INDENT if block.title is not None else ""
    lines = [] if block.title is None else [printable(block.title)]
    for cells in rows:
        lines.extend(_plain_row(cells, widths, indent, block.numbers))
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _widths(rows: Iterable[Sequence[str]]) -> list[int]:
    widths: list[int] = []
    for cells in rows:
        widths.extend([0] * (len(cells) - len(widths)))
        for column, cell in enumerate(cells):
            widths[column] = max(widths[column], len(cell))
    return widths


def _plain_row(
    cells: Sequence[str], widths: Sequence[int], indent: str, numbers: frozenset[int]
) -> Iterable[str]:
    first = indent
    for column, cell in enumerate(cells[:-1]):
        aligned = cell.rjust(widths[column]) if column in numbers else cell.ljust(widths[column])
        first += aligned + _GAP
    last = len(cells) - 1
    if last == 0 and not indent:
        return [cells[0]]  # a heading, which often has a path that somebody wants to copy
    if last in numbers:
        return [first + cells[last].rjust(widths[last])]
    room = max(WIDTH - len(first), NARROWEST)
    wrapped = textwrap.wrap(cells[last], room, break_long_words=False, break_on_hyphens=False) or [""]
    hanging = " " * len(first)
    return [first + wrapped[0], *(hanging + line for line in wrapped[1:])]
