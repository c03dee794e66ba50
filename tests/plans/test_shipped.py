"""What is shipped under plans/ is current, readable and free of errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner import compile_plan, dump_plan, load_deployment, load_plan
from planner.cli.check import plan_findings
from planner.documents.digest import is_edited
from planner.modes import CapturePolicy
from planner.rules.settings import SUPPORTED_ENGINES
from planner.verify import verify
from planner.verify.own_traffic import own_traffic
from tools.update_generated import PLANS, generated

GENERATED = dict(generated())
HAND_WRITTEN = sorted(PLANS.glob("*.yaml"))
DEPLOYMENTS = sorted((PLANS / "deployments").glob("*.yaml"))


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_generated_files_are_current(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == GENERATED[path], "run tools/update_generated.py"


def test_every_compiled_plan_has_its_deployment() -> None:
    assert {path.name for path in (PLANS / "compiled").iterdir()} == {path.name for path in DEPLOYMENTS}


@pytest.mark.parametrize("path", DEPLOYMENTS, ids=lambda path: path.stem)
def test_a_shipped_plan_stands_alone(path: Path) -> None:
    plan = load_plan(PLANS / "compiled" / path.name)
    assert plan.name == path.stem
    assert not is_edited(plan)
    own = own_traffic(plan, PLANS / "compiled")
    assert own.finding is None
    assert compile_plan(own.deployment).digest == plan.digest == compile_plan(load_deployment(path)).digest


@pytest.mark.parametrize("path", DEPLOYMENTS, ids=lambda path: path.stem)
def test_a_shipped_plan_is_checked_without_errors_and_is_current(path: Path) -> None:
    found = {
        finding.code: finding.severity
        for finding in plan_findings(load_plan(PLANS / "compiled" / path.name), PLANS / "compiled")
    }
    assert "error" not in found.values()
    assert not found.keys() & {"edited", "stale", "deployment-refused", "traffic-not-read", "traffic-changed"}


def test_one_shipped_plan_is_of_the_traffic_policy_and_one_at_least_of_each_engine() -> None:
    plans = [load_plan(PLANS / "compiled" / path.name) for path in DEPLOYMENTS]
    assert any(plan.deployment.capture.policy is CapturePolicy.TRAFFIC for plan in plans)
    assert {plan.deployment.engine.name or "vllm" for plan in plans} == set(SUPPORTED_ENGINES)


@pytest.mark.parametrize("path", HAND_WRITTEN, ids=lambda path: path.stem)
def test_hand_written_plans_have_no_errors_and_keep_their_order(path: Path) -> None:
    plan = load_plan(path)
    assert not [finding for finding in verify(plan) if finding.severity == "error"]
    assert load_plan(dump_plan(plan)) == plan


def test_four_plans_are_written_by_hand_one_of_them_with_a_prologue() -> None:
    plans = [load_plan(path) for path in HAND_WRITTEN]
    assert len(plans) >= 4
    assert any(entry.prologue for plan in plans for family in plan.graphs for entry in plan.entries(family))
