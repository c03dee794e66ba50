"""Encoder budgets that the engine refuses (rules 8)."""

from __future__ import annotations

from typing import Any

import pytest

from planner import PlanError, compile_plan, load_deployment


@pytest.mark.parametrize(
    ("budgets", "items", "message"), [([0, 64], 4, "0 is no token budget"), ([64, 128], 65, "65 items")]
)
def test_budgets_that_cannot_be_are_refused(budgets: list[int], items: int, message: str) -> None:
    compilation: dict[str, Any] = {
        "cudagraph_mm_encoder": True,
        "encoder_cudagraph_token_budgets": budgets,
        "encoder_cudagraph_max_vision_items_per_batch": items,
    }
    document = {"apiVersion": "graphplan/v1", "kind": "Deployment", "compilation": compilation}
    with pytest.raises(PlanError, match=message):
        compile_plan(load_deployment(document))


def test_without_the_switch_there_is_no_encoder_family() -> None:
    compilation = {"encoder_cudagraph_token_budgets": [64], "encoder_cudagraph_max_vision_items_per_batch": 4}
    document = {"apiVersion": "graphplan/v1", "kind": "Deployment", "compilation": compilation}
    assert set(compile_plan(load_deployment(document)).graphs) == {"target"}
