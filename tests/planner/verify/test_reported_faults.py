"""Faults that users of serving engines reported, each stated as what a user would expect.

Where the engine's answer is odd, the plan equals it, and a finding says so with a fix that works.
"""

from __future__ import annotations

import pytest
from attrs import evolve

from planner import Deployment, DispatchTable, PlanError, compile_plan
from planner.descriptors import BatchExecutionDescriptor
from planner.documents.deployment import HfConfig
from planner.documents.plan import TARGET, Severity
from planner.modes import CUDAGraphMode, Runner
from planner.verify import verify
from tests.planner.verify.deployments import deployment, fixed, found, the

FULL, PIECEWISE, NONE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, CUDAGraphMode.NONE


def decode(asked: Deployment, num_reqs: int, query_len: int = 1) -> BatchExecutionDescriptor:
    table = compile_plan(asked).dispatch_table(TARGET)
    assert isinstance(table, DispatchTable)
    return table.dispatch(num_reqs, num_reqs * query_len, query_len, max_query_len=query_len)


def test_a_maximum_that_is_a_decode_batch_is_captured_or_the_plan_says_why_not() -> None:
    """vllm#54933: 6 requests of 7 tokens and a maximum of 42 ran eagerly, as 42 became 40."""
    asked = deployment(6, drafts=6, asked_max=42)
    plan = compile_plan(asked)
    assert plan.resolved[TARGET].max_cudagraph_capture_size == 40
    assert decode(asked, 6, 7).cg_mode is NONE
    hole, changed = the(plan, "decode-hole"), the(plan, "max-not-kept")
    assert hole.severity == changed.severity == Severity.WARNING
    assert hole.message == "uniform decode of 6 requests has no graph: 42 tokens run eagerly"
    assert changed.message.startswith("max_cudagraph_capture_size 42 is asked, 40 is in force")
    assert hole.fix == changed.fix == "max_cudagraph_capture_size: 48"
    again = fixed(asked, hole.fix)
    assert not found(again, "decode-hole")
    assert not found(again, "max-not-kept")
    assert (FULL, 42) in {(entry.mode, entry.num_tokens) for entry in again.entries()}


def test_v1_says_the_same_of_a_maximum_that_it_rounds_away() -> None:
    """vllm#54933 on the V1 runner: 40 is rounded to 35, the next multiple of 7 that is no larger."""
    asked = deployment(6, drafts=6, asked_max=42, runner=Runner.V1)
    plan = compile_plan(asked)
    assert plan.resolved[TARGET].max_cudagraph_capture_size == 35
    hole = the(plan, "decode-hole")
    assert hole.message == "uniform decode of 6 requests has no graph: 42 tokens run eagerly"
    assert hole.fix is not None
    assert not found(fixed(asked, hole.fix), "decode-hole")
    assert "35 is in force" in the(plan, "max-not-kept").message


def test_decode_with_many_drafts_has_more_than_one_graph_and_a_bounded_number_of_sizes() -> None:
    """vllm PR#50488: 32 requests of 17 tokens got a single decode graph."""
    asked = deployment(32, drafts=16)
    plan = compile_plan(asked)
    assert len(plan.resolved[TARGET].cudagraph_capture_sizes) == 55
    assert [decode(asked, num_reqs, 17).num_reqs for num_reqs in range(1, 31)] == list(range(1, 31))
    hole = the(plan, "decode-hole")
    assert hole.message.startswith("uniform decode of 31 to 32 requests has no graph")
    assert hole.fix == "max_cudagraph_capture_size: 544"
    assert not found(fixed(asked, hole.fix), "decode-hole")


def test_decode_is_padded_to_a_larger_full_graph_rather_than_to_a_nearer_piecewise_one() -> None:
    """vllm PR#53407: 4 requests of 3 tokens ran in PIECEWISE 16 although FULL 18 existed."""
    asked = deployment(8, drafts=2, sizes=[1, 2, 4, 8, 16, 24])
    assert (decode(asked, 4, 3).cg_mode, decode(asked, 4, 3).num_tokens) == (FULL, 18)
    plan = compile_plan(asked)
    assert not found(plan, "decode-hole")
    assert not found(plan, "shadowed-by-tier")


@pytest.mark.parametrize("runner", [Runner.V1, Runner.V2], ids=str)
@pytest.mark.parametrize("mode", [FULL, CUDAGraphMode.FULL_AND_PIECEWISE], ids=str)
def test_every_captured_graph_is_replayed_for_some_batch(mode: CUDAGraphMode, runner: Runner) -> None:
    """vllm PR#36165: with drafts, FULL graphs were captured under one key and looked up under another."""
    plan = compile_plan(deployment(16, drafts=3, mode=mode, runner=runner))
    assert plan.entries()
    assert not found(plan, "unreachable-entry")


