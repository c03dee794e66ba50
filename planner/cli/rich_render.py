"""Blocks as rich tables. Imported on terminals only: rich takes longer to load than a compile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planner.cli.blocks import Block
from planner.documents.tree import printable

STYLES = {
    "error": "bold red",
    "warning": "yellow",
    "info": "cyan",
    "good": "green",
    "lost": "red",
    "gained": "green",
}


def draw(blocks: Iterable[Block], stream: IO[Any]) -> None:
    """Draws ``blocks`` on a terminal; rich itself honours NO_COLOR."""
    console = Console(file=stream, highlight=False)
    for index, block in enumerate(blocks):
        if index:
            console.print()
        if block.title is not None:
            console.print(Text(printable(block.title), style="bold"))
        if block.rows:
            indent = 0 if block.title is None else 2
            console.print(Padding(_table(block), (0, 0, 0, indent)))


def _table(block: Block) -> Table:
    columns = max(len(row.cells) for row in block.rows)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
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
