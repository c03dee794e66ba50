"""What compiling for V1 changes: rounding, schedules, sizes to compile for, drafts (rules 3.5, 4)."""

from __future__ import annotations

from typing import Any

import pytest

from planner import (
    Agreement,
    BatchDescriptor,
    Decision,
    Plan,
    PlanError,
    agree,
    compile_plan,
    dump_plan,
    load_deployment,
    load_plan,
)


def compiled(runner: str = "v1", **sections: Any) -> Plan:
    document = {
        "apiVersion": "graphplan/v1",
        "kind": "Deployment",
        "engine": {"runner": runner},
        "model": {"attention_support": "ALWAYS"},
        "scheduler": {"max_num_seqs": 8, "max_num_batched_tokens": 2048},
        **sections,
    }
    return compile_plan(load_deployment(document))


def decisions(plan: Plan, rule: str) -> list[Decision]:
    return [decision for decision in plan.decisions if decision.rule == rule]


def mode(plan: Plan, family: str = "target") -> str:
    return str(plan.resolved[family].cudagraph_mode)


def sizes(plan: Plan, family: str = "target") -> list[int]:
    return [entry.num_tokens for entry in plan.entries(family)]


def drafting(tokens: int, method: str = "mtp", **more: Any) -> dict[str, Any]:
    return {"method": method, "num_speculative_tokens": tokens, **more}


LISTED = {"cudagraph_capture_sizes": [1, 2, 4, 8, 16]}


def test_sizes_are_rounded_for_pieces_too_and_the_plan_says_so() -> None:
    plan = compiled(speculative=drafting(2), compilation=LISTED)
    assert plan.resolved["target"].cudagraph_capture_sizes == (3, 6, 9)
    assert sizes(plan) == [9, 6, 3, 9, 6, 3]
    rounding = decisions(plan, "sizes-rounded-to-query-length")
    assert [decision.became for decision in rounding] == [[3, 6, 9], 9]


def test_the_v2_runner_leaves_the_same_sizes_alone() -> None:
    plan = compiled("v2", speculative=drafting(2), compilation=LISTED)
    assert plan.resolved["target"].cudagraph_capture_sizes == (1, 2, 4, 8, 16)


def test_without_full_decode_graphs_nothing_is_rounded() -> None:
    plan = compiled(speculative=drafting(2), compilation={**LISTED, "cudagraph_mode": "PIECEWISE"})
    assert sizes(plan) == [16, 8, 4, 2, 1]


