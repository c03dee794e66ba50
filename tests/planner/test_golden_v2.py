"""Every answer of vLLM 0.33's V2 runner: mode, sizes, captures in order, dispatch, DP steps, drafts."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from planner import Plan, PlanError, agree, compile_plan
from tests.planner.golden_lines import as_answer, as_decision, golden_lines, load, name

LINES = golden_lines("v2")
ANSWERED = [line for line in LINES if "error" not in line["expect"]]
REFUSED = [line for line in LINES if "error" in line["expect"]]
DRAFTED = [line for line in ANSWERED if "draft_mode" in line["expect"]]
STEPPED = [line for line in ANSWERED if "dp_steps" in line["expect"]]


NAMED = {name(line): line for line in LINES}


@cache
def plan_named(line_name: str) -> Plan:
    return compile_plan(load(NAMED[line_name]))


def plan_of(line: dict[str, Any]) -> Plan:
    """The plan of an answered line, made once for all questions."""
    return plan_named(name(line))


def test_the_golden_file_has_lines_of_every_kind() -> None:
    assert len(NAMED) == len(LINES)
    assert min(len(ANSWERED), len(REFUSED), len(DRAFTED), len(STEPPED)) > 0


@pytest.mark.parametrize("line", ANSWERED, ids=name)
def test_mode_and_sizes_are_the_engines(line: dict[str, Any]) -> None:
    target = plan_of(line).resolved["target"]
    expect = line["expect"]
    assert str(target.cudagraph_mode) == expect["cudagraph_mode"]
    assert list(target.cudagraph_capture_sizes) == expect["cudagraph_capture_sizes"]
    assert target.max_cudagraph_capture_size == expect["max_cudagraph_capture_size"]


@pytest.mark.parametrize("line", ANSWERED, ids=name)
def test_captures_are_the_engines_in_its_order(line: dict[str, Any]) -> None:
    entries = plan_of(line).entries("target")
    assert [as_answer(entry) for entry in entries] == line["expect"]["capture"]


@pytest.mark.parametrize("line", ANSWERED, ids=name)
def test_every_batch_is_dispatched_as_the_engine_does(line: dict[str, Any]) -> None:
    table = plan_of(line).dispatch_table("target")
    answers = [as_answer(table.dispatch(**query)) for query in line["queries"]]
    assert answers == line["expect"]["dispatch"]


@pytest.mark.parametrize("line", DRAFTED, ids=name)
def test_the_draft_family_is_the_engines(line: dict[str, Any]) -> None:
    plan = plan_of(line)
    captured = []
    for entry in plan.entries("draft"):
        assert entry.prologue is not None
        captured.append(as_answer(entry) | {"num_context_tokens": entry.prologue.num_context_tokens})
    assert str(plan.resolved["draft"].cudagraph_mode) == line["expect"]["draft_mode"]
    assert captured == line["expect"]["draft_capture"]


@pytest.mark.parametrize("line", STEPPED, ids=name)
def test_every_rank_decides_as_in_the_engine(line: dict[str, Any]) -> None:
    table = plan_of(line).dispatch_table("target")
    for step, expected in zip(line["dp_steps"], line["expect"]["dp_steps"], strict=True):
        assert [as_decision(agreement) for agreement in agree(table, step)] == expected


@pytest.mark.parametrize("line", REFUSED, ids=name)
def test_what_the_engine_refuses_is_refused_with_the_field(line: dict[str, Any]) -> None:
    with pytest.raises(PlanError) as refusal:
        compile_plan(load(line))
    assert refusal.value.fields
    assert all(field in str(refusal.value) for field in refusal.value.fields)
