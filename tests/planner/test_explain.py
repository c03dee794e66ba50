"""Explanations: they agree with dispatch, and say why."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import BatchError, CUDAGraphMode, FamilyError, Plan, PlanEntry, compile_plan, load_deployment
from planner.descriptors import fits
from planner.documents.plan import AttentionGroup, ResolvedFamily
from planner.explain import Explanation, explain
from planner.modes import AttentionSupport, Runner
from planner.queries import Query
from planner.testing import batches
from tests.planner.golden_lines import golden_lines, load

FULL, PIECEWISE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE


def by_hand(*entries: PlanEntry, **resolved: Any) -> Plan:
    if not resolved:
        return Plan(graphs={"target": entries})
    family = ResolvedFamily(
        **{"runner": Runner.V2, "cudagraph_mode": CUDAGraphMode.FULL_AND_PIECEWISE, **resolved}
    )
    return Plan(graphs={"target": entries}, resolved={"target": family})


def asked(plan: Plan, **batch: Any) -> Explanation:
    return explain(plan, Query(**batch))


def why_not(explanation: Explanation) -> list[tuple[str, ...]]:
    return [candidate.obstacles for candidate in explanation.candidates]


ENTRIES = st.builds(
    PlanEntry,
    mode=st.sampled_from((FULL, PIECEWISE)),
    num_tokens=st.integers(1, 12),
    num_reqs=st.none() | st.integers(1, 6),
    uniform_token_count=st.none() | st.integers(1, 3),
    max_query_len=st.none() | st.integers(1, 3),
    num_active_loras=st.integers(0, 2),
    num_ubatches=st.integers(1, 2),
)


@given(st.lists(ENTRIES, max_size=12), st.data())
def test_the_explained_graph_is_the_one_that_dispatch_answers_with(
    entries: list[PlanEntry], data: st.DataObject
) -> None:
    plan = by_hand(*entries)
    batch = data.draw(batches(plan))
    explanation = asked(plan, **batch)
    answer = plan.dispatch_table().dispatch(**batch)  # type: ignore[call-arg]
    assert explanation.answer == answer
    if explanation.entry is None:
        assert answer.cg_mode is CUDAGraphMode.NONE  # type: ignore[union-attr]
        assert explanation.padding_tokens == 0
    else:
        assert explanation.entry.execution_descriptor == answer
        assert explanation.entry.num_tokens == batch["num_tokens"] + explanation.padding_tokens
        assert 0 <= explanation.padding_share < 1
    for candidate in explanation.candidates:
        does_fit = fits(
            candidate.entry,
            batch["num_reqs"],
            batch["num_tokens"],
            batch["uniform_token_count"],
            explanation.lora_case,
            batch["max_query_len"],
            batch["num_ubatches"],
        )
        assert does_fit == (not candidate.obstacles)


V1_LINES = [line for line in golden_lines("v1") if "error" not in line["expect"]][:40]


@pytest.mark.parametrize("line", V1_LINES, ids=lambda line: str(line["name"]))
def test_v1_explanations_agree_with_the_engine(line: dict[str, Any]) -> None:
    plan = compile_plan(load(line))
    for query, expected in zip(line["queries"][:20], line["expect"]["dispatch"], strict=False):
        explanation = explain(plan, Query(**query))
        mode = CUDAGraphMode.NONE if explanation.entry is None else explanation.entry.mode
        assert str(mode) == expected["mode"]
        assert explanation.runner is Runner.V1
        if explanation.entry is not None:
            assert explanation.entry.num_tokens == expected["num_tokens"]
            assert explanation.entry.num_reqs == expected["num_reqs"]
            assert explanation.entry.num_active_loras == expected["num_active_loras"]


@st.composite
def v1_entries(draw: st.DrawFn) -> list[PlanEntry]:
    """Keys of a V1 family of 4 requests with decode of 2 tokens, some of them missing."""
    keys = [PlanEntry(PIECEWISE, size) for size in (2, 4, 8)]
    keys += [PlanEntry(FULL, size, min(size, 4)) for size in (2, 4, 8)]
    keys += [PlanEntry(FULL, size, size // 2, 2) for size in (2, 4, 8)]
    return draw(st.lists(st.sampled_from(keys), unique=True))


@given(v1_entries(), st.sampled_from(CUDAGraphMode), st.integers(1, 10), st.booleans())
def test_the_first_v1_graph_without_obstacles_serves(
    entries: list[PlanEntry], mode: CUDAGraphMode, num_tokens: int, uniform_decode: bool
) -> None:
    plan = by_hand(
        *entries,
        runner=Runner.V1,
        cudagraph_mode=mode,
        cudagraph_capture_sizes=(2, 4, 8),
        max_num_seqs=4,
        decode_query_len=2,
    )
    explanation = asked(plan, num_tokens=num_tokens, uniform_decode=uniform_decode)
    fitting = [candidate.entry for candidate in explanation.candidates if not candidate.obstacles]
    assert explanation.entry == (fitting[0] if fitting else None)
    answer = plan.dispatch_table().dispatch(num_tokens=num_tokens, uniform_decode=uniform_decode)  # type: ignore[call-arg]
    assert explanation.answer == answer


def test_a_served_batch_tells_its_padding() -> None:
    explanation = asked(by_hand(PlanEntry(FULL, 8, 4, 2)), num_reqs=3, num_tokens=6, uniform_token_count=2)
    assert explanation.entry == PlanEntry(FULL, 8, 4, 2)
    assert (explanation.padding_tokens, explanation.padding_reqs, explanation.padding_share) == (2, 1, 0.25)


def test_a_piecewise_graph_pads_no_requests() -> None:
    explanation = asked(by_hand(PlanEntry(PIECEWISE, 8)), num_reqs=3, num_tokens=6)
    assert (explanation.padding_tokens, explanation.padding_reqs) == (2, None)


@pytest.mark.parametrize(
    ("entry", "batch", "obstacle"),
    [
        (PlanEntry(FULL, 6, 2, 3), {"uniform_token_count": 2}, "uniform token count 3, the batch has 2"),
        (PlanEntry(FULL, 6, 2, 3), {}, "uniform token count 3, the batch has none"),
        (PlanEntry(FULL, 6, 3, None, 2), {}, "query length up to 2, the batch has none"),
        (PlanEntry(FULL, 6, 2, None, 2), {"max_query_len": 3}, "query length up to 2, the batch has 3"),
        (PlanEntry(FULL, 6, 1), {}, "1 request, the batch has 2"),
        (PlanEntry(FULL, 6, 2, None, None, 0, 2), {}, "num_ubatches 2, the batch has 1"),
    ],
)
def test_an_entry_that_does_not_fit_says_why(entry: PlanEntry, batch: dict[str, int], obstacle: str) -> None:
    explanation = asked(by_hand(entry), num_reqs=2, num_tokens=4, **batch)
    assert explanation.entry is None
    assert why_not(explanation) == [(obstacle,)]


def test_every_obstacle_of_an_entry_is_named() -> None:
    plan = by_hand(PlanEntry(FULL, 16, 2, 8), PlanEntry(PIECEWISE, 16))
    explanation = asked(plan, num_reqs=3, num_tokens=12, uniform_token_count=4)
    assert why_not(explanation) == [
        ("uniform token count 8, the batch has 4", "2 requests, the batch has 3"),
        (),
    ]
    assert explanation.entry == PlanEntry(PIECEWISE, 16)


@pytest.mark.parametrize(
    ("plan", "batch", "note"),
    [
        (by_hand(), {"num_tokens": 4}, "the family has no graphs"),
        (by_hand(PlanEntry(PIECEWISE, 2)), {"num_tokens": 4}, "the largest graph has 2 tokens"),
        (
            by_hand(PlanEntry(PIECEWISE, 8)),
            {"num_tokens": 4, "num_active_loras": 3},
            "no graph was captured with 3 LoRAs",
        ),
        (
            by_hand(PlanEntry(PIECEWISE, 8, num_active_loras=1)),
            {"num_tokens": 4},
            "no graph was captured without LoRA",
        ),
        (
            by_hand(PlanEntry(FULL, 8, 2, None), PlanEntry(FULL, 4, 1, 4)),
            {"num_tokens": 4},
            "FULL 8 tokens, 2 requests would fit, but dispatch looks at the nearest size only",
        ),
    ],
)
def test_an_eager_batch_says_why(plan: Plan, batch: dict[str, int], note: str) -> None:
    explanation = asked(plan, num_reqs=2, **batch)
    assert explanation.entry is None
    assert note in explanation.notes


def test_a_batch_beyond_the_scheduler_is_noted() -> None:
    plan = by_hand(PlanEntry(PIECEWISE, 8), max_num_seqs=2, max_num_batched_tokens=4)
    assert asked(plan, num_reqs=3, num_tokens=5).notes == (
        "no step has 3 requests: max_num_seqs is 2",
        "no step has 5 tokens: max_num_batched_tokens is 4",
    )
    assert asked(plan, num_reqs=2, num_tokens=4).notes == ()


def test_adapters_run_in_the_captured_case() -> None:
    plan = by_hand(PlanEntry(PIECEWISE, 8, num_active_loras=4), lora_cases=(0, 4))
    explanation = asked(plan, num_reqs=3, num_tokens=8, num_active_loras=3)
    assert explanation.lora_case == 4
    assert explanation.entry is not None


def test_the_groups_that_limit_attention_are_named() -> None:
    strong = AttentionGroup(kind="full_attention", backend="A", support=AttentionSupport.ALWAYS)
    weak = AttentionGroup(kind="mamba", backend="B", support=AttentionSupport.UNIFORM_BATCH)
    plan = by_hand(
        PlanEntry(PIECEWISE, 8),
        attention_support=AttentionSupport.UNIFORM_BATCH,
        attention_groups=(strong, weak),
    )
    assert asked(plan, num_reqs=1, num_tokens=1).limiting_groups == (weak,)


def test_the_decisions_are_those_that_shape_the_family() -> None:
    deployment = load_deployment(
        {
            "apiVersion": "graphplan/v1",
            "kind": "Deployment",
            "model": {"attention_support": "UNIFORM_BATCH"},
            "compilation": {"cudagraph_mode": "FULL"},
            "speculative": {"method": "dflash", "num_speculative_tokens": 3},
        }
    )
    plan = compile_plan(deployment)
    query = Query(num_reqs=1, num_tokens=4, uniform_token_count=4)
    target = {decision.path for decision in explain(plan, query).decisions}
    assert "compilation.cudagraph_mode" in target
    assert "compilation.max_cudagraph_capture_size" in target
    assert "engine.usage" not in target
    assert "resolved.draft.cudagraph_mode" not in target
    assert "resolved.draft.cudagraph_mode" in {
        decision.path for decision in explain(plan, query, "draft").decisions
    }


def test_a_family_that_the_plan_does_not_have_is_refused() -> None:
    with pytest.raises(FamilyError):
        explain(by_hand(), Query(num_tokens=1, num_reqs=1), "draft")


def test_a_batch_that_cannot_be_is_refused() -> None:
    with pytest.raises(BatchError):
        asked(by_hand(), num_reqs=2, num_tokens=1)
