"""Blocks for terminals, in colour. Imported there only: rich takes longer to load than a compile."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planner.cli.blocks import Block, Row
from planner.documents.tree import printable

STYLES = {
    "error": "bold red",
    "warning": "yellow",
    "info": "cyan",
    "good": "green",
    "lost": "red",
    "gained": "green",
}

GAP = 2
INDENT = 2
NARROWEST = 30
"""The last column of a table is never narrower, unless its cells are; the rows become lines instead."""


def drawn(blocks: Iterable[Block], stream: IO[Any]) -> str:
    """What draws ``blocks`` on the terminal ``stream``; rich itself honours NO_COLOR."""
    console = Console(file=stream, highlight=False)
    with console.capture() as captured:
        for index, block in enumerate(blocks):
            if index:
                console.print()
            _draw(block, console)
    return captured.get()


def _draw(block: Block, console: Console) -> None:
    indent = 0 if block.title is None else INDENT
    if block.title is not None:
        console.print(Text(printable(block.title), style="bold"), soft_wrap=True)
    if not block.rows:
        return
    if _fits(block, console.width - indent):
        console.print(Padding(_table(block), (0, 0, 0, indent)))
        return
    for row in block.rows:
        for line in _lines(row, console.width, indent):
            # A word that is wider than the terminal is left to the terminal, which cuts nothing.
            console.print(line, soft_wrap=True)


def _fits(block: Block, width: int) -> bool:
    """Whether a table shows each word of ``block`` in one piece, and the last column readably."""
    columns = max(len(row.cells) for row in block.rows)
    last = [printable(row.cells[-1]) for row in block.rows if len(row.cells) == columns]
    widths = [
        max(len(printable(row.cells[column])) for row in block.rows if column < len(row.cells))
        for column in range(columns - 1)
    ]
    room = width - sum(widths) - GAP * len(widths)
    longest_word = max(len(word) for cell in last for word in (cell.split() or [""]))
    return room >= max(longest_word, min(NARROWEST, max(map(len, last))))


def _lines(row: Row, width: int, indent: int) -> Iterable[Text]:
    """``row`` as lines of ``width``, the cells one after the other; the first line hangs out."""
    cells = [printable(cell) for cell in row.cells]
    if len(cells) == 1 and not indent:
        wrapped = cells  # a heading, which often has a path that somebody wants to copy
    else:
        wrapped = textwrap.wrap(
            (" " * GAP).join(cell for cell in cells if cell),
            width,
            initial_indent=" " * (indent if cells[0] else indent + INDENT),
            subsequent_indent=" " * (indent + INDENT),
            break_long_words=False,
            break_on_hyphens=False,
        )
    for number, line in enumerate(wrapped):
        text = Text(line)
        if number == 0 and row.style is not None:
            text.stylize(STYLES[row.style], 0, indent + len(cells[0]))
        yield text


def _table(block: Block) -> Table:
    columns = max(len(row.cells) for row in block.rows)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, GAP, 0, 0))
    for column in range(columns):
        table.add_column(
            justify="right" if column in block.numbers else "left",
            no_wrap=column < columns - 1,
            overflow="fold",
        )
    for row in block.rows:
        cells = [Text(printable(cell)) for cell in row.cells]
        if row.style is not None:
            cells[0].stylize(STYLES[row.style])
        table.add_row(*cells)
    return table
