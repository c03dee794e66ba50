"""Data-parallel ranks: what they run is the same, or the plan has an error that says where it is not."""

from __future__ import annotations

import pytest
from attrs import evolve

from planner import Plan, PlanEntry, agree, compile_plan
from planner.documents.deployment import ParallelSection
from planner.documents.plan import TARGET, Severity
from planner.modes import CUDAGraphMode, Runner
from planner.verify import verify
from planner.verify.ranks import disagreements
from planner.verify.survey import survey_of
from tests.planner.verify.brute_ranks import parting_pair
from tests.planner.verify.deployments import deployment, found
from tests.planner.verify.random_plans import random_plan

QUICK = range(80)
ALL = range(80, 700)

WRONG_IN_THEMSELVES = {"impossible-entry", "misaligned-size"}
"""Findings of entries that no runner has; how ranks use those is not asked."""


def assert_agrees(plan: Plan) -> bool:
    """Whether the ranks part, by trial; verification has to say the same."""
    if WRONG_IN_THEMSELVES & {finding.code for finding in verify(plan)}:
        return False
    parting = parting_pair(plan)
    assert bool(list(disagreements(survey_of(plan, TARGET)))) == (parting is not None), parting
    return parting is not None


@pytest.mark.parametrize("runner", [Runner.V2, Runner.V1], ids=str)
def test_ranks_part_exactly_where_verification_says(runner: Runner) -> None:
    assert sum(assert_agrees(random_plan(seed, runner, ranks=2)) for seed in QUICK) > 0


@pytest.mark.slow
@pytest.mark.parametrize("runner", [Runner.V2, Runner.V1], ids=str)
def test_ranks_of_many_more_plans_part_exactly_where_verification_says(runner: Runner) -> None:
    assert sum(assert_agrees(random_plan(seed, runner, ranks=2)) for seed in ALL) > 0


def across_ranks(max_loras: int | None = None, runner: Runner = Runner.V2) -> Plan:
    asked = deployment(8, max_loras=max_loras, runner=runner)
    return compile_plan(evolve(asked, parallel=ParallelSection(data_parallel_size=4)))


@pytest.mark.parametrize("runner", [Runner.V1, Runner.V2], ids=str)
def test_ranks_of_a_compiled_plan_always_agree(runner: Runner) -> None:
    assert not found(across_ranks(max_loras=4, runner=runner), "dp-disagreement")


@pytest.mark.parametrize("runner", [Runner.V1, Runner.V2], ids=str)
def test_a_lora_case_that_lacks_a_size_parts_the_ranks(runner: Runner) -> None:
    """TensorRT-LLM PR#17412: ranks may pick different LoRA variants, and then wait for each other."""
    plan = across_ranks(max_loras=4, runner=runner)
    kept = tuple(one for one in plan.entries() if one.num_active_loras != 2 or one.num_tokens != 8)
    (error,) = (one for one in verify(evolve(plan, graphs={TARGET: kept})) if one.code == "dp-disagreement")
    assert error.severity == Severity.ERROR
    assert "graphs.target: data-parallel ranks can part at 8 tokens" in error.message


def test_a_graph_for_too_few_requests_parts_the_ranks() -> None:
    plan = across_ranks()
    narrow = PlanEntry(CUDAGraphMode.FULL, 16, 2)
    parted = evolve(plan, graphs={TARGET: (*plan.entries(), narrow)})
    (error,) = (one for one in verify(parted) if one.code == "dp-disagreement")
    assert error.message == (
        "graphs.target: data-parallel ranks can part at 16 tokens: "
        "FULL 16 tokens, 2 requests serves a rank of at most 2 requests and no other"
    )


def test_one_rank_alone_has_nobody_to_part_from() -> None:
    plan = compile_plan(deployment(8))
    parted = evolve(plan, graphs={TARGET: (*plan.entries(), PlanEntry(CUDAGraphMode.FULL, 16, 2))})
    assert "dp-disagreement" not in {one.code for one in verify(parted)}


def test_a_decode_rank_parts_from_a_mixed_one_that_brings_more_tokens_than_it_can_follow() -> None:
    entries = (PlanEntry(CUDAGraphMode.FULL, 16, 2), PlanEntry(CUDAGraphMode.FULL, 8, 8, 1))
    plan = evolve(across_ranks(), graphs={TARGET: entries})
    decode = {"num_reqs": 8, "num_tokens": 8, "uniform_token_count": 1, "max_query_len": 1}
    answers = agree(plan.dispatch_table(TARGET), [decode, {"num_reqs": 2, "num_tokens": 16}])
    assert [answer.descriptor.num_tokens for answer in answers] == [16, 16]
    assert [answer.descriptor.cg_mode for answer in answers] == [CUDAGraphMode.NONE, CUDAGraphMode.FULL]
    assert "dp-disagreement" in {one.code for one in verify(plan)}
