"""Agreement of data-parallel ranks where decode is looked up by requests: each votes, then all pad alike.

A step is decode if every rank decodes or is idle, else it is prefill; a single vote against a graph
makes every rank run eagerly.
Source: SGLang 0.5.23, DP attention (rules 15; the size of a prefill step is looked up among the
aligned sizes, not among those of the config), and TensorRT-LLM, attention DP (rules 5 and 6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import fields_dict, frozen

from planner.batches import Agreement, Batch, as_batch, refuse_foreign_columns
from planner.descriptors import BatchExecutionDescriptor
from planner.engines.lookup import LookupTable
from planner.modes import CUDAGraphMode, Runner


@frozen
class LookupColumn:
    """One rank's column: its batch, and its votes for a graph of decode and for one of prefill.

    ``uniform_token_count`` is 0 where requests differ; ``prefills`` is 1 where the batch is no decode.
    """

    num_tokens: int
    num_reqs: int
    uniform_token_count: int
    decode_vote: int
    prefill_vote: int
    prefills: int


_NUM_ROWS = len(fields_dict(LookupColumn))


def column(table: LookupTable, batch: Mapping[str, Any] | object) -> tuple[int, ...]:
    """What a rank tells the others about its batch: six integers."""
    own = as_batch(batch)
    count = _count(table, own)
    decodes = own.num_reqs == 0 or table.is_decode_batch(count, own.max_query_len)
    replays = decodes and (own.num_reqs == 0 or count in table.decode_counts)
    return (
        own.num_tokens,
        own.num_reqs,
        count or 0,
        int(replays and not own.need_eager),
        int(_replays_prefill(table, own, decodes=decodes)),
        int(not decodes),
    )


def decide(
    table: LookupTable, columns: Sequence[Sequence[int]], rank: int, batch: Mapping[str, Any] | object
) -> Agreement:
    """What ``rank`` runs once it has the columns of all ranks; ``batch`` is its own.

    Raises:
        BatchError: a column is of another runner, or ``rank`` has none.
    """
    own = as_batch(batch)
    refuse_foreign_columns(columns, rank, _NUM_ROWS)
    ranks = [LookupColumn(*values) for values in columns]
    if len(ranks) == 1:
        return Agreement(_own_descriptor(table, own))
    tokens = tuple(other.num_tokens for other in ranks)
    if not any(tokens):
        return Agreement(_eager(own))
    most_reqs = max(other.num_reqs for other in ranks)
    if any(other.prefills for other in ranks):
        descriptors = [_prefill(table, ranks)] * len(ranks)
    else:
        descriptors = _decodes(table, ranks, most_reqs)
    found = descriptors[rank]
    if found is None:
        return Agreement(_eager(own), tokens, eager=True, num_reqs=most_reqs)
    across = tuple(
        other.num_tokens if descriptor is None else descriptor.num_tokens
        for other, descriptor in zip(ranks, descriptors, strict=True)
    )
    return Agreement(found, across, found.uniform_token_count, eager=False, num_reqs=most_reqs)


def _count(table: LookupTable, batch: Batch) -> int | None:
    if batch.uniform_token_count is None and batch.uniform_decode:
        return table.decode_query_len
    return batch.uniform_token_count


def _replays_prefill(table: LookupTable, batch: Batch, *, decodes: bool) -> bool:
    """Whether a rank would replay a prefill graph; one that decodes joins with a token a request."""
    if batch.need_eager:
        return False
    if batch.num_reqs == 0 or table.runner is Runner.TENSORRT_LLM:
        return True
    joins = table.decode_counts <= {1} and any(
        entry.mode is CUDAGraphMode.PIECEWISE and entry.uniform_token_count is None for entry in table.entries
    )
    if decodes and not joins:
        return False
    return bool(table.dispatch(num_reqs=batch.num_reqs, num_tokens=batch.num_tokens).cg_mode)


def _decodes(
    table: LookupTable, ranks: Sequence[LookupColumn], most_reqs: int
) -> list[BatchExecutionDescriptor | None]:
    """The graph of each rank in a step that only decodes."""
    lengths = {other.uniform_token_count for other in ranks if other.num_reqs}
    if not all(other.decode_vote for other in ranks) or len(lengths) != 1:
        return [None] * len(ranks)
    length, shares = lengths.pop(), table.lookup.shares_decode_size
    if table.runner is Runner.TENSORRT_LLM and not table.lookup.pads_decode:
        shares = False
    found = []
    for other in ranks:
        reqs = most_reqs if shares else other.num_reqs
        descriptor = table.dispatch(reqs, reqs * length, length)
        found.append(descriptor if descriptor.cg_mode else None)
    must_agree = table.runner is Runner.TENSORRT_LLM
    if must_agree and len({one and one.num_reqs for one in found}) > 1:
        return [None] * len(ranks)
    return found


def _prefill(table: LookupTable, ranks: Sequence[LookupColumn]) -> BatchExecutionDescriptor | None:
    """The graph of all ranks in a step in which some prefill."""
    has_idle = table.runner is Runner.SGLANG and any(other.num_tokens == 0 for other in ranks)
    if has_idle or not all(other.prefill_vote for other in ranks):
        return None
    return table.prefill_descriptor(max(other.num_tokens for other in ranks))


def _own_descriptor(table: LookupTable, batch: Batch) -> BatchExecutionDescriptor:
    if batch.need_eager:
        return _eager(batch)
    return table.dispatch(
        num_reqs=batch.num_reqs,
        num_tokens=batch.num_tokens,
        uniform_token_count=_count(table, batch),
        num_active_loras=batch.num_active_loras,
        max_query_len=batch.max_query_len,
    )


def _eager(batch: Batch) -> BatchExecutionDescriptor:
    return BatchExecutionDescriptor(
        CUDAGraphMode.NONE, batch.num_tokens, batch.num_reqs, None, None, batch.num_active_loras
    )
