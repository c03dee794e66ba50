"""Agreement of data-parallel ranks on one step: each tells the others a column, each then decides.

Every rank computes the same decision from the same columns, so no second exchange is needed.
The functions below take the tables of all runners; those of the V1 runner follow the rules of
``planner.agreement_v1``, those of other engines the rules of ``planner.engines.agreement``.
Source: vLLM 0.33, V2 data-parallel dispatch (rules 6.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import fields_dict, frozen

from planner import agreement_v1
from planner.batches import Agreement, Batch, as_batch, refuse_foreign_columns
from planner.descriptors import BatchExecutionDescriptor
from planner.dispatch import DispatchTable
from planner.dispatch_v1 import V1DispatchTable
from planner.engines import agreement as lookup_agreement
from planner.engines.lookup import LookupTable
from planner.errors import ArgumentError
from planner.modes import CUDAGraphMode
from planner.rules.microbatch import passes_threshold


@frozen
class _Column:
    """One rank's column, in the order in which the rows are exchanged."""

    num_tokens: int
    strength: int
    uniform_token_count: int
    max_query_len: int
    allow_ubatching: int
    num_reqs: int
    allow_skip_drafts: int


_NUM_ROWS = len(fields_dict(_Column))


def column(table: DispatchTable | V1DispatchTable, batch: Mapping[str, Any] | object) -> tuple[int, ...]:
    """What a rank tells the others about its batch: seven integers of the V2 runner, four of V1's.

    Ranks of other engines tell six, which ``planner.engines.agreement`` describes.

    Those of V2 are the tokens, the strength of the rank's own runtime mode (0 to 2), the uniform token
    count (0 for none), the longest query (-1 for none), whether microbatches are allowed, the
    requests, and whether drafting may be skipped.

    Raises:
        ArgumentError: ``table`` is no dispatch table.
        BatchError: no rank forms such a batch.
    """
    _refuse_other_than_table("column", table)
    if isinstance(table, V1DispatchTable):
        return agreement_v1.column(table, batch)
    if isinstance(table, LookupTable):
        return lookup_agreement.column(table, batch)
    own = as_batch(batch)
    return (
        own.num_tokens,
        _own_descriptor(table, own).cg_mode.strength,
        own.uniform_token_count or 0,
        own.max_query_len or -1,
        int(own.allow_ubatching),
        own.num_reqs,
        int(own.allow_skip_drafts),
    )


def decide(
    table: DispatchTable | V1DispatchTable,
    columns: Sequence[Sequence[int]],
    rank: int,
    batch: Mapping[str, Any] | object,
) -> Agreement:
    """What ``rank`` runs once it has the columns of all ranks; ``batch`` is its own.

    Raises:
        ArgumentError: ``table`` is no dispatch table.
        BatchError: a column does not have the runner's rows, ``rank`` has none, or a V1 rank lacks
            the graph that the others agreed on.
    """
    _refuse_other_than_table("decide", table)
    if isinstance(table, V1DispatchTable):
        return agreement_v1.decide(table, columns, rank, batch)
    if isinstance(table, LookupTable):
        return lookup_agreement.decide(table, columns, rank, batch)
    own = as_batch(batch)
    ranks = _as_columns(columns, rank)
    if len(ranks) == 1:
        return Agreement(_own_descriptor(table, own))
    tokens = tuple(other.num_tokens for other in ranks)
    uniform = _common_uniform(ranks)
    num_reqs = max(other.num_reqs for other in ranks)
    skip_drafts = all(other.allow_skip_drafts for other in ranks)
    if not any(tokens):
        return Agreement(_eager(0, 0, 0, 1))
    microbatched = _microbatched(table, ranks, own, uniform)
    if microbatched is not None:
        across = (microbatched.num_tokens,) * len(ranks)
        eager = microbatched.cg_mode is CUDAGraphMode.NONE
        return Agreement(microbatched, across, uniform, eager, num_reqs, skip_drafts)
    if min(other.strength for other in ranks) == CUDAGraphMode.NONE.strength:
        case = _own_descriptor(table, own).num_active_loras
        descriptor = _eager(own.num_tokens, own.num_reqs, case, 1)
        return Agreement(descriptor, tokens, uniform, True, num_reqs, skip_drafts)
    longest = [other.max_query_len for other in ranks]
    descriptor = table.dispatch(
        num_reqs=own.num_reqs,
        num_tokens=max(tokens),
        uniform_token_count=uniform,
        num_active_loras=own.num_active_loras,
        max_query_len=max(longest) if min(longest) > 0 else None,
    )
    across = (descriptor.num_tokens,) * len(ranks)
    return Agreement(descriptor, across, uniform, False, num_reqs, skip_drafts)


