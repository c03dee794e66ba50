"""Every answer of vLLM 0.33's V1 runner: mode, sizes, captures and dispatch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from planner import BatchDescriptor, CUDAGraphMode, PlanError, compile_plan, dump_plan, load_plan
from tests.planner.golden_lines import golden_lines, load, name

LINES = golden_lines("v1")
ANSWERED = [line for line in LINES if "error" not in line["expect"]]
REFUSED = [line for line in LINES if "error" in line["expect"]]


def as_answer(mode: CUDAGraphMode, key: BatchDescriptor) -> dict[str, Any]:
    """A V1 answer in the form of the golden file."""
    return {
        "mode": str(mode),
        "num_tokens": key.num_tokens,
        "num_reqs": key.num_reqs,
        "uniform": key.uniform,
        "has_lora": key.has_lora,
        "num_active_loras": key.num_active_loras,
    }


def counted(answers: list[dict[str, Any]]) -> Counter[tuple[tuple[str, Any], ...]]:
    """Ties of equal tokens and LoRAs come in no particular order in the golden file."""
    return Counter(tuple(sorted(answer.items())) for answer in answers)


def test_the_golden_file_has_lines_of_every_kind() -> None:
    assert min(len(ANSWERED), len(REFUSED)) > 0


@pytest.mark.parametrize("line", ANSWERED, ids=name)
def test_mode_and_sizes_are_the_engines(line: dict[str, Any]) -> None:
    target = compile_plan(load(line)).resolved["target"]
    expect = line["expect"]
    assert str(target.runner) == "v1"
    assert str(target.cudagraph_mode) == expect["cudagraph_mode"]
    assert list(target.cudagraph_capture_sizes) == expect["cudagraph_capture_sizes"]
    assert target.max_cudagraph_capture_size == expect["max_cudagraph_capture_size"]


@pytest.mark.parametrize("line", ANSWERED, ids=name)
def test_captures_are_the_engines_pieces_first_and_largest_first(line: dict[str, Any]) -> None:
    entries = compile_plan(load(line)).entries("target")
    captured = [as_answer(entry.mode, entry.batch_descriptor) for entry in entries]
    assert counted(captured) == counted(line["expect"]["capture"])
    places = [(entry.mode is CUDAGraphMode.FULL, -entry.num_tokens) for entry in entries]
    assert places == sorted(places)


@pytest.mark.parametrize("line", ANSWERED, ids=name)
def test_every_batch_is_dispatched_as_the_engine_does(line: dict[str, Any]) -> None:
    plan = compile_plan(load(line))
    for table in (plan.dispatch_table("target"), load_plan(dump_plan(plan)).dispatch_table("target")):
        answers = [as_answer(*table.dispatch(**query)) for query in line["queries"]]
        assert answers == line["expect"]["dispatch"]


@pytest.mark.parametrize("line", REFUSED, ids=name)
def test_what_the_engine_refuses_is_refused_with_the_field(line: dict[str, Any]) -> None:
    with pytest.raises(PlanError) as refusal:
        compile_plan(load(line))
    assert refusal.value.fields
    assert all(field in str(refusal.value) for field in refusal.value.fields)
