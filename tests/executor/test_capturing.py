"""Whole plans with stand-in models: shipped and hand-written, every entry proved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from executor.capturing import StandIn, capture_plan
from executor.errors import ModelError
from executor.models.config import read_config
from planner import Plan, load_plan

PLANS = Path(__file__).resolve().parents[2] / "plans"
QWEN = read_config(PLANS / "models" / "qwen3-0.6b" / "config.json")


def tiny(plan: Plan) -> StandIn:
    return StandIn.of_plan(plan, model=QWEN, draft=None, shrink=True, dtype=torch.float32)


@pytest.mark.parametrize("path", sorted(PLANS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_entry_of_the_hand_written_plans_agrees_with_eager(path: Path) -> None:
    plan = load_plan(path)
    outcome = capture_plan(plan, tiny(plan), "cpu")
    assert outcome.ok
    assert not outcome.left_out
    assert sum(len(family.verdicts) for family in outcome.families) == sum(map(len, plan.graphs.values()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3-8b-dflash", "llama-3.1-8b-24gb"])
def test_every_entry_of_shipped_plans_agrees_with_eager(name: str) -> None:
    plan = load_plan(PLANS / "compiled" / f"{name}.yaml")
    outcome = capture_plan(plan, tiny(plan), "cpu")
    assert outcome.ok


def test_families_without_a_reference_model_are_named() -> None:
    plan = load_plan(
        "apiVersion: graphplan/v1\nkind: Plan\ngraphs:\n"
        "  target: [{mode: PIECEWISE, num_tokens: 1}]\n  draft_prefill: [{mode: PIECEWISE, num_tokens: 1}]\n"
    )
    assert capture_plan(plan, tiny(plan), "cpu").left_out == ("draft_prefill",)


def test_a_plan_without_a_model_asks_for_one_unless_it_is_shrunk() -> None:
    plan = load_plan(PLANS / "small-decode.yaml")
    with pytest.raises(ModelError, match="give one with --model"):
        StandIn.of_plan(plan, model=None, draft=None, shrink=False)
    assert StandIn.of_plan(plan, model=None, draft=None, shrink=True).model.num_hidden_layers
