"""A plan's capture sizes as settings, for plans that an engine's own rules do not give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve

from planner.compile import compile_plan
from planner.descriptors import PlanEntry
from planner.documents.deployment import CaptureSection, Deployment, Json
from planner.documents.engine_sections import SglangSection, TensorrtCudaGraphConfig, TensorrtLlmSection
from planner.documents.plan import TARGET, Plan
from planner.engines.lookup import is_decode
from planner.engines.sglang.config import DECODE
from planner.engines.shared import SGLANG, VLLM, engine_name
from planner.errors import ExportError, GraphplanError
from planner.modes import CapturePolicy, CUDAGraphMode, Runner


def target_entries(plan: Plan) -> tuple[PlanEntry, ...]:
    """The graphs of the target, from whose sizes those of all other families follow.

    Raises:
        ExportError: there is no such family.
    """
    if TARGET not in plan.graphs:
        raise ExportError(
            f"an engine is told the sizes of the target alone, and the plan has no family {TARGET}; add it",
            fields=("graphs",),
        )
    return plan.graphs[TARGET]


def follows_from_rules(plan: Plan) -> bool:
    """Whether the rules of the plan's engine give its graphs without being told any sizes."""
    deployment = plan.deployment
    if deployment == Deployment() or deployment.capture.policy not in (None, CapturePolicy.ENGINE):
        return False
    resolved = plan.resolved.get(TARGET)
    if engine_name(deployment) == VLLM and resolved and resolved.runner is not _runner_of(deployment):
        return False
    return _gives(deployment, plan)


def _gives(deployment: Deployment, plan: Plan) -> bool:
    try:
        return dict(compile_plan(deployment).graphs) == dict(plan.graphs)
    except GraphplanError:
        return False


def with_sizes(plan: Plan) -> Deployment:
    """The plan's deployment with its capture sizes and its mode written out.

    Raises:
        ExportError: the plan has no graphs of the target.
    """
    entries = target_entries(plan)
    deployment = evolve(plan.deployment, capture=CaptureSection())
    engine = engine_name(deployment)
    if engine == VLLM:
        return _with_vllm_sizes(deployment, plan, entries)
    decode = tuple(sorted({entry.num_reqs or 0 for entry in entries if is_decode(entry)}))
    prefill = tuple(sorted({entry.num_tokens for entry in entries if not is_decode(entry)}))
    if engine == SGLANG:
        return evolve(deployment, sglang=sglang_sizes(deployment.sglang or SglangSection(), decode, prefill))
    section = deployment.tensorrt_llm or TensorrtLlmSection()
    return evolve(deployment, tensorrt_llm=tensorrt_llm_sizes(section, decode, prefill))


def _with_vllm_sizes(deployment: Deployment, plan: Plan, entries: Sequence[PlanEntry]) -> Deployment:
    resolved = plan.resolved.get(TARGET)
    captured = tuple(sorted({entry.num_tokens for entry in entries}))
    if resolved is None:
        return _sized(deployment, mode_of(entries), captured)
    if deployment == Deployment(name=deployment.name) or (
        deployment.engine.runner is None and _runner_of(deployment) is not resolved.runner
    ):
        deployment = evolve(deployment, engine=evolve(deployment.engine, runner=resolved.runner))
    # Decode may be rounded up to whole requests: its tokens are then no sizes of their own.
    by_rule = _sized(deployment, resolved.cudagraph_mode, resolved.cudagraph_capture_sizes)
    if _gives(by_rule, plan):
        return by_rule
    return _sized(deployment, resolved.cudagraph_mode, captured)


def _runner_of(deployment: Deployment) -> Runner | None:
    """The runner that serves ``deployment``; none where its engine refuses it."""
    try:
        return compile_plan(deployment).resolved[TARGET].runner
    except GraphplanError:
        return None


def _sized(deployment: Deployment, mode: CUDAGraphMode, sizes: tuple[int, ...]) -> Deployment:
    compilation = evolve(
        deployment.compilation,
        cudagraph_mode=mode,
        cudagraph_capture_sizes=sizes or None,
        max_cudagraph_capture_size=None,
    )
    return evolve(deployment, compilation=compilation)


def mode_of(entries: Sequence[PlanEntry]) -> CUDAGraphMode:
    """The mode under which vLLM captures graphs of the kinds of ``entries``."""
    full = [entry for entry in entries if entry.mode is CUDAGraphMode.FULL]
    if len(full) == len(entries):
        mixed = any(not is_decode(entry) for entry in full)
        if not full:
            return CUDAGraphMode.NONE
        return CUDAGraphMode.FULL if mixed else CUDAGraphMode.FULL_DECODE_ONLY
    return CUDAGraphMode.FULL_AND_PIECEWISE if full else CUDAGraphMode.PIECEWISE


def sglang_sizes(
    section: SglangSection, decode: tuple[int, ...], prefill: tuple[int, ...] | None
) -> SglangSection:
    """The section with decode sizes in requests and prefill sizes in tokens; ``None`` leaves prefill open."""
    section = evolve(
        section,
        cuda_graph_config=_without_sizes(section.cuda_graph_config, decode, prefill),
        cuda_graph_bs=None,
        cuda_graph_max_bs=None,
        cuda_graph_bs_decode=decode or None,
        cuda_graph_max_bs_decode=None,
        disable_decode_cuda_graph=None if decode else True,
    )
    if prefill is None:
        return section
    return evolve(
        section,
        cuda_graph_bs_prefill=prefill or None,
        cuda_graph_max_bs_prefill=None,
        disable_prefill_cuda_graph=None if prefill else True,
    )


def _without_sizes(
    config: Mapping[str, Json] | None, decode: tuple[int, ...], prefill: tuple[int, ...] | None
) -> dict[str, Json] | None:
    """What the JSON config says beside sizes; it would win over the flags."""
    kept: dict[str, Json] = {}
    for phase, keys in (config or {}).items():
        has_graphs = decode if phase == DECODE else prefill
        dropped = ("bs", "max_bs") if has_graphs else ("bs", "max_bs", "backend")
        if rest := {key: value for key, value in keys.items() if key not in dropped}:
            kept[phase] = rest
    return kept or None


def tensorrt_llm_sizes(
    section: TensorrtLlmSection, decode: tuple[int, ...], prefill: tuple[int, ...] | None
) -> TensorrtLlmSection:
    """As ``sglang_sizes``; padding stays as it is."""
    config = section.cuda_graph_config or TensorrtCudaGraphConfig()
    config = evolve(config, batch_sizes=decode, max_batch_size=None)
    section = evolve(section, cuda_graph_config=config if decode else None)
    if prefill is None:
        return section
    backend = section.prefill_cuda_graph_backend or "piecewise"
    return evolve(
        section,
        torch_compile_config=None,
        prefill_cuda_graph_backend=backend if prefill else None,
        prefill_capture_num_tokens=prefill or None,
    )
