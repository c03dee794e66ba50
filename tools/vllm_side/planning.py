"""Deployments: what vLLM's own code makes of the exported settings, beside what the plan says."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from vllm.config import VllmConfig

from planner import Deployment, Plan, compile_plan, dump_plan
from planner.documents.data import plain
from planner.documents.deployment import Json
from planner.documents.plan import TARGET
from planner.engines.vllm_worker import PlanComparison, candidates
from planner.errors import GraphplanError
from planner.exporters.export import export
from planner.exporters.exported import ARGS, Exported
from planner.exporters.vllm import vllm_settings
from planner.rules.devices import device_of
from planner.rules.draft_autoregressive import DRAFT_DECODE
from planner.rules.encoder import ENCODER
from vllm_side.capturing import runner_of
from vllm_side.deployments import Case
from vllm_side.device import pretend
from vllm_side.report import Report
from vllm_side.serving import RefusedError, engine_config, parsed

OF_THE_RUNNER = frozenset(
    {
        "model.attention_support",
        "model.attention_backend",
        "model.varlen_max_query_len",
        "parallel.prefill_context_parallel_size",
        "speculative.num_speculative_tokens_per_batch_size",
    }
)
"""Settings over which vLLM dies once its model is loaded: such refusals are counted, not compared."""


def check_deployment(case: Case, kind: str, report: Report) -> None:
    """Compares one deployment: both refuse it, or both capture the same graphs of the target."""
    pretend(device_of(case.deployment.device))
    try:
        plan = compile_plan(case.deployment)
        exported = export(plan, "vllm", ARGS)
    except GraphplanError as error:
        late = OF_THE_RUNNER & set(getattr(error, "fields", ()))
        report.add(
            f"{kind}, refused by {'the runner' if late else 'both'}",
            case.name,
            [] if late else list(_not_refused(case, error)),
        )
        return
    found = list(_differences(case, plan, exported))
    if found:
        report.told(f"{case.name}: {json.dumps(_without_facts(case.deployment))}")
    report.add(kind, case.name, found)


def _without_facts(deployment: Deployment) -> Json:
    """A deployment for a message, its models by their digests alone."""
    data = plain(deployment)
    for section in ("model", "speculative"):
        data.get(section, {}).pop("config", None)
    return data


def _differences(case: Case, plan: Plan, exported: Exported) -> Iterator[str]:
    resolved = plan.resolved[TARGET]
    try:
        arguments = parsed([str(case.model), *shlex.split(exported.text(ARGS))])
        config = engine_config(arguments, str(case.model), exported.env)
        worker = PlanComparison()
        worker.model_runner = runner_of(config, plan, exported.env)
        found = candidates(worker.model_runner)
    except (RefusedError, ValueError) as error:
        yield f"vLLM refuses it: {' '.join(str(error).split())[:300]}"
        return
    compilation, scheduler = config.compilation_config, config.scheduler_config
    for what, expected, own in (
        ("runner", str(resolved.runner), "v1" if found.is_v1 else "v2"),
        ("cudagraph_mode", str(resolved.cudagraph_mode), compilation.cudagraph_mode.name),
        ("max_num_seqs", resolved.max_num_seqs, scheduler.max_num_seqs),
        ("max_num_batched_tokens", resolved.max_num_batched_tokens, scheduler.max_num_batched_tokens),
    ):
        if expected != own:
            yield f"{what}: {expected} in the plan, {own} in vLLM"
    if resolved.cudagraph_mode and compilation.cudagraph_mode.name != "NONE":
        sizes = list(compilation.cudagraph_capture_sizes)
        if list(resolved.cudagraph_capture_sizes) != sizes:
            yield f"sizes: {list(resolved.cudagraph_capture_sizes)} in the plan, {sizes} in vLLM"
    # The whole way of the worker's extension, with the plan as text.
    lines = worker.graphplan_differences(dump_plan(plan))
    yield from (line for line in lines if line.partition(":")[0] not in _not_decided(config))


def _not_decided(config: VllmConfig) -> frozenset[str]:
    """The families that vLLM decides on by its model, or as it captures them."""
    speculative = config.speculative_config
    if speculative is None or not speculative.uses_dynamic_speculative_decoding():
        return frozenset({ENCODER})
    lengths = range(2, config.num_speculative_tokens + 1)
    return frozenset({ENCODER, DRAFT_DECODE, *(f"{DRAFT_DECODE}_{length}" for length in lengths)})


def _not_refused(case: Case, error: GraphplanError) -> Iterator[str]:
    """Whether vLLM starts with what the planner refuses, up to where its graphs are decided."""
    exported = vllm_settings(case.deployment)
    try:
        arguments = parsed([str(case.model), *shlex.split(exported.text(ARGS))])
        engine_config(arguments, str(case.model), exported.env)
    except RefusedError:
        return
    yield f"the planner refuses it ({error}), vLLM's config does not"
