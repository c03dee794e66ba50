"""Backends that a deployment names, one a KV group."""

from __future__ import annotations

import pytest

from planner import PlanError, compile_plan, load_deployment
from planner.rules.attention import MAX_KV_GROUPS


def deployment(groups: int) -> dict[str, object]:
    backends = ["FLASH_ATTN"] * groups
    return {"apiVersion": "graphplan/v1", "kind": "Deployment", "model": {"attention_backends": backends}}


def test_a_model_has_no_more_kv_groups_than_every_family_can_list() -> None:
    plan = compile_plan(load_deployment(deployment(MAX_KV_GROUPS)))
    assert len(plan.resolved["target"].attention_groups) == MAX_KV_GROUPS
    with pytest.raises(PlanError, match="257 backends are named"):
        compile_plan(load_deployment(deployment(MAX_KV_GROUPS + 1)))
