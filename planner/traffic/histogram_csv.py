"""Histograms in CSV, as ``dump_histogram`` writes them and as people do.

The columns are ``num_tokens`` and ``count``; for decode batches ``num_reqs`` as well, and ``block`` where
time spans are told apart.
"""

from __future__ import annotations

from collections.abc import Iterable

from planner.traffic.csv_rows import Cells, csv_rows
from planner.traffic.histogram import BLOCK_COLUMN, Histogram, HistogramRow, histogram_of
from planner.traffic.lines import Lines, RowError
from planner.traffic.numbers import MAX_COUNT, MAX_TOKENS, whole

REQUESTS, TOKENS, COUNT = "num_reqs", "num_tokens", "count"
REQUIRED = (TOKENS, COUNT)

MAX_BLOCKS = 1_000
MAX_ROWS = 1_000_000


def read_histogram_csv(lines: Lines, texts: Iterable[str], header: Cells, source: str) -> Histogram:
    """The histogram below a ``header``.

    Raises:
        DocumentError: a row is malformed, and such are not skipped; or there are none, or too many.
    """
    columns = [name for name in (TOKENS, COUNT, REQUESTS, BLOCK_COLUMN) if name in header]
    blocks: list[list[HistogramRow]] = []
    rows = csv_rows(lines, texts, header, columns, lambda cells: _row(dict(zip(columns, cells, strict=True))))
    for number, (block, row) in enumerate(rows):
        if number == MAX_ROWS:
            raise lines.error(f"more than {MAX_ROWS} rows; add up those of one size")
        while len(blocks) <= block:
            blocks.append([])
        blocks[block].append(row)
    return filled(histogram_of(blocks, source=source), lines)


def filled(histogram: Histogram, lines: Lines) -> Histogram:
    """``histogram``, which was read from ``lines``.

    Raises:
        DocumentError: nothing was counted.
    """
    if not histogram.rows:
        raise lines.error_of_file("has no step that was counted")
    return histogram


def _row(cells: dict[str, str]) -> tuple[int, HistogramRow]:
    num_tokens = whole(TOKENS, cells[TOKENS], 1, MAX_TOKENS)
    count = whole(COUNT, cells[COUNT], 0, MAX_COUNT)
    block = whole(BLOCK_COLUMN, cells.get(BLOCK_COLUMN, "0"), 0, MAX_BLOCKS - 1)
    return block, checked_row(num_tokens, whole_or_none(REQUESTS, cells.get(REQUESTS, "")), count)


def whole_or_none(name: str, text: str) -> int | None:
    """The whole number from 1 on that ``text`` is, ``None`` where it is empty.

    Raises:
        RowError: it is neither.
    """
    return whole(name, text, 1, MAX_TOKENS) if text else None


def checked_row(num_tokens: int, num_reqs: int | None, count: int) -> HistogramRow:
    """The row of a batch that a server can form.

    Raises:
        RowError: requests do not have the same number of tokens each.
    """
    if num_reqs is not None and num_tokens % num_reqs:
        raise RowError(
            f"{num_tokens} tokens are no decode of {num_reqs} requests, which have the same number each; "
            f"leave {REQUESTS} empty for batches with prefill"
        )
    return HistogramRow(num_tokens=num_tokens, num_reqs=num_reqs, count=count)
