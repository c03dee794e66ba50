"""Counts of replayed graphs: how often each entry of a plan ran, as the cache keeps them.

An entry says only up to which size its batches were, so that its count is spread evenly over the sizes
between the next smaller entry of its kind and its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import frozen

from planner.descriptors import MAX_GRAPH_TOKENS, PlanEntry
from planner.documents.reader import MAX_BYTES
from planner.documents.sources import tree_of
from planner.documents.structure import structure
from planner.documents.tree import NodeError
from planner.errors import DocumentError
from planner.traffic.histogram import Histogram, HistogramRow, histogram_of
from planner.traffic.histogram_csv import filled
from planner.traffic.lines import Lines, RowError
from planner.traffic.mooncake import json_object
from planner.traffic.numbers import MAX_COUNT, within

COUNTS = "counts"

MAX_SIZES = 2 * MAX_GRAPH_TOKENS


class UsageError(DocumentError):
    """Counts of more sizes than any plan has."""


@frozen(kw_only=True)
class _EntryCount:
    entry: PlanEntry
    count: int


@frozen(kw_only=True)
class _Usage:
    counts: tuple[_EntryCount, ...]


def usage_histogram(counts: Iterable[tuple[PlanEntry, int]], *, source: str = "") -> Histogram:
    """The histogram of entries and how often each was replayed.

    Entries that never were, with a count of 0, tell how far down the batches of others can have been.

    Raises:
        UsageError: they have too many sizes.
    """
    ladders: dict[int | None, dict[int, int]] = {}
    for entry, count in counts:
        ladder = ladders.setdefault(entry.uniform_token_count, {})
        size = entry.num_tokens // (entry.uniform_token_count or 1)
        ladder[size] = ladder.get(size, 0) + count
    if sum(max(ladder) for ladder in ladders.values()) > MAX_SIZES:
        raise UsageError("the entries have more sizes than any plan")
    rows = (row for query_len, ladder in ladders.items() for row in _spread(query_len, ladder))
    return histogram_of([rows], source=source)


def _spread(query_len: int | None, ladder: dict[int, int]) -> Iterator[HistogramRow]:
    below = 0
    for size, count in sorted(ladder.items()):
        each, rest = divmod(count, size - below) if size > below else (0, 0)
        for number in range(below + 1, size + 1):
            yield HistogramRow(
                num_tokens=number * (query_len or 1),
                num_reqs=None if query_len is None else number,
                count=each + (number > size - rest),
            )
        below = size


def read_usage(lines: Lines, texts: Iterable[str], source: str) -> Histogram:
    """The histogram of a cache's record of usage, in JSON.

    Raises:
        DocumentError: it is none.
    """
    try:
        record = json_object(_joined(lines, texts))
        usage = structure(tree_of({key: record[key] for key in record if key == COUNTS}), _Usage)
        counts = [(row.entry, within(COUNTS, row.count, 0, MAX_COUNT)) for row in usage.counts]
        return filled(usage_histogram(counts, source=source), lines)
    except RowError as error:
        raise lines.error_of_file(f"no counts of a cache: {error}") from None
    except NodeError as error:
        raise error.in_document(lines.name) from None
    except UsageError as error:
        raise lines.error_of_file(error.message) from None


def _joined(lines: Lines, texts: Iterable[str]) -> str:
    parts: list[str] = []
    length = 0
    for text in texts:
        parts.append(text)
        length += len(text) + 1
        if length > MAX_BYTES:
            raise lines.error_of_file(f"larger than {MAX_BYTES // 2**20} MiB, which no usage counts are")
    return "\n".join(parts)
