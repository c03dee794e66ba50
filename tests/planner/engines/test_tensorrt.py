"""Plans of TensorRT-LLM: entries, dispatch, and what a person is told."""

from __future__ import annotations

from typing import Any

import pytest

from planner import Batch, Deployment, Plan, PlanEntry, PlanError, agree, compile_plan, dump_plan, load_plan
from planner.documents.plan import Finding
from planner.modes import CUDAGraphMode
from tests.planner.engines.documents import sizes, tensorrt

FULL, PIECEWISE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE
SMALL = {"scheduler": {"max_num_seqs": 256, "max_num_batched_tokens": 8192}}


def graphs(config: dict[str, Any] | None = None, **sections: Any) -> Plan:
    return compile_plan(tensorrt({"cuda_graph_config": config}, **{**SMALL, **sections}))


def served_by(plan: Plan, reqs: int, length: int = 1) -> int | None:
    """Requests of the graph that serves a decode batch, ``None`` where it runs eagerly."""
    descriptor = plan.dispatch_table().dispatch(reqs, reqs * length, length)
    return descriptor.num_reqs if descriptor.cg_mode else None


def found(plan: Plan, code: str) -> list[Finding]:
    return [finding for finding in plan.findings if finding.code == code]


def test_by_default_only_exact_sizes_replay_and_a_finding_says_so() -> None:
    plan = compile_plan(tensorrt(**SMALL))
    assert [entry.num_reqs for entry in plan.entries()] == sizes("1..32, 64, 128")[::-1]
    assert [served_by(plan, reqs) for reqs in (32, 33, 64, 127, 128, 129)] == [32, None, 64, None, 128, None]
    (inexact,) = found(plan, "no-exact-size")
    assert inexact.severity == "warning"
    assert "33 to 63 and 65 to 127 requests" in inexact.message
    assert inexact.fix is not None
    assert "enable_padding: true" in inexact.fix


def test_with_padding_the_next_size_replays() -> None:
    plan = graphs({"enable_padding": True, "max_batch_size": 256})
    assert [served_by(plan, reqs) for reqs in (33, 129, 193, 257)] == [40, 192, 256, None]
    assert not found(plan, "no-exact-size")
    assert not found(plan, "decode-hole")


def test_the_grid_of_older_releases_doubles() -> None:
    plan = graphs({"enable_padding": True, "max_batch_size": 256}, engine={"version": "1.2"})
    assert served_by(plan, 129) == 256


def test_every_plan_says_that_no_release_confirms_it() -> None:
    assert found(graphs({}), "unpinned-rules")


def test_null_turns_decode_graphs_off_and_survives_a_document() -> None:
    plan = compile_plan(tensorrt({"cuda_graph_config": None}, **SMALL))
    assert plan.entries() == ()
    assert plan.resolved["target"].cudagraph_mode is CUDAGraphMode.NONE
    assert load_plan(dump_plan(plan)) == plan
    assert "cuda_graph_config: null" in dump_plan(plan)


def test_the_fix_of_a_long_list_names_what_to_add() -> None:
    (hole,) = found(graphs({"batch_sizes": [*range(1, 101)], "enable_padding": True}), "decode-hole")
    assert hole.fix == "tensorrt_llm.cuda_graph_config: {batch_sizes: those given and 256}"


def test_an_empty_list_counts_as_none() -> None:
    assert graphs({"batch_sizes": []}).entries() == graphs({}).entries()


def test_listed_sizes_are_captured_once_each_from_the_largest() -> None:
    plan = graphs({"batch_sizes": [8, 1, 8, 300], "enable_padding": True})
    assert [entry.num_reqs for entry in plan.entries()] == [256, 8, 1]
    (decision,) = (one for one in plan.decisions if one.rule == "captured-sizes")
    assert "at most 256 requests" in decision.because


def test_drafts_take_their_share_of_the_token_budget() -> None:
    plan = graphs(
        {"enable_padding": True},
        scheduler={"max_num_seqs": 64, "max_num_batched_tokens": 128},
        speculative={"method": "mtp", "num_speculative_tokens": 3},
    )
    largest = plan.entries()[0]
    assert largest == PlanEntry(FULL, 128, 32, 4)
    assert plan.resolved["target"].max_num_active_seqs == 32
    assert not found(plan, "decode-hole")


def test_a_schedule_of_drafts_pads_and_captures_its_pairs() -> None:
    plan = compile_plan(
        tensorrt(
            {
                "cuda_graph_config": {"batch_sizes": [1, 2, 16, 32, 64]},
                "speculative_config": {"draft_len_schedule": {"4": 4, "8": 2, "32": 1}},
            },
            **SMALL,
            speculative={"method": "eagle3", "num_speculative_tokens": 4},
        )
    )
    pairs = [(entry.num_reqs, (entry.uniform_token_count or 0) - 1) for entry in plan.entries()]
    assert pairs == [(64, 4), (64, 0), (32, 1), (16, 1), (8, 2), (4, 4), (2, 4), (1, 4)]
    assert served_by(plan, 3, length=5) == 4
    assert served_by(plan, 5, length=3) == 8
    assert served_by(plan, 33, length=1) == 64
    (workspace,) = found(plan, "unreachable-entry")
    assert (workspace.severity, "workspace" in workspace.message) == ("info", True)
    assert {one.rule for one in plan.decisions} >= {"schedule-pads", "schedule-sizes"}


def test_a_batch_of_another_draft_length_runs_eagerly() -> None:
    plan = graphs({"enable_padding": True}, speculative={"method": "mtp", "num_speculative_tokens": 3})
    assert served_by(plan, 5, length=4) == 8
    assert not plan.dispatch_table().dispatch(5, 10, 2, max_query_len=2).cg_mode


