"""The fix of a hole closes it, whatever the deployment."""

from __future__ import annotations

import random

from attrs import evolve

from planner import Deployment, Plan, PlanEntry, PlanError, compile_plan, load_plan
from planner.documents.plan import TARGET
from planner.modes import CUDAGraphMode, Runner
from planner.verify import verify
from planner.verify.fixes import closing_setting, request_behind
from planner.verify.holes import HoleGroup, grouped_decode_holes
from planner.verify.survey import survey_of
from tests.planner.verify.deployments import deployment, fixed, the

DEPLOYMENTS = range(300)


def random_deployment(seed: int) -> Deployment:
    """Settings of the kind that users get wrong: maxima and lists that fit nothing."""
    draw = random.Random(seed)
    seqs, drafts = draw.randint(1, 70), draw.choice([0, 0, 1, 2, 4, 6, 15])
    runner = draw.choice([Runner.V2, Runner.V2, Runner.V1])
    budget = draw.choice([64, 300, 1024, 8192])
    schedule = None
    if drafts and draw.random() < 0.4:
        middle = draw.randint(1, seqs)
        schedule = [(1, middle, drafts), (middle + 1, middle + 50, draw.randint(0, drafts))]
    sizes = draw.sample(range(1, 200), draw.randint(1, 12)) if draw.random() < 0.4 else None
    return deployment(
        seqs,
        drafts=drafts,
        schedule=schedule,
        budget=budget,
        asked_max=draw.randint(1, 300) if sizes is None and draw.random() < 0.6 else None,
        sizes=sizes,
        mode=draw.choice([None, None, CUDAGraphMode.FULL, CUDAGraphMode.FULL_DECODE_ONLY]),
        max_loras=draw.choice([None, None, None, 3]),
        runner=runner,
    )


def batches_without_full(plan: Plan) -> set[tuple[int, int]]:
    """Query length and requests of every decode batch without a FULL graph."""
    return {batch for group in grouped_decode_holes(survey_of(plan, TARGET)) for batch in batches_of(group)}


def batches_of(group: HoleGroup) -> set[tuple[int, int]]:
    return {
        (group.query_len, num_reqs) for hole in group.holes for num_reqs in range(hole.fewest, hole.most + 1)
    }


def test_every_hole_of_a_compiled_plan_has_a_fix_that_closes_it() -> None:
    kinds = set()
    for seed in DEPLOYMENTS:
        asked = random_deployment(seed)
        try:
            plan = compile_plan(asked)
        except PlanError:
            continue
        survey = survey_of(plan, TARGET)
        for group in grouped_decode_holes(survey):
            fix = closing_setting(survey, group, request_behind(plan))
            assert fix is not None
            assert not batches_of(group) & batches_without_full(fixed(asked, fix)), (seed, fix)
            kinds.add((group.shadowed, fix.partition(":")[0]))
    assert kinds == {
        (False, "max_cudagraph_capture_size"),
        (False, "leave max_cudagraph_capture_size out"),
        (False, "cudagraph_capture_sizes"),
        (True, "cudagraph_capture_sizes"),
    }


def test_the_hole_of_a_plan_by_hand_is_closed_by_an_entry() -> None:
    plan = load_plan(
        """
        apiVersion: graphplan/v1
        kind: Plan
        deployment: {scheduler: {max_num_seqs: 12}}
        graphs:
          target:
          - {mode: FULL, num_tokens: 8, num_reqs: 8, uniform_token_count: 1}
        """
    )
    (hole,) = (finding for finding in verify(plan) if finding.code == "decode-hole")
    assert hole.message == "uniform decode of 9 to 12 requests has no graph: 9 to 12 tokens run eagerly"
    assert hole.fix == "add to graphs.target: FULL 12 tokens, 12 requests of 1"
    added = PlanEntry(CUDAGraphMode.FULL, 12, 12, 1)
    closed = evolve(plan, graphs={TARGET: (added, *plan.entries())})
    assert "decode-hole" not in {finding.code for finding in verify(closed)}


def test_a_compiled_plan_that_lost_an_entry_is_told_which() -> None:
    plan = compile_plan(deployment(8))
    lost = evolve(plan, graphs={TARGET: tuple(one for one in plan.entries() if one.num_tokens != 8)})
    fixes = {finding.code: finding.fix for finding in verify(lost)}
    assert fixes["decode-hole"] == "add to graphs.target: FULL 8 tokens, 8 requests of 1"
    assert "mixed-hole" not in fixes
    cut = evolve(plan, graphs={TARGET: tuple(one for one in plan.entries() if one.num_tokens < 8)})
    assert {finding.code: finding.fix for finding in verify(cut)}["mixed-hole"] == (
        "add to graphs.target: {mode: PIECEWISE, num_tokens: 16}"
    )


def test_v1_without_graphs_for_batches_without_lora_is_told_the_switch() -> None:
    asked = deployment(8, max_loras=2, runner=Runner.V1)
    asked = evolve(asked, compilation=evolve(asked.compilation, cudagraph_specialize_lora=False))
    for code in ("decode-hole", "mixed-hole"):
        finding = the(compile_plan(asked), code)
        assert " without LoRA " in finding.message
        assert finding.fix == "cudagraph_specialize_lora: true"
