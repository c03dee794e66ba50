"""Whatever is exported goes around or is refused with a reason; nothing in between."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner import Deployment, Plan, compile_plan
from planner.documents.plan import TARGET
from planner.engines.lookup import is_decode
from planner.engines.shared import SGLANG, TENSORRT_LLM, VLLM
from planner.errors import ExportError
from planner.exporters.export import export
from planner.exporters.exported import FORMATS
from planner.testing import deployments, plans
from tests.planner.exporters.round_trip import assert_same_plan, of_the_same_model, started

FORMS = st.sampled_from(FORMATS)
ENGINES = st.sampled_from((VLLM, SGLANG, TENSORRT_LLM))


def planned_again(plan: Plan, engine: str, form: str, *, pinned: bool = False) -> Plan:
    exported = export(plan, engine, form, pinned=pinned)
    with TemporaryDirectory() as folder:
        again = started(exported, form, Path(folder))
    return compile_plan(of_the_same_model(again, plan.deployment) if engine == VLLM else again)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(deployments(valid_only=True), FORMS)
def test_every_deployment_of_vllm_goes_around_but_for_drafts_of_adapters(
    deployment: Deployment, form: str
) -> None:
    plan = compile_plan(deployment)
    try:
        found = planned_again(plan, VLLM, form)
    except ExportError as refused:
        assert "vllm serve takes LoRA with drafts only" in str(refused)  # noqa: PT017 - the other outcome of the property
        return
    assert_same_plan(found, plan)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(deployments(valid_only=True), FORMS)
def test_sizes_written_out_cover_the_plan_or_are_refused(deployment: Deployment, form: str) -> None:
    plan = compile_plan(deployment)
    try:
        found = planned_again(plan, VLLM, form, pinned=True)
    except ExportError as refused:
        assert refused.fields  # noqa: PT017 - the other outcome of the property
        return
    for family, entries in plan.graphs.items():
        assert set(entries) <= set(found.graphs[family])


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plans(), ENGINES, FORMS)
def test_a_plan_is_covered_by_what_is_exported_or_refused(plan: Plan, engine: str, form: str) -> None:
    try:
        found = planned_again(plan, engine, form)
    except ExportError as refused:
        assert refused.fields  # noqa: PT017 - the other outcome of the property
        return
    if engine == VLLM:
        assert all(
            set(entries) <= set(found.graphs.get(family, ())) for family, entries in plan.graphs.items()
        )
    else:
        decoded = {entry.num_tokens for entry in plan.entries(TARGET) if is_decode(entry)}
        assert decoded <= {entry.num_tokens for entry in found.entries(TARGET) if is_decode(entry)}