SCHEDULE = {"num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 8, 1]]}


@pytest.mark.parametrize(
    "method", ["ngram", "eagle", "eagle3", "mtp", "deepseek_mtp", "draft_model", "dflash"]
)
def test_a_schedule_leaves_pieces_only(method: str) -> None:
    plan = compiled(speculative=drafting(3, method, **SCHEDULE))
    assert mode(plan) == "PIECEWISE"
    (lowered,) = decisions(plan, "v1-schedule")
    assert (lowered.asked, lowered.became) == ("FULL_AND_PIECEWISE", "PIECEWISE")
    assert decisions(plan, "schedule-needs-method") == []


@pytest.mark.parametrize("method", ["suffix", "ngram_gpu", "extract_hidden_states"])
def test_a_schedule_of_another_method_is_dropped(method: str) -> None:
    plan = compiled(speculative=drafting(3, method, **SCHEDULE))
    assert mode(plan) == "FULL_AND_PIECEWISE"
    (dropped,) = decisions(plan, "schedule-needs-method")
    assert dropped.asked == SCHEDULE["num_speculative_tokens_per_batch_size"]
    assert dropped.became is None
    assert method in dropped.because


@pytest.mark.parametrize("asked", ["PIECEWISE", "NONE"])
def test_a_schedule_does_not_touch_modes_without_full_graphs(asked: str) -> None:
    plan = compiled(speculative=drafting(3, **SCHEDULE), compilation={"cudagraph_mode": asked})
    assert mode(plan) == asked
    assert decisions(plan, "v1-schedule") == []


def test_the_v2_runner_keeps_full_graphs_under_a_schedule() -> None:
    assert mode(compiled("v2", speculative=drafting(3, **SCHEDULE))) == "FULL_AND_PIECEWISE"


@pytest.mark.parametrize(("runner", "expected"), [("v1", "FULL_AND_PIECEWISE"), ("v2", "FULL_DECODE_ONLY")])
def test_v1_never_asks_whether_pieces_can_be_recorded(runner: str, expected: str) -> None:
    """FULL without compilation, cut at attention, over uniform batches (rules 3.3, environment E)."""
    plan = compiled(
        runner,
        model={"attention_support": "UNIFORM_BATCH"},
        compilation={
            "mode": "NONE",
            "cudagraph_mode": "FULL",
            "splitting_ops": [f"vllm::operation_{number}" for number in range(17)],
        },
    )
    assert mode(plan) == expected


@pytest.mark.parametrize("compile_sizes", [[3], [5], [1, 5]])
def test_v1_refuses_to_compile_for_sizes_that_are_padded(compile_sizes: list[int]) -> None:
    compilation = {
        "cudagraph_capture_sizes": [1, 2, 4, 8],
        "compile_sizes": compile_sizes,
        "cudagraph_mode": "FULL",
    }
    with pytest.raises(PlanError, match="would be padded to"):
        compiled(compilation=compilation)
    assert compiled("v2", compilation=compilation).entries()
    assert compiled(compilation={**compilation, "cudagraph_mode": "NONE"}).entries() == ()


@pytest.mark.parametrize("compile_sizes", [[1, 2, 4, 8], ["cudagraph_capture_sizes"], [8, 9]])
def test_v1_compiles_for_capture_sizes_and_above(compile_sizes: list[int | str]) -> None:
    listed = {"cudagraph_capture_sizes": [1, 2, 4, 8], "compile_sizes": compile_sizes}
    assert compiled(compilation=listed).resolved["target"].cudagraph_capture_sizes == (1, 2, 4, 8)


def test_all_capture_sizes_to_compile_for_are_those_before_rounding() -> None:
    """The word is expanded before V1 rounds, so that with drafts it names sizes that are padded."""
    compilation = {**LISTED, "compile_sizes": ["cudagraph_capture_sizes"]}
    with pytest.raises(PlanError, match="1 would be padded to 3"):
        compiled(speculative=drafting(2), compilation=compilation)


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_another_word_among_sizes_to_compile_for_is_refused(runner: str) -> None:
    with pytest.raises(PlanError, match="'all' is no size"):
        compiled(runner, compilation={"compile_sizes": ["all"]})


LORA = {"max_loras": 4}

#     speculative, other sections, mode of the draft, its sizes
DRAFTS: list[tuple[dict[str, Any], dict[str, Any], str, list[int]]] = [
    (drafting(2), {}, "PIECEWISE", [9, 6, 3]),
    (drafting(2, "eagle"), {}, "PIECEWISE", [9, 6, 3]),
    (drafting(2, "draft_model"), {}, "PIECEWISE", [9, 6, 3]),
    (drafting(2, "dflash"), {}, "PIECEWISE", [9, 6, 3]),
    (drafting(2), {"lora": LORA}, "PIECEWISE", [9, 6, 3]),
    (drafting(2), {"compilation": {**LISTED, "cudagraph_mode": "PIECEWISE"}}, "PIECEWISE", [16, 8, 4, 2, 1]),
    (drafting(2, enforce_eager=True), {}, "NONE", []),
    (drafting(2), {"compilation": {**LISTED, "cudagraph_mode": "FULL_DECODE_ONLY"}}, "NONE", []),
    # Drafts are captured along with the target's pieces, without LoRA: no such captures, no graphs.
    (drafting(2), {"compilation": {**LISTED, "cudagraph_mode": "FULL"}}, "PIECEWISE", []),
    (
        drafting(2),
        {"compilation": {**LISTED, "cudagraph_specialize_lora": False}, "lora": LORA},
        "PIECEWISE",
        [],
    ),
]


@pytest.mark.parametrize(("speculative", "sections", "expected", "captured"), DRAFTS)
def test_v1_drafts_are_captured_in_pieces(
    speculative: dict[str, Any], sections: dict[str, Any], expected: str, captured: list[int]
) -> None:
    plan = compiled(speculative=speculative, **{"compilation": LISTED, **sections})
    assert mode(plan, "draft") == expected
    assert sizes(plan, "draft") == captured
    assert {entry.batch_descriptor for entry in plan.entries("draft")} == {
        BatchDescriptor(size) for size in captured
    }
    assert len(decisions(plan, "v1-draft-mode")) == 1
    answer, key = plan.dispatch_table("draft").dispatch(num_tokens=5)
    assert (str(answer) == "PIECEWISE") == bool(captured)
    assert key.num_tokens == min([size for size in captured if size >= 5], default=5)


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_methods_without_a_draft_model_have_no_draft_family(method: str) -> None:
    assert list(compiled(speculative=drafting(2, method)).graphs) == ["target"]


def test_keys_survive_writing_and_reading_with_lora() -> None:
    plan = compiled(lora=LORA)
    read = load_plan(dump_plan(plan))
    assert [entry.batch_descriptor for entry in read.entries()] == [
        entry.batch_descriptor for entry in plan.entries()
    ]
    assert {entry.batch_descriptor.has_lora for entry in read.entries()} == {True, False}


BY_HAND = """
apiVersion: graphplan/v1
kind: Plan
resolved:
  target: {runner: v1, cudagraph_mode: FULL_AND_PIECEWISE}
graphs:
  target:
  - {mode: PIECEWISE, num_tokens: 8}
  - {mode: PIECEWISE, num_tokens: 4}
  - {mode: FULL, num_tokens: 8, num_reqs: 2, uniform_token_count: 4}
  - {mode: FULL, num_tokens: 4, num_reqs: 1, uniform_token_count: 4}
"""


def test_a_plan_written_by_hand_dispatches_and_agrees_by_v1s_rules() -> None:
    table = load_plan(BY_HAND).dispatch_table("target")
    answer, key = table.dispatch(num_tokens=8, uniform_decode=True, num_active_loras=0)
    assert (str(answer), key) == ("FULL", BatchDescriptor(8, 2, True))
    decided: list[Agreement] = agree(
        table,
        [
            {"num_reqs": 1, "num_tokens": 4, "uniform_token_count": 4},
            {"num_reqs": 2, "num_tokens": 7},
        ],
    )
    assert [str(own.descriptor.cg_mode) for own in decided] == ["PIECEWISE", "PIECEWISE"]
    assert {own.num_tokens_across_dp for own in decided} == {(8, 8)}
