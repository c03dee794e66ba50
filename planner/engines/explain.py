"""Why a graph serves a batch or not, where decode is looked up by requests and prefill by tokens."""

from __future__ import annotations

from collections.abc import Iterator

from planner.describe import counted
from planner.descriptors import PlanEntry
from planner.engines.lookup import LookupTable, is_decode
from planner.queries import Query


def lookup_obstacles(entry: PlanEntry, query: Query, table: LookupTable) -> Iterator[str]:
    """What keeps ``entry``, whose size is the nearest, from serving the batch."""
    decodes = table.is_decode_batch(query.uniform_token_count, query.max_query_len)
    if is_decode(entry) != decodes:
        phase, other = ("decode", "prefill") if is_decode(entry) else ("prefill", "decode")
        yield f"for {phase}, the batch is {other}"
    elif entry.uniform_token_count != query.uniform_token_count and is_decode(entry):
        length = query.uniform_token_count
        has = "requests of different lengths" if length is None else f"requests of {length}"
        yield f"for requests of {counted(entry.uniform_token_count or 1, 'token')}, the batch has {has}"
    if entry.num_reqs is not None and (query.num_reqs or 0) > entry.num_reqs:
        yield f"{counted(entry.num_reqs, 'request')}, the batch has {query.num_reqs}"
    if query.num_active_loras:
        yield "without LoRA, the batch has adapters"


def lookup_notes(query: Query, table: LookupTable) -> Iterator[str]:
    """Why a larger graph of the batch's phase is not replayed, where there is one."""
    decodes = table.is_decode_batch(query.uniform_token_count, query.max_query_len)
    lengths = sorted(length for length in table.decode_counts if length is not None)
    if decodes and query.uniform_token_count not in lengths and lengths:
        yield f"decode has graphs for requests of {' or '.join(map(str, lengths))} tokens only"
        return
    larger = [
        entry
        for entry in table.entries
        if is_decode(entry) == decodes
        and entry.num_tokens >= query.num_tokens
        and entry.uniform_token_count in (None, query.uniform_token_count)
    ]
    if not larger:
        sizes = [entry.num_tokens for entry in table.entries if is_decode(entry) == decodes]
        phase = "decode" if decodes else "prefill"
        if sizes:
            yield f"the largest graph for {phase} has {counted(max(sizes), 'token')}"
        else:
            yield f"no graph was captured for {phase}"
        return
    nearest = min(larger, key=lambda entry: entry.num_tokens)
    if decodes and not table.lookup.pads_decode:
        yield f"batches are not padded, and the next size has {counted(nearest.num_reqs or 1, 'request')}"
    elif nearest.num_reqs is not None and (query.num_reqs or 0) > nearest.num_reqs:
        yield f"the next size holds {counted(nearest.num_reqs, 'request')}"
    elif table.lookup.max_prefill_factor is not None and not decodes:
        factor = table.lookup.max_prefill_factor
        if nearest.num_tokens > factor * query.num_tokens:
            most = factor * query.num_tokens
            yield f"the next size has {nearest.num_tokens} tokens, and this batch is padded to {most} at most"
