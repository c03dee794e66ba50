"""Rows of CSV, one a line: quoted cells may hold commas, but no row goes over several lines."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from planner.traffic.histogram import COMMENT
from planner.traffic.lines import Lines, RowError

Cells = Sequence[str]
T = TypeVar("T")


def cells_of(line: str) -> list[str]:
    """The cells of a line, without spaces around them.

    Raises:
        RowError: the line is no CSV.
    """
    if '"' not in line:
        return [cell.strip() for cell in line.split(",")]
    try:
        rows = list(csv.reader([line], strict=True))
    except csv.Error as error:
        raise RowError(f"not CSV: {error}") from None
    return [cell.strip() for cell in rows[0]]


def csv_rows(
    lines: Lines, texts: Iterable[str], header: Cells, columns: Cells, row_of: Callable[[Cells], T]
) -> Iterator[T]:
    """What ``row_of`` makes of the cells of ``columns`` in each of ``texts``, which ``lines`` yields.

    Raises:
        DocumentError: a row is malformed, and such are not skipped.
    """
    places = [header.index(name) for name in columns]
    for text in texts:
        if not text.strip() or text.startswith(COMMENT):
            continue
        try:
            cells = cells_of(text)
            if len(cells) != len(header):
                raise RowError(f"a row of {len(cells)} cells, below a header of {len(header)}")
            row = row_of([cells[place] for place in places])
        except RowError as error:
            lines.malformed(str(error))
        else:
            yield row
