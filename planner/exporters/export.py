"""From a Plan or a Deployment to an engine's own settings, checked by importing and planning them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from attrs import evolve

from planner.compile import compile_plan
from planner.documents.data import plain
from planner.documents.deployment import CaptureSection, Deployment
from planner.documents.plan import TARGET, Plan
from planner.engines.shared import SGLANG, TENSORRT_LLM, VLLM, engine_name
from planner.exporters.check import checked
from planner.exporters.exported import Exported
from planner.exporters.foreign import for_other_engine
from planner.exporters.served import ServedModel, served_note
from planner.exporters.sglang import export_sglang
from planner.exporters.sizes import follows_from_rules, with_sizes
from planner.exporters.tensorrt_llm import export_tensorrt_llm
from planner.exporters.vllm import export_vllm
from planner.modes import Usage

_EXPORTERS: Mapping[str, Callable[[Deployment], Exported]] = {
    VLLM: export_vllm,
    SGLANG: export_sglang,
    TENSORRT_LLM: export_tensorrt_llm,
}


def export(
    document: Deployment | Plan,
    engine: str,
    form: str,
    *,
    pinned: bool = False,
    served: ServedModel | None = None,
) -> Exported:
    """The settings of ``engine`` under which it captures the graphs of ``document``.

    ``form`` is the one in which they are checked. Sizes are written out where the engine's own rules do
    not give them, or all of them if ``pinned``. ``served`` is the model that the server is started with,
    where it is known.

    Raises:
        ExportError: the engine cannot express the document.
        PlanError: the engine that a Deployment names would refuse to start.
    """
    plan = document if isinstance(document, Plan) else compile_plan(document)
    if engine != engine_name(plan.deployment):
        return for_other_engine(plan, engine, form, _EXPORTERS[engine], served)
    notes: list[str] = []
    deployment = plan.deployment
    if pinned or not follows_from_rules(plan):
        deployment = with_sizes(plan)
        notes.extend(_capture_notes(plan.deployment))
    else:
        notes.extend(f"capture.{key} has no effect and is left out" for key in deployment.capture.unused)
    deployment, told = _as_served(deployment)
    exported = _EXPORTERS[engine](deployment)
    result = checked(exported, form, deployment, plan.graphs)
    other = served_note(exported, form, deployment, result.plan, served)
    notes.extend(() if other is None else (other,))
    notes.extend((*told, *_draft_notes(deployment), *exported.notes, *result.beyond))
    return evolve(exported, notes=tuple(notes))


def _capture_notes(deployment: Deployment) -> Iterator[str]:
    for key, value in plain(deployment.capture).items():
        if key == "policy":
            yield f"capture.policy: {value}: its sizes are written out"
        elif key not in ("traffic_sha256", "step_times"):
            yield f"capture.{key}: {value}: only the sizes that follow from it are written out"


def _draft_notes(deployment: Deployment) -> Iterator[str]:
    speculative = deployment.speculative
    if speculative is not None and speculative.config is not None and speculative.model is None:
        yield "speculative.model is not given: the engine needs the name of the draft model as well"


def _as_served(deployment: Deployment) -> tuple[Deployment, tuple[str, ...]]:
    """The deployment with numbers that vLLM defaults otherwise where a server is started."""
    if deployment.engine.usage is not Usage.OFFLINE:
        return deployment, ()
    resolved = compile_plan(evolve(deployment, capture=CaptureSection())).resolved[TARGET]
    scheduler = evolve(
        deployment.scheduler,
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
    )
    deployment = evolve(
        deployment, scheduler=scheduler, engine=evolve(deployment.engine, usage=Usage.API_SERVER)
    )
    return deployment, ("engine.usage: offline: its defaults of the scheduler are written out for a server",)
