"""Agreement of data-parallel ranks by the rules of the V1 runner: first the graphs, then the tokens.

Each rank dispatches on its own and tells the others what came out; the weakest runtime mode wins,
and the ranks pad to the largest of them where any graph or microbatch is to run.
Source: vLLM 0.33, V1 data-parallel coordination (rules 4.7 and 6.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, fields_dict, frozen

from planner.batches import Agreement, Batch, as_batch, refuse_foreign_columns
from planner.descriptors import BatchExecutionDescriptor
from planner.dispatch_v1 import V1DispatchTable
from planner.errors import BatchError
from planner.modes import CUDAGraphMode
from planner.rules.microbatch import passes_threshold
from planner.rules.ubatch_slices import is_last_ubatch_empty


@frozen
class V1Column:
    """One rank's column, in the order in which the rows are exchanged.

    ``strength`` is that of the rank's own runtime mode, and ``num_tokens_padded`` what it would
    run in that mode; ``attempts_ubatching`` is 1 where the rank would cut its step.
    """

    num_tokens: int
    num_tokens_padded: int
    attempts_ubatching: int
    strength: int


_NUM_ROWS = len(fields_dict(V1Column))


@frozen
class Synchronised:
    """What all ranks derive from the columns: the same on every one of them."""

    mode: CUDAGraphMode
    num_tokens_across_dp: tuple[int, ...]
    num_ubatches: int


def column(table: V1DispatchTable, batch: Mapping[str, Any] | object) -> tuple[int, ...]:
    """What a rank tells the others about its batch: four integers.

    They are its tokens before and after padding, whether it would cut them into microbatches, and
    the strength of its own runtime mode (0 to 2).
    """
    own = as_batch(batch)
    descriptor = _own_descriptor(table, own)
    attempts = own.allow_ubatching and passes_threshold(
        table.microbatching, own.num_tokens, _is_uniform_decode(table, own)
    )
    return own.num_tokens, descriptor.num_tokens, int(attempts), descriptor.cg_mode.strength


def synchronise(columns: Sequence[V1Column], num_ubatches: int) -> Synchronised:
    """The step that all ranks run; ``num_ubatches`` is how many a cut step has.

    Without graphs and microbatches each rank keeps its own padded tokens, those that it had padded
    for a graph included.
    """
    mode = min(own.strength for own in columns)
    padded = tuple(own.num_tokens_padded for own in columns)
    smallest, largest = min(own.num_tokens for own in columns), max(padded)
    attempted = num_ubatches > 1 and all(own.attempts_ubatching for own in columns)
    cut = attempted and not is_last_ubatch_empty(smallest, largest, num_ubatches)
    if cut or mode != CUDAGraphMode.NONE.strength:
        padded = (largest,) * len(padded)
    return Synchronised(CUDAGraphMode(mode), padded, num_ubatches if cut else 1)


def decide(
    table: V1DispatchTable,
    columns: Sequence[Sequence[int]],
    rank: int,
    batch: Mapping[str, Any] | object,
) -> Agreement:
    """What ``rank`` runs once it has the columns of all ranks; ``batch`` is its own.

    Raises:
        BatchError: a column is no V1 column, ``rank`` has none, or the rank lacks the graph that
            the others agreed on.
    """
    own = as_batch(batch)
    ranks = _as_columns(columns, rank)
    if len(ranks) == 1:
        return Agreement(_own_descriptor(table, own))
    num_ubatches = table.microbatching.num_ubatches if table.microbatching else 1
    step = synchronise(ranks, num_ubatches)
    num_tokens = step.num_tokens_across_dp[rank]
    descriptor = _descriptor(table, own, num_tokens, step.mode, step.num_ubatches)
    if descriptor.num_tokens != num_tokens:
        raise BatchError(
            f"rank {rank}: the ranks agreed on {num_tokens} tokens, but its own {step.mode} graph has "
            f"{descriptor.num_tokens}; run the same plan on every rank"
        )
    eager = step.mode is CUDAGraphMode.NONE
    return Agreement(descriptor, step.num_tokens_across_dp, eager=eager)


def _as_columns(columns: Sequence[Sequence[int]], rank: int) -> list[V1Column]:
    refuse_foreign_columns(columns, rank, _NUM_ROWS)
    for index, values in enumerate(columns):
        if not 0 <= values[-1] <= CUDAGraphMode.FULL.strength:
            raise BatchError(f"column of rank {index}: {values[-1]} is no runtime mode; those are 0 to 2")
    return [V1Column(*values) for values in columns]


def _is_uniform_decode(table: V1DispatchTable, batch: Batch) -> bool:
    return batch.uniform_decode or batch.uniform_token_count == table.decode_query_len


def _own_descriptor(table: V1DispatchTable, batch: Batch) -> BatchExecutionDescriptor:
    return _descriptor(table, batch, batch.num_tokens, CUDAGraphMode.NONE if batch.need_eager else None)


def _descriptor(
    table: V1DispatchTable, batch: Batch, num_tokens: int, mode: CUDAGraphMode | None, num_ubatches: int = 1
) -> BatchExecutionDescriptor:
    """What the rank runs ``num_tokens`` tokens in, in ``mode`` alone where one is given."""
    entry = table.entry_for(
        num_tokens,
        _is_uniform_decode(table, batch),
        batch.num_active_loras,
        valid_modes=None if mode is None else {mode},
    )
    if entry is None:
        return BatchExecutionDescriptor(
            CUDAGraphMode.NONE, num_tokens, batch.num_reqs, num_ubatches=num_ubatches
        )
    return evolve(entry.execution_descriptor, num_ubatches=num_ubatches)
