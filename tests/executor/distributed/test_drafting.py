"""A drafter on its target's agreement: the same answer on all ranks, without a second exchange."""

from __future__ import annotations

from typing import Any

import pytest

from executor.distributed.drafting import reused, uniform_agreement
from executor.errors import InputError
from planner import agree, load_plan
from planner.batches import Agreement, Batch
from planner.dispatch import DispatchTable
from planner.modes import CUDAGraphMode
from tests.executor.distributed.cases import DECODE

DRAFT = """
apiVersion: graphplan/v1
kind: Plan
graphs:
  target:
  - {mode: FULL, num_tokens: 32, num_reqs: 8, uniform_token_count: 4}
  - {mode: FULL, num_tokens: 16, num_reqs: 4, uniform_token_count: 4}
"""


def table(text: str = DRAFT) -> DispatchTable:
    found = load_plan(text).dispatch_table("target")
    assert isinstance(found, DispatchTable)
    return found


def decode(reqs: int, **fields: Any) -> dict[str, Any]:
    return {"num_reqs": reqs, "num_tokens": reqs, "uniform_token_count": 1, **fields}


def drafted(target: list[Agreement], reqs: list[int], query_len: int = 4) -> list[Agreement]:
    found = []
    for rank, agreement in enumerate(target):
        uniform = uniform_agreement(agreement, reqs[rank], query_len)
        tokens = uniform.descriptor.num_tokens
        batch = Batch(num_reqs=tokens // query_len, num_tokens=tokens, uniform_token_count=query_len)
        found.append(reused(table(), uniform, rank, batch))
    return found


@pytest.mark.parametrize("eager", [False, True])
def test_ranks_draft_for_the_most_requests_of_any_even_where_the_target_ran_eagerly(eager: bool) -> None:
    target = agree(table(DECODE), [decode(3, need_eager=eager), decode(1), decode(2)])
    assert target[0].eager is eager
    for agreement in drafted(target, [3, 1, 2]):
        assert agreement.descriptor.cg_mode is CUDAGraphMode.FULL
        assert (agreement.descriptor.num_tokens, agreement.num_tokens_across_dp) == (16, (16, 16, 16))
        assert (agreement.eager, agreement.uniform_token_count, agreement.num_reqs) == (False, 4, 3)


def test_a_pass_of_the_same_tokens_takes_the_targets_agreement_over() -> None:
    target = agree(table(DECODE), [decode(3), decode(2)])
    again = reused(table(DECODE), target[1], 1, decode(4))
    assert again == target[1]


def test_a_pass_on_an_eager_agreement_is_eager_and_unpadded() -> None:
    target = agree(table(DECODE), [decode(3, need_eager=True), decode(2)])
    again = reused(table(DECODE), target[1], 1, decode(2))
    assert again == target[1]
    assert (again.descriptor.cg_mode, again.descriptor.num_tokens) == (CUDAGraphMode.NONE, 2)


def test_a_pass_of_other_tokens_is_refused() -> None:
    target = agree(table(DECODE), [decode(3), decode(2)])
    with pytest.raises(InputError, match="a pass of 2 tokens on rank 1, which agreed on 4 tokens"):
        reused(table(DECODE), target[1], 1, decode(2))


def test_more_requests_than_were_agreed_on_are_refused() -> None:
    target = agree(table(DECODE), [decode(3), decode(2)])
    with pytest.raises(InputError, match="4 requests to draft for, but the ranks agreed on 3"):
        uniform_agreement(target[0], 4, 4)


def test_a_step_without_work_has_nothing_to_draft_on() -> None:
    idle = {"num_reqs": 0, "num_tokens": 0}
    (agreement, _) = agree(table(DECODE), [idle, idle])
    with pytest.raises(InputError, match="no agreement on requests"):
        uniform_agreement(agreement, 0, 4)
    with pytest.raises(InputError, match="agreed on nothing"):
        reused(table(DECODE), agreement, 0, idle)
