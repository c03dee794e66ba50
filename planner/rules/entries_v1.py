"""Which graphs the V1 runner captures: its keys as plan entries, in capture order.

One list of sizes serves every key. ``EntryRequest.decode_query_len`` is the only query length that
V1 knows, and ``EntryRequest.sizes`` are rounded to it wherever decode batches have graphs of their own.
Source: vLLM 0.33, keys and capture order of the V1 dispatcher (rules 4.4 and 4.7).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from planner.descriptors import PlanEntry
from planner.modes import CUDAGraphMode
from planner.rules.entries import MAX_ENTRIES, EntryRequest, too_many_graphs
from planner.rules.microbatch import passes_threshold


def v1_family_entries(request: EntryRequest) -> tuple[PlanEntry, ...]:
    """The entries of a V1 family: PIECEWISE before FULL, each from the most tokens and LoRAs down.

    Raises:
        PlanError: they are more than a plan takes.
    """
    entries = list(islice(chain(_mixed_entries(request), _decode_entries(request)), MAX_ENTRIES + 1))
    if len(entries) > MAX_ENTRIES:
        raise too_many_graphs(request.factors)
    return tuple(sorted(entries, key=_capture_rank))


def _capture_rank(entry: PlanEntry) -> tuple[bool, int, int]:
    return entry.mode is CUDAGraphMode.FULL, -entry.num_tokens, -entry.num_active_loras


def _mixed_entries(request: EntryRequest) -> Iterator[PlanEntry]:
    """Graphs for any batch of a size; without graphs of its own, decode runs in them too."""
    mode = request.mode.mixed_mode()
    if mode is CUDAGraphMode.NONE:
        return
    for num_tokens in request.sizes:
        num_reqs = min(num_tokens, request.max_num_seqs) if mode is CUDAGraphMode.FULL else None
        for case in request.lora_cases:
            yield PlanEntry(mode, num_tokens, num_reqs, num_active_loras=case)


def _decode_entries(request: EntryRequest) -> Iterator[PlanEntry]:
    """Graphs for uniform decode batches, where the mode has graphs for them alone."""
    if not request.mode.separate_routine():
        return
    query_len = request.decode_query_len
    for num_tokens in request.sizes:
        if not query_len <= num_tokens <= request.max_decode_tokens:
            continue
        for case in request.lora_cases:
            yield PlanEntry(
                CUDAGraphMode.FULL,
                num_tokens,
                num_tokens // query_len,
                query_len,
                num_active_loras=case,
                num_ubatches=_num_ubatches(request, num_tokens),
            )


def _num_ubatches(request: EntryRequest, num_tokens: int) -> int:
    """A decode graph above the threshold is captured in microbatches, and in no other way."""
    microbatching = request.microbatching
    if microbatching is None or not passes_threshold(microbatching, num_tokens, uniform_decode=True):
        return 1
    return microbatching.num_ubatches