def test_beams_multiply_the_tokens_of_a_request() -> None:
    plan = compile_plan(tensorrt({"max_beam_width": 4}, scheduler={"max_num_seqs": 2}))
    assert plan.entries() == (PlanEntry(FULL, 8, 2, 4), PlanEntry(FULL, 4, 1, 4))


def test_prefill_graphs_pad_without_a_limit_and_serve_no_decode() -> None:
    plan = compile_plan(
        tensorrt(
            {
                "cuda_graph_config": {"batch_sizes": [1]},
                "prefill_cuda_graph_backend": "piecewise",
                "prefill_capture_num_tokens": [64, 1024],
            },
            **SMALL,
        )
    )
    assert plan.entries() == (PlanEntry(PIECEWISE, 1024), PlanEntry(PIECEWISE, 64), PlanEntry(FULL, 1, 1, 1))
    table = plan.dispatch_table()
    assert table.dispatch(1, 65).num_tokens == 1024
    assert not table.dispatch(2, 2, 1).cg_mode
    assert not table.dispatch(1, 1025).cg_mode


def test_prefill_without_a_list_takes_the_sizes_of_decode() -> None:
    plan = compile_plan(
        tensorrt(
            {
                "cuda_graph_config": {"batch_sizes": [1, 8]},
                "torch_compile_config": {"enable_piecewise_cuda_graph": True},
            },
            **SMALL,
        )
    )
    assert [entry.num_tokens for entry in plan.entries() if entry.mode is PIECEWISE] == [8, 1]
    assert any(one.rule == "prefill-sizes-default" for one in plan.decisions)


@pytest.mark.parametrize(
    ("deployment", "message"),
    [
        (
            lambda: tensorrt({"cuda_graph_config": {"batch_sizes": [1, 8], "max_batch_size": 16}}),
            "the largest size is 8 but the maximum is 16",
        ),
        (lambda: tensorrt({"cuda_graph_config": {"mode": "encode"}}), "graphs of encoders are not planned"),
        (lambda: tensorrt({"cuda_graph_config": {"num_tokens": [8]}}), "graphs of encoders are not planned"),
        (
            lambda: tensorrt({"speculative_config": {"draft_len_schedule": {"4": 2}}}),
            "given without speculative.method",
        ),
        (
            lambda: tensorrt(
                {"speculative_config": {"draft_len_schedule": {"many": 2}}}, speculative={"method": "mtp"}
            ),
            "'many' is no number of requests",
        ),
        (
            lambda: tensorrt(
                {"speculative_config": {"draft_len_schedule": {"4": 2}}},
                speculative={"method": "mtp", "num_speculative_tokens": 1},
            ),
            "drafts up to 2 tokens, but 1 are given",
        ),
        (lambda: tensorrt(speculative={"method": "mtp"}), "the number of draft tokens is not given"),
        (
            lambda: tensorrt(
                {
                    "prefill_cuda_graph_backend": "breakable",
                    "torch_compile_config": {"enable_piecewise_cuda_graph": True},
                }
            ),
            "breakable and piecewise are both asked for",
        ),
        (
            lambda: tensorrt(engine={"version": "0.9"}),
            "supported versions: 1.2, 1.3",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_fields(deployment: Any, message: str) -> None:
    refused: Deployment = deployment()
    with pytest.raises(PlanError, match=message) as refusal:
        compile_plan(refused)
    assert refusal.value.fields


def test_saving_hidden_states_has_no_graphs() -> None:
    plan = compile_plan(tensorrt(speculative={"method": "save_hidden_states"}))
    assert plan.entries() == ()
    assert any(one.rule == "save-hidden-states" for one in plan.decisions)


def test_lora_is_an_error_of_the_plan() -> None:
    (finding,) = found(graphs({}, lora={}), "unplanned-family")
    assert finding.severity == "error"


DP = {"parallel": {"tensor_parallel_size": 2, "enable_dp_attention": True}}


def decode(reqs: int) -> Batch:
    return Batch(num_reqs=reqs, num_tokens=reqs, uniform_token_count=1 if reqs else None)


def sizes_of_ranks(plan: Plan, *batches: Batch) -> list[int | None]:
    agreed = agree(plan.dispatch_table(), batches)
    return [one.descriptor.num_reqs if one.descriptor.cg_mode else None for one in agreed]


def test_ranks_of_attention_pad_to_the_fullest() -> None:
    plan = graphs({"enable_padding": True}, **DP)
    assert sizes_of_ranks(plan, decode(5), decode(12)) == [16, 16]
    assert sizes_of_ranks(plan, decode(5), decode(0)) == [8, 8]
    assert sizes_of_ranks(plan, decode(5), decode(200)) == [None, None]


def test_without_padding_ranks_need_equal_batches() -> None:
    plan = graphs({}, **DP)
    assert sizes_of_ranks(plan, decode(5), decode(12)) == [None, None]
    assert sizes_of_ranks(plan, decode(5), decode(5)) == [5, 5]
    assert found(plan, "ranks-need-equal-batches")


def test_in_a_step_with_prefill_all_ranks_pad_to_its_tokens() -> None:
    own = {"prefill_cuda_graph_backend": "breakable", "prefill_capture_num_tokens": [64, 1024]}
    plan = compile_plan(tensorrt(own, **SMALL, **DP))
    agreed = agree(plan.dispatch_table(), [decode(5), Batch(num_reqs=1, num_tokens=100)])
    assert [one.descriptor.num_tokens for one in agreed] == [1024, 1024]
    assert [one.num_tokens_across_dp for one in agreed] == [(1024, 1024)] * 2
    beyond = agree(plan.dispatch_table(), [decode(5), Batch(num_reqs=1, num_tokens=1025)])
    assert [one.eager for one in beyond] == [True, True]
