"""What a drafter runs on the agreement of its target: no second exchange, the same answer on every rank.

Source: vLLM 0.33, reuse of a step's agreement by speculators (rules 6.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from executor.errors import InputError
from planner.batches import Agreement, as_batch
from planner.descriptors import BatchExecutionDescriptor
from planner.dispatch import DispatchTable
from planner.modes import CUDAGraphMode


def uniform_agreement(target: Agreement, num_reqs: int, query_len: int) -> Agreement:
    """The agreement of a pass of ``query_len`` tokens a request, for ``num_reqs`` requests of this rank.

    Every rank pads to the requests of the one that has the most. So the pass may be a graph even where
    the target had to run eagerly. ``descriptor`` is that of an eager pass; ``reused`` looks up a graph.

    Raises:
        InputError: the target's ranks have not agreed on requests, or on fewer than this rank has.
    """
    most, across = target.num_reqs, target.num_tokens_across_dp
    if most is None or across is None:
        raise InputError("the target's step has no agreement on requests; agree on the drafter's step itself")
    if num_reqs > most:
        raise InputError(
            f"{num_reqs} requests to draft for, but the ranks agreed on {most} at most; "
            "draft for the requests of the target's step"
        )
    tokens = most * query_len
    return evolve(
        target,
        descriptor=BatchExecutionDescriptor(CUDAGraphMode.NONE, tokens, most),
        num_tokens_across_dp=(tokens,) * len(across),
        uniform_token_count=query_len,
        eager=False,
    )


def reused(
    table: DispatchTable, agreement: Agreement, rank: int, batch: Mapping[str, Any] | object
) -> Agreement:
    """What ``rank`` runs for ``batch`` on an agreement that another pass of the same step came to.

    ``batch`` has the tokens that were agreed on. An eager agreement stays eager, unpadded.

    Raises:
        BatchError: no rank forms such a batch.
        InputError: there is no agreement, or the batch has other tokens.
    """
    own = as_batch(batch)
    across = agreement.num_tokens_across_dp
    if across is None or across[rank] != own.num_tokens:
        agreed = "nothing" if across is None else f"{across[rank]} tokens"
        raise InputError(
            f"a pass of {own.num_tokens} tokens on rank {rank}, which agreed on {agreed}; "
            "reuse the agreement of the same step"
        )
    if agreement.eager:
        eager = BatchExecutionDescriptor(
            CUDAGraphMode.NONE, own.num_tokens, own.num_reqs, num_active_loras=own.num_active_loras
        )
        return evolve(agreement, descriptor=eager)
    found = table.dispatch(
        num_reqs=own.num_reqs,
        num_tokens=own.num_tokens,
        uniform_token_count=agreement.uniform_token_count,
        num_active_loras=own.num_active_loras,
        max_query_len=own.max_query_len,
    )
    padded = (found.num_tokens,) * len(across) if found.num_tokens > own.num_tokens else across
    return evolve(agreement, descriptor=found, num_tokens_across_dp=padded)
