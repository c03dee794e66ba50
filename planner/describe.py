"""Plain words for the parts of a plan, for messages and summaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from planner.descriptors import PlanEntry

LONGEST_NUMBER = 40
"""Longest number, in digits, that a message repeats."""

SHORTEST_RUN = 4
"""Fewer sizes at equal steps than this read better one by one."""


def counted(number: int, noun: str) -> str:
    """``1 request``, ``2 requests``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def range_fault(value: int, least: int | None, most: int | None) -> str | None:
    """How a message says that ``value`` is below or above what its place takes; ``None`` within."""
    if least is not None and value < least:
        return f"{_number(value)} is too small; the smallest value is {least}"
    if most is not None and value > most:
        return f"{_number(value)} is too large; the largest value is {most}"
    return None


def _number(value: int) -> str:
    """``value`` in digits, or the number of those; of very many Python makes no text."""
    if abs(value) < 10**LONGEST_NUMBER:
        return str(value)
    return f"a number of more than {LONGEST_NUMBER} digits"


def label(entry: PlanEntry) -> str:
    """``FULL 512 tokens, 32 requests of 16``: an entry in one short phrase."""
    parts = [f"{entry.mode} {counted(entry.num_tokens, 'token')}"]
    if entry.num_reqs is not None:
        requests = counted(entry.num_reqs, "request")
        if entry.uniform_token_count is not None:
            requests += f" of {entry.uniform_token_count}"
        elif entry.max_query_len is not None:
            requests += f" of up to {entry.max_query_len}"
        parts.append(requests)
    if entry.num_active_loras:
        parts.append(counted(entry.num_active_loras, "LoRA"))
    if entry.num_ubatches > 1:
        parts.append(f"{entry.num_ubatches} microbatches")
    return ", ".join(parts)


def by_shape(entries: Iterable[PlanEntry]) -> Iterator[tuple[str, list[PlanEntry]]]:
    """Entries that differ in their size alone, under words for the rest."""
    for shape, group in groupby(sorted(entries, key=_shape), key=_shape):
        yield shape, list(group)


def _shape(entry: PlanEntry) -> str:
    parts = [str(entry.mode)]
    if entry.uniform_token_count is not None:
        parts.append(f"requests of {entry.uniform_token_count}")
    elif entry.max_query_len is not None:
        parts.append(f"requests of up to {entry.max_query_len}")
    if entry.num_active_loras:
        parts.append(counted(entry.num_active_loras, "LoRA"))
    if entry.num_ubatches > 1:
        parts.append(f"{entry.num_ubatches} microbatches")
    if entry.prologue is not None:
        parts.append(entry.prologue.kind)
    return ", ".join(parts)


def size_runs(sizes: Sequence[int]) -> str:
    """Ascending sizes in short: ``1, 2, 4, 8..256/8``, where ``a..b/s`` is a, a+s, … up to b."""
    parts = []
    start = 0
    while start < len(sizes):
        end = _end_of_run(sizes, start)
        if end - start < SHORTEST_RUN:
            end = start + 1
            parts.append(str(sizes[start]))
        else:
            parts.append(f"{sizes[start]}..{sizes[end - 1]}/{sizes[start + 1] - sizes[start]}")
        start = end
    return ", ".join(parts)


def _end_of_run(sizes: Sequence[int], start: int) -> int:
    """One past the last size that continues the step between the first two from ``start``."""
    end = start + 1
    while end < len(sizes) and sizes[end] - sizes[end - 1] == sizes[start + 1] - sizes[start]:
        end += 1
    return end
