"""The families captured beside the target's, by speculative method (rules 7.7)."""

from __future__ import annotations

from typing import Any

import pytest

from planner import CUDAGraphMode, Plan, PlanError, compile_plan, load_deployment


def compiled(method: str | None, drafts: int = 3, **sections: Any) -> Plan:
    speculative = {"num_speculative_tokens": drafts, **sections.pop("speculative", {})}
    if method is not None:
        speculative["method"] = method
    document = {"apiVersion": "graphplan/v1", "kind": "Deployment", "speculative": speculative, **sections}
    document.setdefault("scheduler", {"max_num_seqs": 8, "max_num_batched_tokens": 2048})
    return compile_plan(load_deployment(document))


@pytest.mark.parametrize(
    ("method", "drafts", "families"),
    [
        ("eagle", 3, {"target", "draft_prefill", "draft_decode"}),
        ("eagle3", 3, {"target", "draft_prefill", "draft_decode"}),
        ("mtp", 3, {"target", "draft_prefill", "draft_decode"}),
        ("deepseek_mtp", 3, {"target", "draft_prefill", "draft_decode"}),
        ("mtp", 1, {"target", "draft_prefill"}),
        ("dflash", 15, {"target", "draft"}),
        ("dspark", 7, {"target", "draft"}),
        ("ngram", 4, {"target"}),
        ("draft_model", 4, {"target"}),
    ],
)
def test_each_method_has_its_families(method: str, drafts: int, families: set[str]) -> None:
    plan = compiled(method, drafts)
    assert set(plan.graphs) == set(plan.resolved) == families
    assert not [finding for finding in plan.findings if finding.severity == "error"]


@pytest.mark.parametrize("method", ["custom_class", None])
def test_a_family_that_is_not_planned_is_an_error_and_never_silence(method: str | None) -> None:
    errors = [finding for finding in compiled(method).findings if finding.severity == "error"]
    assert [finding.code for finding in errors] == ["unplanned-family"]
    assert errors[0].fix


@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize(
    ("method", "advice"),
    [
        ("eagel", "did you mean eagle? Known are "),
        ("EAGLE3", "did you mean eagle3? Known are "),
        ("n-gram", "did you mean ngram? Known are "),
        ("medusa", "'medusa'; known are "),
        ("my_mtp", "Known are "),
    ],
)
def test_a_method_that_the_engine_does_not_have_is_refused(runner: str, method: str, advice: str) -> None:
    with pytest.raises(PlanError) as caught:
        compiled(method, engine={"runner": runner})
    assert caught.value.fields == ("speculative.method",)
    assert advice in caught.value.message
    assert {"dflash", "dspark", "mtp", "suffix"} <= set(caught.value.message.replace(",", "").split())


@pytest.mark.parametrize(
    ("mode", "prefill", "decode"),
    [
        ("FULL_AND_PIECEWISE", "FULL_AND_PIECEWISE", "FULL_DECODE_ONLY"),
        ("FULL", "FULL", "FULL_DECODE_ONLY"),
        ("FULL_DECODE_ONLY", "FULL_DECODE_ONLY", "FULL_DECODE_ONLY"),
        ("PIECEWISE", "PIECEWISE", "NONE"),
        ("NONE", "NONE", "NONE"),
    ],
)
def test_the_first_pass_follows_the_target_and_the_later_ones_decode(
    mode: str, prefill: str, decode: str
) -> None:
    plan = compiled("eagle3", compilation={"cudagraph_mode": mode})
    assert plan.resolved["draft_prefill"].cudagraph_mode is CUDAGraphMode[prefill]
    assert plan.resolved["draft_decode"].cudagraph_mode is CUDAGraphMode[decode]
    assert {entry.uniform_token_count for entry in plan.entries("draft_decode")} <= {1}


def test_the_first_pass_has_the_target_s_entries() -> None:
    plan = compiled("eagle3")
    assert plan.entries("draft_prefill") == plan.entries("target")
    assert [entry.num_reqs for entry in plan.entries("draft_decode")] == [8, 4, 2, 1]


def test_under_a_schedule_the_later_passes_are_captured_for_each_draft_length() -> None:
    schedule = [[1, 2, 4], [3, 4, 2], [5, 6, 1], [7, 8, 0]]
    plan = compiled("eagle3", 4, speculative={"num_speculative_tokens_per_batch_size": schedule})
    assert set(plan.graphs) == {"target", "draft_prefill", "draft_decode_2", "draft_decode_4"}


def test_dspark_drafts_as_many_tokens_as_it_samples() -> None:
    plan = compiled("dspark", 7)
    entry = plan.entries("draft")[-1]
    assert (entry.num_tokens, entry.num_reqs, entry.uniform_token_count) == (7, 1, 7)
    assert entry.prologue is not None
    assert entry.prologue.num_context_tokens == 8


def test_encoder_graphs_need_their_budgets_written() -> None:
    asked = {"cudagraph_mm_encoder": True}
    plan = compiled("ngram", compilation=asked)
    assert [finding.code for finding in plan.findings if finding.severity == "error"] == ["unplanned-family"]
    budgets = {
        "encoder_cudagraph_token_budgets": [256, 64, 128],
        "encoder_cudagraph_max_vision_items_per_batch": 8,
    }
    plan = compiled("ngram", compilation=asked | budgets)
    assert [(entry.num_tokens, entry.num_reqs) for entry in plan.entries("encoder")] == [
        (256, 8),
        (128, 8),
        (64, 8),
    ]
