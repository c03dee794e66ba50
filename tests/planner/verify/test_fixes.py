"""The fix of a plan's findings about sizes is one, and it answers all of them, whatever the deployment."""

from __future__ import annotations

import random

from attrs import evolve

from planner import Deployment, Plan, PlanEntry, PlanError, compile_plan, load_plan
from planner.documents.plan import TARGET, Finding
from planner.modes import CUDAGraphMode, Runner
from planner.verify import verify
from tests.planner.verify.deployments import deployment, fixed, the

DEPLOYMENTS = range(400)
HOLES = {"decode-hole", "shadowed-by-tier", "mixed-hole"}
OF_SIZES = {
    *HOLES,
    "max-not-kept",
    "sizes-dropped",
    "max-in-requests",
    "sizes-for-another-k",
    "unaligned-sizes",
    "draft-buffer",
}
METHODS = ["ngram", "eagle3", "mtp", "dflash"]


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
    asked = deployment(
        seqs,
        drafts=drafts,
        method=draw.choice(METHODS),
        schedule=schedule,
        budget=budget,
        asked_max=draw.randint(1, 300) if sizes is None and draw.random() < 0.6 else None,
        sizes=sizes,
        mode=draw.choice([None, None, CUDAGraphMode.FULL, CUDAGraphMode.FULL_DECODE_ONLY]),
        max_loras=draw.choice([None, None, None, 3]),
        runner=runner,
    )
    specialize = draw.choice([None, None, False])
    return evolve(asked, compilation=evolve(asked.compilation, cudagraph_specialize_lora=specialize))


def of_sizes(plan: Plan) -> list[Finding]:
    """The findings that capture sizes decide."""
    return [finding for finding in plan.findings if finding.code in OF_SIZES]


def setting(finding: Finding) -> str | None:
    """The settings in a fix, without what else would help."""
    fix = finding.fix or ""
    fix = fix.partition("draft buffers of ")[0] if finding.code == "draft-buffer" else fix
    return fix.removesuffix(", or ") or None


def test_one_fix_answers_every_finding_about_sizes_of_a_compiled_plan() -> None:
    kinds = set()
    for seed in DEPLOYMENTS:
        asked = random_deployment(seed)
        try:
            plan = compile_plan(asked)
        except PlanError:
            continue
        findings = of_sizes(plan)
        fixes = {fix for finding in findings if (fix := setting(finding))}
        assert len(fixes) <= 1, (seed, fixes)
        assert all(setting(finding) for finding in findings if finding.code in HOLES), seed
        for fix in fixes:
            after = {finding.code for finding in of_sizes(fixed(asked, fix, plan))}
            answered = {finding.code for finding in findings if setting(finding)}
            assert not after & (HOLES | answered), (seed, fix, after)
            kinds.update(part.partition(":")[0] for part in fix.split(", ") if not part[0].isdigit())
    assert kinds >= {
        "max_cudagraph_capture_size",
        "leave max_cudagraph_capture_size out",
        "cudagraph_capture_sizes",
        "cudagraph_specialize_lora",
        "cudagraph_mode",
    }


def test_target_and_draft_share_one_fix_and_a_common_hole_is_told_once() -> None:
    asked = deployment(6, drafts=6, method="eagle3", asked_max=42)
    plan = compile_plan(asked)
    told = {finding.message.partition(": ")[0]: finding.fix for finding in of_sizes(plan)}
    fix = "cudagraph_capture_sizes: [1, 2, 4, 6, 8, 16, 24, 32, 40, 42]"
    assert told == {
        "graphs.target and graphs.draft_prefill": fix,
        "graphs.draft_decode": fix,
        "max_cudagraph_capture_size 42 is asked, 40 is in force": fix,
    }
    assert not of_sizes(fixed(asked, fix))


def test_families_that_lost_different_entries_are_told_apart() -> None:
    plan = compile_plan(deployment(6, drafts=6, method="eagle3", sizes=[6, 42]))
    assert not of_sizes(plan)
    kept = {
        family: tuple(entry for entry in entries if entry.mode is CUDAGraphMode.PIECEWISE)
        for family, entries in plan.graphs.items()
    }
    fixes = [finding.fix or "" for finding in verify(evolve(plan, graphs=kept)) if finding.code in HOLES]
    assert [fix.partition(":")[0] for fix in fixes] == [f"add to graphs.{family}" for family in plan.graphs]


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