@pytest.mark.parametrize(("max_num_seqs", "sizes"), [(12, [1, 2, 4, 8]), (20, [1, 2, 4, 8, 16]), (3, [1, 2])])
def test_the_widest_decode_batch_has_an_exact_graph(max_num_seqs: int, sizes: list[int]) -> None:
    """vllm-ascend#16049: 9 to 12 requests ran eagerly, as the sizes ended at 8."""
    assert max_num_seqs in compile_plan(deployment(max_num_seqs)).resolved[TARGET].cudagraph_capture_sizes
    asked = deployment(max_num_seqs, sizes=sizes)
    hole = the(compile_plan(asked), "decode-hole")
    first = sizes[-1] + 1
    span = f"{first} to {max_num_seqs}" if first < max_num_seqs else str(first)
    assert hole.message == (f"uniform decode of {span} requests has no graph: {span} tokens run eagerly")
    assert hole.fix == f"cudagraph_capture_sizes: {[*sizes, max_num_seqs]}"
    assert not found(fixed(asked, hole.fix), "decode-hole")


def test_a_size_above_the_widest_decode_batch_does_not_serve_it() -> None:
    """vllm-ascend#16049: 16 is no substitute for 12, since no decode graph has more than 12 requests."""
    asked = deployment(12, asked_max=16)
    assert (decode(asked, 9).cg_mode, decode(asked, 9).num_tokens) == (PIECEWISE, 16)
    hole = the(compile_plan(asked), "decode-hole")
    assert hole.message == (
        "uniform decode of 9 to 12 requests has no FULL graph: 9 to 12 tokens run in PIECEWISE 16"
    )
    assert hole.fix == "leave max_cudagraph_capture_size out"
    assert decode(deployment(12), 12).num_tokens == 12


@pytest.mark.parametrize("runner", [Runner.V1, Runner.V2], ids=str)
def test_explicit_sizes_that_are_no_whole_requests_are_named(runner: Runner) -> None:
    """vllm-ascend PR#3909: 14 requests of 3 tokens, with sizes that are no multiples of 3."""
    plan = compile_plan(deployment(14, drafts=2, sizes=[1, 3, 16, 42], runner=runner))
    finding = the(plan, "unaligned-sizes")
    assert "cudagraph_capture_sizes 1 and 16 are no whole requests" in finding.message
    assert finding.fix == "cudagraph_capture_sizes: [3, 18, 42]"


def test_sizes_are_positive_even_for_one_request() -> None:
    """tokenspeed PR#493: with max_num_seqs 1 a graph of 0 tokens was captured."""
    plan = compile_plan(deployment(1))
    assert plan.resolved[TARGET].cudagraph_capture_sizes == (1, 2)
    with pytest.raises(PlanError, match="0"):
        compile_plan(deployment(1, sizes=[0, 1]))


def test_a_maximum_that_is_lowered_is_reported_with_what_lowers_it() -> None:
    """InferenceX#117: 2048 was asked for and 992 used, without a word."""
    asked = deployment(512, budget=992, asked_max=2048)
    plan = compile_plan(asked)
    changed = the(plan, "max-not-kept")
    assert changed.message == (
        "max_cudagraph_capture_size 2048 is asked, 992 is in force: a step has at most 992 tokens"
    )
    assert changed.fix == "max_num_batched_tokens: 2048"
    assert not found(fixed(asked, changed.fix), "max-not-kept")
    (decision,) = [one for one in plan.decisions if one.path == "compilation.max_cudagraph_capture_size"]
    assert (decision.asked, decision.became) == (2048, 992)


def test_sizes_above_the_token_budget_are_not_dropped_in_silence() -> None:
    """As InferenceX#117, for a list: nothing at all is left of it."""
    plan = compile_plan(deployment(8, sizes=[512], budget=256))
    assert not plan.entries()
    hole, dropped = the(plan, "decode-hole"), the(plan, "sizes-dropped")
    assert hole.message.startswith("uniform decode of 1 to 8 requests has no graph")
    assert dropped.fix == hole.fix == "cudagraph_capture_sizes: [8]"
    # Without a hole, nothing speaks against the size.
    fits = compile_plan(deployment(8, sizes=[8, 512], budget=256))
    assert the(fits, "sizes-dropped").fix == "max_num_batched_tokens: 512"


def test_a_maximum_in_requests_is_recognised() -> None:
    """vllm-ascend PR#8516: sizes count tokens, so that for DFlash they are requests x (k + 1)."""
    plan = compile_plan(deployment(32, drafts=7, asked_max=32))
    finding = the(plan, "max-in-requests")
    assert finding.message == (
        "max_cudagraph_capture_size 32 counts tokens, not requests: 32 requests of 8 tokens have 256"
    )
    assert finding.fix == "max_cudagraph_capture_size: 256"
    assert not found(fixed(deployment(32, drafts=7, asked_max=32), finding.fix), "decode-hole")
    assert not found(compile_plan(deployment(32, asked_max=32)), "max-in-requests")


