"""A histogram: how many steps a server spent on batches of each size, over all and by time spans.

The form in which one is committed is CSV: ``num_reqs,num_tokens,count``, with a column ``block`` ahead
where time spans are known, below ``#`` lines that say where the counts come from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from operator import attrgetter

from attrs import frozen

COMMENT = "#"
SOURCE_KEY = "source:"
COLUMNS = ("num_reqs", "num_tokens", "count")
BLOCK_COLUMN = "block"


@frozen(kw_only=True)
class HistogramRow:
    """``count`` steps of ``num_tokens`` tokens; ``num_reqs`` is given for uniform decode batches."""

    num_tokens: int
    count: int
    num_reqs: int | None = None

    @property
    def order(self) -> tuple[bool, int, int]:
        """By requests, then tokens; batches of an unknown number of requests come last."""
        return (self.num_reqs is None, self.num_reqs or 0, self.num_tokens)


@frozen(kw_only=True, slots=False)
class Histogram:
    """Steps by size of batch; ``source`` says where the counts come from, for people.

    ``blocks`` are the rows of consecutive time spans of one length, in order, or nothing where time is
    not known; together they are ``rows``.
    """

    rows: tuple[HistogramRow, ...]
    source: str = ""
    blocks: tuple[tuple[HistogramRow, ...], ...] = ()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the rows, by time span where those are known; the same in whatever order they are."""
        data = [
            [[row.num_tokens, row.num_reqs, row.count] for row in canonical(rows)]
            for rows in (self.rows, *self.blocks)
        ]
        return hashlib.sha256(json.dumps(data, separators=(",", ":")).encode()).hexdigest()

    def decode_steps(self) -> dict[int, int]:
        """Steps of uniform decode by number of requests."""
        return _summed((row.num_reqs, row.count) for row in self.rows if row.num_reqs is not None)

    def token_steps(self) -> dict[int, int]:
        """Steps of all other batches by number of tokens."""
        return _summed((row.num_tokens, row.count) for row in self.rows if row.num_reqs is None)


def histogram_of(blocks: Sequence[Iterable[HistogramRow]], *, source: str = "") -> Histogram:
    """The histogram of consecutive time spans; a single one tells nothing of time.

    Rows of one size are added up, and spans at the end without any are left out.
    """
    spans = [canonical(rows) for rows in blocks]
    while spans and not spans[-1]:
        spans.pop()
    rows = canonical(row for span in spans for row in span)
    return Histogram(rows=rows, source=source, blocks=tuple(spans) if len(spans) > 1 else ())


def canonical(rows: Iterable[HistogramRow]) -> tuple[HistogramRow, ...]:
    """``rows`` in order, one a size, without those that never occurred."""
    counts: dict[tuple[int, int | None], int] = {}
    for row in rows:
        size = row.num_tokens, row.num_reqs
        counts[size] = counts.get(size, 0) + row.count
    found = (
        HistogramRow(num_tokens=num_tokens, num_reqs=num_reqs, count=count)
        for (num_tokens, num_reqs), count in counts.items()
        if count
    )
    return tuple(sorted(found, key=attrgetter("order")))


def dump_histogram(histogram: Histogram) -> str:
    """The CSV of ``histogram``; ``load_histogram`` reads it back."""
    return "".join(f"{line}\n" for line in _lines(histogram))


def _lines(histogram: Histogram) -> Iterator[str]:
    for place, line in enumerate(histogram.source.splitlines()):
        yield f"{COMMENT} {line}" if place else f"{COMMENT} {SOURCE_KEY} {line}"
    if not histogram.blocks:
        yield ",".join(COLUMNS)
        yield from map(_cells, canonical(histogram.rows))
        return
    yield ",".join((BLOCK_COLUMN, *COLUMNS))
    for number, rows in enumerate(histogram.blocks):
        for row in canonical(rows):
            yield f"{number},{_cells(row)}"


def _cells(row: HistogramRow) -> str:
    return f"{'' if row.num_reqs is None else row.num_reqs},{row.num_tokens},{row.count}"


def _summed(counts: Iterable[tuple[int, int]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for size, count in counts:
        total[size] = total.get(size, 0) + count
    return dict(sorted(total.items()))
