"""Agreement of data-parallel ranks on one step: each tells the others a column, each then decides.

Every rank computes the same decision from the same columns, so no second exchange is needed.
Source: vLLM 0.33, V2 data-parallel dispatch (rules 6.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import fields_dict, frozen

from planner.descriptors import BatchExecutionDescriptor
from planner.dispatch import DispatchTable
from planner.errors import BatchError
from planner.modes import CUDAGraphMode
from planner.rules.microbatch import passes_threshold


@frozen(kw_only=True)
class Batch:
    """What one rank brings to a step. Tokens and requests are its own, before padding.

    ``uniform_token_count``, ``max_query_len`` and ``num_active_loras`` are those of ``dispatch``.
    ``need_eager`` forbids graphs, ``allow_ubatching`` allows microbatches, ``uniform_decode`` says
    that every request has the decode query length, ``allow_skip_drafts`` that drafting may be left
    out of this step.
    """

    num_reqs: int
    num_tokens: int
    uniform_token_count: int | None = None
    max_query_len: int | None = None
    num_active_loras: int = 0
    need_eager: bool = False
    allow_ubatching: bool = False
    uniform_decode: bool = False
    allow_skip_drafts: bool = False


@frozen
class Agreement:
    """What one rank runs. All fields but ``descriptor`` are the same on every rank.

    ``num_tokens_across_dp`` are the tokens that each rank runs, ``num_reqs`` the largest number
    of requests of any rank. With no work on any rank, and where there is only one rank, all fields
    after ``descriptor`` are ``None``.
    """

    descriptor: BatchExecutionDescriptor
    num_tokens_across_dp: tuple[int, ...] | None = None
    uniform_token_count: int | None = None
    eager: bool | None = None
    num_reqs: int | None = None
    skip_drafts: bool | None = None


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


def as_batch(source: Mapping[str, Any] | object) -> Batch:
    """A batch from a mapping or from any object with the attributes of ``Batch``.

    Raises:
        BatchError: a field is missing, unknown, or a batch has tokens without requests.
    """
    known = fields_dict(Batch)
    if isinstance(source, Batch):
        batch = source
    elif isinstance(source, Mapping):
        unknown = [key for key in source if key not in known]
        missing = [key for key in ("num_reqs", "num_tokens") if key not in source]
        if unknown or missing:
            fault = f"unknown field {unknown[0]!r}" if unknown else f"field {missing[0]!r} is missing"
            raise BatchError(f"batch: {fault}; the fields are {', '.join(known)}")
        batch = Batch(**source)
    else:
        batch = Batch(**{name: getattr(source, name) for name in known if hasattr(source, name)})
    if batch.num_reqs < 0 or batch.num_tokens < batch.num_reqs:
        raise BatchError(
            f"batch: {batch.num_reqs} requests cannot share {batch.num_tokens} tokens; "
            "each request has at least one token"
        )
    return batch


def column(table: DispatchTable, batch: Mapping[str, Any] | object) -> tuple[int, ...]:
    """What a rank tells the others about its batch: seven integers.

    They are the tokens, the strength of the rank's own runtime mode (0 to 2), the uniform token
    count (0 for none), the longest query (-1 for none), whether microbatches are allowed, the
    requests, and whether drafting may be skipped.
    """
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
    table: DispatchTable,
    columns: Sequence[Sequence[int]],
    rank: int,
    batch: Mapping[str, Any] | object,
) -> Agreement:
    """What ``rank`` runs once it has the columns of all ranks; ``batch`` is its own.

    Raises:
        BatchError: a column does not have seven rows, or ``rank`` has none.
    """
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


def agree(table: DispatchTable, batches: Sequence[Mapping[str, Any] | object]) -> list[Agreement]:
    """The decision of every rank, in rank order; one rank alone has nobody to agree with."""
    own = [as_batch(batch) for batch in batches]
    columns = [column(table, batch) for batch in own]
    return [decide(table, columns, rank, batch) for rank, batch in enumerate(own)]


def _as_columns(columns: Sequence[Sequence[int]], rank: int) -> list[_Column]:
    rows = len(fields_dict(_Column))
    for index, values in enumerate(columns):
        if len(values) != rows:
            raise BatchError(f"column of rank {index}: {len(values)} rows; a column has {rows}")
    if not 0 <= rank < len(columns):
        raise BatchError(f"rank {rank}: there are {len(columns)} columns, for ranks from 0 on")
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