def test_a_list_in_requests_is_recognised() -> None:
    """vllm-ascend PR#8516, with the sizes written out."""
    finding = the(compile_plan(deployment(8, drafts=3, sizes=[1, 2, 4, 8])), "max-in-requests")
    assert finding.fix == "cudagraph_capture_sizes: [4, 8, 16, 32]"


def test_sizes_made_for_another_number_of_drafts_are_recognised() -> None:
    """vllm#28207: token counts that are no multiples of the query length."""
    plan = compile_plan(deployment(6, drafts=5, sizes=[7, 14, 21, 28, 35, 42]))
    finding = the(plan, "sizes-for-another-k")
    assert finding.severity == Severity.WARNING
    assert "multiples of 7, as for 6 draft tokens; decode requests have 6 tokens" in finding.message
    assert finding.fix == "cudagraph_capture_sizes: [12, 18, 24, 30, 36, 42]"
    assert not found(compile_plan(deployment(6, drafts=6, sizes=[7, 14, 42])), "sizes-for-another-k")


def test_draft_buffers_have_the_rows_that_decode_is_padded_to() -> None:
    """33 requests of 4 tokens are 132 rows, and were padded to 136."""
    asked = deployment(33, drafts=3, asked_max=136)
    assert decode(asked, 33, 4).num_tokens == 136
    finding = the(compile_plan(asked), "draft-buffer")
    assert finding.message == (
        "decode of 33 requests has 132 rows, padded to 136 (PIECEWISE), but draft buffers for 33 requests "
        "have 132"
    )
    assert finding.fix is not None
    again = fixed(asked, finding.fix.removesuffix(", or draft buffers of 136 rows"))
    assert not found(again, "draft-buffer")
    assert not found(compile_plan(deployment(33, drafts=3)), "draft-buffer")


def test_each_tier_of_a_draft_schedule_has_graphs_up_to_its_widest_batch() -> None:
    """vllm#48494: a schedule of 3, 1 and 0 draft tokens; graphs of wider batches than scheduled are dead."""
    asked = deployment(512, drafts=3, schedule=[(1, 64, 3), (65, 128, 1), (129, 512, 0)])
    tiers = ((64, 4), (128, 2), (512, 1))
    assert all(decode(asked, widest, length).cg_mode is FULL for widest, length in tiers)
    dead = found(compile_plan(asked), "unreachable-entry")
    assert {finding.severity for finding in dead} == {Severity.INFO}
    assert all("by the schedule of draft tokens" in finding.message for finding in dead)
    assert len(dead) == 2


def test_a_tier_that_hides_the_graphs_of_another_is_reported() -> None:
    """With a schedule, the nearest size may have graphs of another query length only."""
    asked = deployment(40, drafts=4, schedule=[(1, 4, 4), (5, 40, 1)], sizes=[8, 20, 80])
    hidden = found(compile_plan(asked), "shadowed-by-tier")
    assert hidden
    for finding in hidden:
        assert "has no FULL graph: the nearest size has none of that length" in finding.message
        assert finding.fix is not None


def test_the_number_of_graphs_counts_the_pieces_of_the_model() -> None:
    """vllm-ascend#1168: 67 sizes x 40 layers ran out of streams."""
    facts = {"num_hidden_layers": 12, "num_attention_heads": 8, "hidden_size": 512}
    config = HfConfig(facts=facts, sha256="")
    asked = deployment(100, sizes=[100])
    modes = {
        mode: _counted(asked, config, mode)
        for mode in (CUDAGraphMode.FULL_DECODE_ONLY, PIECEWISE, CUDAGraphMode.FULL_AND_PIECEWISE)
    }
    assert modes[CUDAGraphMode.FULL_DECODE_ONLY] is None
    assert modes[PIECEWISE] == (
        "graphs.target: 1 PIECEWISE and 0 FULL entries record 13 graphs, "
        "13 for each PIECEWISE entry of 12 layers"
    )
    assert "record 14 graphs" in str(modes[CUDAGraphMode.FULL_AND_PIECEWISE])


def test_lora_cases_are_powers_of_two_and_the_dead_one_is_named() -> None:
    """vllm PR#32005: graphs for each number of active adapters multiply the capture."""
    plan = compile_plan(deployment(8, max_loras=8))
    assert plan.resolved[TARGET].lora_cases == (0, 1, 2, 4, 8, 9)
    dead = the(plan, "unreachable-entry")
    assert dead.severity == Severity.INFO
    assert "entries of LoRA case 9 are never replayed: at most 8 adapters are active" in dead.message
    assert not found(compile_plan(deployment(8, max_loras=7)), "unreachable-entry")


def _counted(asked: Deployment, config: HfConfig, mode: CUDAGraphMode) -> str | None:
    plan = compile_plan(evolve(asked, compilation=evolve(asked.compilation, cudagraph_mode=mode)))
    plan = evolve(plan, deployment=evolve(plan.deployment, model=evolve(asked.model, config=config)))
    messages = [finding.message for finding in verify(plan) if finding.code == "graph-count"]
    return messages[0] if messages else None
