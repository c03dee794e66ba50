"""Families of graphs where decode is looked up by requests, and prefill by tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import evolve

from planner.descriptors import MAX_GRAPH_TOKENS, PlanEntry
from planner.documents.plan import ResolvedFamily
from planner.errors import PlanError
from planner.modes import CUDAGraphMode
from planner.rules.entries import MAX_ENTRIES

_PAIRS = {
    (CUDAGraphMode.FULL, CUDAGraphMode.NONE): CUDAGraphMode.FULL_DECODE_ONLY,
    (CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE): CUDAGraphMode.FULL_AND_PIECEWISE,
}


def mode_of_phases(decode: CUDAGraphMode, prefill: CUDAGraphMode) -> CUDAGraphMode:
    """The mode that names a pair of runtime modes; for a pair without a name the stronger of the two."""
    return _PAIRS.get((decode, prefill), max(decode, prefill, key=lambda mode: mode.strength))


def prefill_entries(
    mode: CUDAGraphMode, sizes: Iterable[int], *, slots: int | None = None
) -> tuple[PlanEntry, ...]:
    """One graph a size in tokens, the largest first; ``slots`` bounds the requests of each."""
    descending = sorted(sizes, reverse=True)
    return tuple(PlanEntry(mode, size, None if slots is None else min(slots, size)) for size in descending)


def decode_entries(
    mode: CUDAGraphMode, sizes: Sequence[int], query_len: int, *, fields: Sequence[str]
) -> tuple[PlanEntry, ...]:
    """One graph a size in requests of ``query_len`` tokens, the largest first.

    Raises:
        PlanError: they are more, or have more tokens, than a plan takes; ``fields`` ask for them.
    """
    if len(sizes) > MAX_ENTRIES:
        raise PlanError(
            f"{len(sizes)} sizes are more than a plan takes, which is {MAX_ENTRIES}; lower the maximum",
            fields=fields,
        )
    largest = max(sizes, default=0)
    if largest * query_len > MAX_GRAPH_TOKENS:
        raise PlanError(
            f"{largest} requests of {query_len} are {largest * query_len} tokens, and a graph of a plan has "
            f"{MAX_GRAPH_TOKENS} at most; lower the maximum",
            fields=fields,
        )
    return tuple(PlanEntry(mode, size * query_len, size, query_len) for size in sorted(sizes, reverse=True))


def with_sizes(resolved: ResolvedFamily, entries: Iterable[PlanEntry]) -> ResolvedFamily:
    """``resolved`` with the sizes of ``entries``, in tokens."""
    sizes = tuple(sorted({entry.num_tokens for entry in entries}))
    largest = sizes[-1] if sizes else 0
    return evolve(resolved, cudagraph_capture_sizes=sizes, max_cudagraph_capture_size=largest)
