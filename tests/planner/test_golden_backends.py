"""Every answer of vLLM 0.33's own backend selection, through a whole compile."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from planner import PlanError, compile_plan, load_deployment
from tests.planner.golden_lines import backend_lines, name

LINES = backend_lines()
ANSWERED = [line for line in LINES if "error" not in line["answer"]]
REFUSED = [line for line in LINES if "error" in line["answer"]]


@pytest.mark.parametrize("line", ANSWERED, ids=name)
def test_runner_groups_support_and_mode_are_the_engines(line: dict[str, Any]) -> None:
    target = compile_plan(load_deployment(line["deployment"])).resolved["target"]
    answer = line["answer"]
    groups = Counter(
        (group.kind.removeprefix("draft "), group.backend, str(group.support))
        for group in target.attention_groups
    )
    assert groups == Counter(
        (group["kind"], group["backend"], group["support"]) for group in answer["groups"]
    )
    assert str(target.attention_support) == answer["support"]
    assert str(target.runner) == answer["runner"]
    assert str(target.cudagraph_mode) == answer["cudagraph_mode"]


@pytest.mark.parametrize("line", REFUSED, ids=name)
def test_what_the_engine_refuses_is_refused(line: dict[str, Any]) -> None:
    with pytest.raises(PlanError) as refusal:
        compile_plan(load_deployment(line["deployment"]))
    assert refusal.value.fields
