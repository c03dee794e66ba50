"""Sizes that cover: the faults that users reported, and properties of all deployments."""

from collections.abc import Iterator
from typing import Any

import pytest
from attrs import evolve
from hypothesis import assume, given, reject

from planner import Deployment, Plan, PlanError, compile_plan
from planner.documents.deployment import CaptureSection
from planner.documents.plan import TARGET
from planner.modes import CapturePolicy, CUDAGraphMode
from planner.testing import deployments
from tests.planner.policies.documents import HOLES, compiled, decision, deployed, sizes_of, unwanted

FULL = CUDAGraphMode.FULL


def decode(plan: Plan, num_reqs: int, query_len: int = 1, family: str = TARGET) -> tuple[Any, int]:
    table: Any = plan.dispatch_table(family)
    found = table.dispatch(num_reqs, num_reqs * query_len, query_len, max_query_len=query_len)
    return found.cg_mode, found.num_tokens


def drafting(drafts: int, method: str = "ngram", **more: Any) -> dict[str, Any]:
    return {"method": method, "num_speculative_tokens": drafts, **more}


def test_six_requests_of_seven_tokens_have_graphs_of_their_own() -> None:
    """vllm#54933: 42 = 6 x 7 was lost, and a full batch ran eagerly."""
    sections = {"scheduler": {"max_num_seqs": 6}, "speculative": drafting(6)}
    for more in ({}, {"compilation": {"max_cudagraph_capture_size": 42}}):
        plan = compiled(**sections, **more)
        assert [decode(plan, reqs, 7) for reqs in range(1, 7)] == [(FULL, 7 * reqs) for reqs in range(1, 7)]
        assert not unwanted(plan)
    assert plan.resolved[TARGET].max_cudagraph_capture_size == 42


@pytest.mark.parametrize("seqs", [3, 12, 14, 20])
def test_the_most_requests_have_an_exact_graph_and_none_above(seqs: int) -> None:
    """vllm-ascend#16049: 9 to 12 requests of 12 ran eagerly, as sizes ended at 8."""
    plan = compiled(scheduler={"max_num_seqs": seqs})
    assert decode(plan, seqs) == (FULL, seqs)
    assert all(decode(plan, reqs)[0] is FULL for reqs in range(1, seqs + 1))
    assert max(entry.num_reqs or 0 for entry in plan.entries()) == seqs


@pytest.mark.parametrize(("seqs", "drafts"), [(32, 16), (128, 15), (256, 3), (512, 16), (64, 7)])
@pytest.mark.parametrize("method", ["ngram", "dflash"])
def test_all_batches_of_several_tokens_are_covered_with_fewer_graphs_than_the_engine_makes(
    seqs: int, drafts: int, method: str
) -> None:
    """vllm PR#50488: 32 requests of 17 had one decode graph, 128 of 16 still have graphs up to 32."""
    sections = {
        "scheduler": {"max_num_seqs": seqs, "max_num_batched_tokens": 16384},
        "speculative": drafting(drafts, method),
    }
    plan, engine = compiled(**sections), compiled("engine", **sections)
    assert not unwanted(plan)
    for reqs in range(1, seqs + 1):
        mode, tokens = decode(plan, reqs, drafts + 1)
        assert mode is FULL
        assert tokens < 2 * reqs * (drafts + 1)
    assert decode(plan, 1, drafts + 1) == (FULL, drafts + 1)
    assert decode(plan, seqs, drafts + 1) == (FULL, seqs * (drafts + 1))
    assert sum(map(len, plan.graphs.values())) <= sum(map(len, engine.graphs.values()))