def agree(
    table: DispatchTable | V1DispatchTable, batches: Sequence[Mapping[str, Any] | object]
) -> list[Agreement]:
    """The decision of every rank, in rank order; one rank alone has nobody to agree with.

    Raises:
        ArgumentError: ``table`` is no dispatch table, or ``batches`` no list.
        BatchError: no rank forms such a batch.
    """
    _refuse_other_than_table("agree", table)
    if not isinstance(batches, Sequence):
        raise ArgumentError(
            f"agree takes a list of batches, one a rank, found a value of type {type(batches).__name__}"
        )
    own = [as_batch(batch) for batch in batches]
    columns = [column(table, batch) for batch in own]
    return [decide(table, columns, rank, batch) for rank, batch in enumerate(own)]


def _refuse_other_than_table(function: str, table: object) -> None:
    if not isinstance(table, DispatchTable | V1DispatchTable):
        raise ArgumentError(
            f"{function} takes a dispatch table, found a value of type {type(table).__name__}; "
            "plan.dispatch_table(family) makes one"
        )


def _as_columns(columns: Sequence[Sequence[int]], rank: int) -> list[_Column]:
    refuse_foreign_columns(columns, rank, _NUM_ROWS)
    return [_Column(*values) for values in columns]


def _own_descriptor(table: DispatchTable, batch: Batch) -> BatchExecutionDescriptor:
    if batch.need_eager:
        return _eager(batch.num_tokens, batch.num_reqs, batch.num_active_loras, 1)
    return table.dispatch(
        num_reqs=batch.num_reqs,
        num_tokens=batch.num_tokens,
        uniform_token_count=batch.uniform_token_count,
        num_active_loras=batch.num_active_loras,
        max_query_len=batch.max_query_len,
    )


def _eager(
    num_tokens: int, num_reqs: int, num_active_loras: int, num_ubatches: int
) -> BatchExecutionDescriptor:
    return BatchExecutionDescriptor(
        CUDAGraphMode.NONE, num_tokens, num_reqs, None, None, num_active_loras, num_ubatches
    )


def _common_uniform(ranks: Sequence[_Column]) -> int | None:
    counts = {other.uniform_token_count for other in ranks}
    return counts.pop() or None if len(counts) == 1 else None


def _microbatched(
    table: DispatchTable, ranks: Sequence[_Column], own: Batch, uniform: int | None
) -> BatchExecutionDescriptor | None:
    """The descriptor of a step in microbatches, or ``None`` where the step stays whole."""
    microbatching = table.microbatching
    if microbatching is None or not all(other.allow_ubatching for other in ranks):
        return None
    smallest = min(other.num_tokens for other in ranks)
    largest = max(other.num_tokens for other in ranks)
    uniform_everywhere = own.uniform_decode and len({other.uniform_token_count for other in ranks}) == 1
    if not passes_threshold(microbatching, smallest, uniform_everywhere):
        return None
    descriptor = table.dispatch(
        num_reqs=own.num_reqs,
        num_tokens=largest,
        uniform_token_count=uniform,
        num_active_loras=own.num_active_loras,
        num_ubatches=microbatching.num_ubatches,
    )
    # The engine tests for two microbatches, however many are configured: a rank whose tokens would
    # all fit the first one would leave the second empty.
    if 2 * smallest < descriptor.num_tokens:
        case = table.captured_case(own.num_active_loras)
        return _eager(largest, own.num_reqs, case, microbatching.num_ubatches)
    return descriptor