def test_decode_graphs_are_whole_requests_in_every_mode() -> None:
    """vllm PR#46324: graphs of 112 tokens for 7 requests of 16 led to illegal accesses, also in pieces."""
    for mode in ("FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "PIECEWISE", "FULL"):
        plan = compiled(
            scheduler={"max_num_seqs": 6},
            speculative=drafting(3),
            compilation={"cudagraph_mode": mode},
        )
        assert all(size % 4 == 0 for size in sizes_of(plan))
        assert not unwanted(plan)


def test_a_draft_of_another_width_has_graphs_of_its_own_width() -> None:
    """vllm-ascend PR#12296: 16 requests are 128 rows of a target and 112 of its draft."""
    plan = compiled(scheduler={"max_num_seqs": 16}, speculative=drafting(7, "dspark"))
    assert decode(plan, 16, 8) == (FULL, 128)
    assert decode(plan, 16, 7, "draft") == (FULL, 112)
    assert not unwanted(plan)


def test_every_tier_of_a_schedule_is_covered_up_to_its_widest_batch() -> None:
    """vllm#48494 and vllm-ascend#16637: drafts by batch size."""
    for schedule, tiers in (
        ([[1, 64, 3], [65, 128, 1], [129, 512, 0]], {4: 64, 2: 128, 1: 512}),
        ([[1, 8, 3], [9, 32, 0]], {4: 8, 1: 32}),
    ):
        plan = compiled(
            scheduler={"max_num_seqs": max(tiers.values())},
            speculative=drafting(3, num_speculative_tokens_per_batch_size=schedule),
        )
        for length, widest in tiers.items():
            assert all(decode(plan, reqs, length)[0] is FULL for reqs in range(1, widest + 1))
            assert decode(plan, widest, length) == (FULL, widest * length)
            assert decode(plan, 1, length) == (FULL, length)
            reqs = [entry.num_reqs for entry in plan.entries() if entry.uniform_token_count == length]
            assert max(filter(None, reqs)) == widest
        assert not unwanted(plan)


def test_lengths_without_a_small_common_multiple_do_not_hide_each_others_graphs() -> None:
    plan = compiled(
        scheduler={"max_num_seqs": 40},
        speculative=drafting(
            16, num_speculative_tokens_per_batch_size=[[1, 9, 16], [10, 20, 6], [21, 40, 4]]
        ),
    )
    for length, widest in ((17, 9), (7, 20), (5, 40)):
        assert all(decode(plan, reqs, length)[0] is FULL for reqs in range(1, widest + 1))


def test_query_length_and_sequence_parallel_ranks_are_met_together() -> None:
    """LightLLM: rounding to 3 and then to 2 leaves sizes that are no multiples of 3."""
    sections: dict[str, Any] = {
        "scheduler": {"max_num_seqs": 14},
        "speculative": drafting(2),
        "parallel": {"tensor_parallel_size": 2, "data_parallel_size": 2, "enable_expert_parallel": True},
    }
    plan = compiled(**sections)
    assert all(size % 6 == 0 for size in sizes_of(plan))
    assert decision(plan, "sizes-aligned").became == 6
    plain = compiled(**{**sections, "parallel": {"tensor_parallel_size": 2}})
    assert decode(plain, 1, 3) == (FULL, 3)
    assert not unwanted(plan)


def test_a_joint_multiple_beyond_the_widest_batch_is_given_up_and_said_so() -> None:
    plan = compiled(
        scheduler={"max_num_seqs": 2},
        speculative=drafting(2),
        parallel={"tensor_parallel_size": 8, "data_parallel_size": 2, "enable_expert_parallel": True},
    )
    aligned = decision(plan, "sizes-aligned")
    assert (aligned.asked, aligned.became) == (24, 3)
    assert "should be multiples of 24, but the widest batch has 6" in aligned.because
    assert not unwanted(plan)


def test_portions_of_deepep_are_whole_from_the_first_on() -> None:
    plan = compiled(
        scheduler={"max_num_seqs": 100, "max_num_batched_tokens": 2048},
        parallel={
            "data_parallel_size": 2,
            "enable_expert_parallel": True,
            "all2all_backend": "deepep_low_latency",
        },
    )
    assert decode(plan, 1) == (FULL, 1)
    assert decode(plan, 100) == (FULL, 100)
    assert all(size % 8 == 0 for size in sizes_of(plan) if size > 8 and size != 100)


def test_graphs_that_a_schedule_rules_out_are_left_out_and_said_so() -> None:
    plan = compiled(
        scheduler={"max_num_seqs": 512},
        speculative=drafting(3, num_speculative_tokens_per_batch_size=[[1, 64, 3], [65, 512, 0]]),
    )
    dropped = decision(plan, "unreachable-not-captured")
    assert dropped.path == "graphs.target"
    assert dropped.asked > dropped.became == len(plan.entries())


def test_a_lora_case_of_dummy_batches_alone_is_not_captured() -> None:
    plan = compiled(lora={"max_loras": 4, "specialize_active_lora": True})
    assert plan.resolved[TARGET].lora_cases == (0, 1, 2, 4)
    assert not unwanted(plan)


def test_the_plan_says_what_covering_buys() -> None:
    plan = compiled(scheduler={"max_num_seqs": 128}, speculative=drafting(15))
    because = decision(plan, "covering").because
    assert "is padded by 9.7% at most" in because
    assert "80 graphs, the engine's own sizes make 83 and leave 33 to 128 requests of 16 without" in because


def test_nothing_is_covered_where_nothing_is_recorded() -> None:
    plan = compiled(model={"enforce_eager": True})
    assert plan.graphs[TARGET] == ()


@pytest.mark.parametrize(
    ("compilation", "message"),
    [
        ({"max_cudagraph_capture_size": 512}, "decode of 64 requests of 16 has 1024 tokens; raise it"),
        ({"max_cudagraph_capture_size": 4096}, "a step has at most 2048 tokens"),
        ({"cudagraph_capture_sizes": [16, 32]}, "leaves 3 to 64 requests of 16 without a FULL graph"),
        ({"cudagraph_capture_sizes": [16, 4096]}, "no step has as many tokens as 4096"),
        (
            {"cudagraph_capture_sizes": [16, 24, 1024], "cudagraph_mode": "FULL_DECODE_ONLY"},
            "no graph has exactly the tokens of 24",
        ),
    ],
)
def test_what_a_user_wrote_is_kept_or_refused(compilation: dict[str, Any], message: str) -> None:
    """vllm-ascend PR#3909: an error that names the sizes, no silent rounding."""
    with pytest.raises(PlanError, match=message):
        compiled(
            scheduler={"max_num_seqs": 64, "max_num_batched_tokens": 2048},
            speculative=drafting(15),
            compilation=compilation,
        )


def test_sizes_that_v1_would_round_are_refused() -> None:
    sections: dict[str, Any] = {
        "engine": {"runner": "v1"},
        "scheduler": {"max_num_seqs": 14},
        "speculative": drafting(2, "mtp"),
    }
    with pytest.raises(PlanError, match="whole requests of 3 tokens, which 4, 8 are not"):
        compiled(**sections, compilation={"cudagraph_capture_sizes": [4, 8, 42]})
    with pytest.raises(PlanError, match="captures whole requests of 3 tokens; write 45"):
        compiled(**sections, compilation={"max_cudagraph_capture_size": 44})
    assert sizes_of(compiled(**sections, compilation={"max_cudagraph_capture_size": 45}))[-1] == 45


def test_sizes_of_a_user_that_cover_are_captured_as_they_are() -> None:
    plan = compiled(scheduler={"max_num_seqs": 8}, compilation={"cudagraph_capture_sizes": [8, 1, 3]})
    assert sizes_of(plan) == (1, 3, 8)
    assert not unwanted(plan)


def test_limits_make_the_grid_coarser_until_they_cannot_be_kept() -> None:
    def limited(**limits: Any) -> Plan:
        return compiled(scheduler={"max_num_seqs": 256}, capture=limits)

    assert len(sizes_of(limited())) == 32
    assert len(sizes_of(limited(max_graphs=12))) <= 12
    with pytest.raises(PlanError, match=r"capture.max_graphs: 4 is the limit, but covering needs 10 sizes"):
        limited(max_graphs=4)
    fine, coarse = limited(max_padding=0.12), limited(max_padding=0.34)
    assert len(sizes_of(fine)) > len(sizes_of(coarse))
    with pytest.raises(PlanError, match="covering pads some decode batch by"):
        limited(max_padding=0.01)
    with pytest.raises(PlanError, match=r"capture.memory_budget: 0.1 GiB is the limit, but covering needs"):
        limited(memory_budget=0.1)


# Properties of all deployments -------------------------------------------------------------------


def open_sizes(deployment: Deployment) -> Deployment:
    """``deployment`` where sizes are left to whoever chooses them."""
    compilation = evolve(
        deployment.compilation, cudagraph_capture_sizes=None, max_cudagraph_capture_size=None
    )
    return evolve(deployment, compilation=compilation)


OPEN = deployments().map(open_sizes)


def covered(deployment: Deployment) -> Plan:
    """The plan of covering; an example without one is left out, and the engine has to refuse it too."""
    try:
        return compile_plan(evolve(deployment, capture=CaptureSection(policy=CapturePolicy.COVERING)))
    except PlanError:
        with pytest.raises(PlanError):
            compile_plan(deployment)
        reject()


def holes(plan: Plan) -> Iterator[str]:
    return (finding.message for finding in plan.findings if finding.code in HOLES)


@given(OPEN)
def test_covering_leaves_no_hole_and_no_dead_graph(deployment: Deployment) -> None:
    plan = covered(deployment)
    engine = compile_plan(deployment)
    assert not unwanted(plan)
    assert {finding.code for finding in plan.findings} <= {finding.code for finding in engine.findings} | {
        "graph-count",
        "policy-without-effect",
    }
    if not list(holes(engine)):
        for family, entries in plan.graphs.items():
            assert len(entries) <= len(engine.graphs[family])


@given(OPEN)
def test_every_decode_graph_is_of_whole_requests_and_the_ends_are_exact(deployment: Deployment) -> None:
    plan = covered(deployment)
    target = plan.resolved[TARGET]
    uniform = [entry for entry in plan.entries() if entry.uniform_token_count and entry.num_ubatches == 1]
    assert all(
        entry.num_tokens == (entry.num_reqs or 0) * (entry.uniform_token_count or 0) for entry in uniform
    )
    active, budget = target.max_num_active_seqs, target.max_num_batched_tokens or 1
    for length in {entry.uniform_token_count or 1 for entry in uniform}:
        reqs = {entry.num_reqs for entry in uniform if entry.uniform_token_count == length}
        assert 1 in reqs
        if len(target.uniform_query_lens) == 1:
            assert min(target.max_num_seqs or 1, active or budget, budget // length) in reqs


@given(OPEN)
def test_the_engine_covers_the_same_batches_with_sizes_from_covering(deployment: Deployment) -> None:
    """But for a block draft whose own length is none of its schedule's: of that the engine has no graph."""
    plan = covered(deployment)
    sizes = sizes_of(plan)
    assume(sizes)
    compilation = evolve(deployment.compilation, cudagraph_capture_sizes=sizes)
    exported = compile_plan(evolve(deployment, compilation=compilation))
    assert sizes_of(exported) == sizes
    assert [message for message in holes(exported) if not message.startswith("graphs.draft:")] == []
    again = evolve(deployment, compilation=compilation, capture=CaptureSection(policy=CapturePolicy.COVERING))
    assert compile_plan(again).graphs == plan.graphs


@given(deployments(valid_only=True))
def test_what_was_written_is_in_force_or_refused(deployment: Deployment) -> None:
    asked = deployment.compilation
    try:
        plan = compile_plan(evolve(deployment, capture=CaptureSection(policy=CapturePolicy.COVERING)))
    except PlanError:
        if not asked.cudagraph_capture_sizes and not asked.max_cudagraph_capture_size:
            raise
        return
    target = plan.resolved[TARGET]
    if target.cudagraph_mode:
        assert asked.max_cudagraph_capture_size in (None, target.max_cudagraph_capture_size)
        if asked.cudagraph_capture_sizes is not None:
            assert sizes_of(plan) == tuple(sorted(set(asked.cudagraph_capture_sizes)))


def test_the_policy_is_for_vllm_alone() -> None:
    with pytest.raises(PlanError, match="covering is a policy for vllm only; sglang is planned by its own"):
        compile_plan(deployed(engine={"name": "sglang"}))
