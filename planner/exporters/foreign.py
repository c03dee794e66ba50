"""Exports to another engine than the plan's own: sizes of decode, and what all engines share.

Engines decide by different rules what else they capture, so that only decode of one token a request
means the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from attrs import evolve

from planner.describe import counted, size_runs
from planner.descriptors import PlanEntry
from planner.documents.data import plain
from planner.documents.deployment import (
    CompilationSection,
    Deployment,
    EngineSection,
    ModelSection,
    ParallelSection,
    SchedulerSection,
)
from planner.documents.engine_sections import SglangSection, TensorrtCudaGraphConfig, TensorrtLlmSection
from planner.documents.plan import TARGET, Plan
from planner.engines.lookup import is_decode
from planner.engines.shared import SGLANG, VLLM, engine_name
from planner.errors import ExportError
from planner.exporters.check import planned_again
from planner.exporters.exported import Exported
from planner.exporters.served import ServedModel, served_note
from planner.exporters.sizes import sglang_sizes, target_entries, tensorrt_llm_sizes

_CARRIED = frozenset(
    {
        *("name", "engine.name", "engine.version", "scheduler.max_num_seqs"),
        *("model.config", "model.max_model_len"),
        *("parallel.tensor_parallel_size", "parallel.pipeline_parallel_size"),
        *("device.name", "device.compute_capability", "device.memory_gib"),
    }
)
"""What means the same to every engine."""

_SHARED_SETTINGS: tuple[tuple[str, Callable[[Deployment], object]], ...] = (
    ("scheduler.max_num_batched_tokens", lambda deployment: deployment.scheduler.max_num_batched_tokens),
    ("model.dtype", lambda deployment: deployment.model.dtype),
)
"""What is carried over where it means the same to both engines."""

SHARED_DTYPES = ("auto", "bfloat16", "float16")
"""Types of activations that every engine has by these names."""

SMALLEST_DEFAULT = 256
"""The fewest requests that are a default of vLLM."""


def for_other_engine(
    plan: Plan,
    engine: str,
    form: str,
    exporter: Callable[[Deployment], Exported],
    served: ServedModel | None = None,
) -> Exported:
    """The settings of ``engine`` under which it decodes in the sizes of ``plan``, which is of another.

    Raises:
        ExportError: the plan has graphs that have no counterpart in the other engine.
    """
    target = target_entries(plan)
    _refuse_inexpressible(plan, engine)
    sizes = _decode_sizes(target)
    if not sizes:
        raise ExportError(
            f"only graphs of decode can be carried over to {engine}, and the plan has none",
            fields=(f"graphs.{TARGET}",),
        )
    deployment = _deployment_of(plan, engine, sizes)
    exported = exporter(deployment)
    captured = planned_again(exported, form, deployment)
    found = _decode_sizes(captured.entries(TARGET))
    missing = [size for size in sizes if size not in found]
    if missing:
        raise ExportError(
            f"{engine} does not capture decode of {size_runs(missing)} requests by any setting of sizes; "
            f"leave those sizes out",
            fields=(f"graphs.{TARGET}",),
        )
    other = served_note(exported, form, deployment, captured, served)
    notes = (*_left_out(plan, deployment, engine), *exported.notes, *_beyond(captured, engine, sizes))
    return evolve(exported, notes=notes if other is None else (other, *notes))


def _decode_sizes(entries: Sequence[PlanEntry]) -> list[int]:
    return sorted({entry.num_reqs or entry.num_tokens for entry in entries if is_decode(entry)})


def _refuse_inexpressible(plan: Plan, engine: str) -> None:
    deployment = plan.deployment
    entries = [entry for graphs in plan.graphs.values() for entry in graphs]
    own = engine_name(deployment)
    if any(entry.prologue is not None for entry in entries):
        raise ExportError(
            f"{engine} records no prologue into its graphs; export to {own}", fields=("graphs.draft",)
        )
    if deployment.speculative is not None or any((entry.uniform_token_count or 1) > 1 for entry in entries):
        raise ExportError(
            f"{own} and {engine} draft and verify in different numbers of tokens; write a deployment of "
            f"engine.name {engine}",
            fields=("speculative",),
        )
    if deployment.lora is not None or any(entry.num_active_loras for entry in entries):
        raise ExportError(
            f"{own} and {engine} capture different cases of LoRA; write a deployment of engine.name {engine}",
            fields=("lora",),
        )
    if any(entry.num_ubatches > 1 for entry in entries):
        raise ExportError(
            f"{engine} does not cut steps into the microbatches of {own}; write a deployment of engine.name "
            f"{engine}",
            fields=("parallel.enable_dbo",),
        )


def _deployment_of(plan: Plan, engine: str, sizes: Sequence[int]) -> Deployment:
    resolved, own = plan.resolved.get(TARGET), plan.deployment
    base = Deployment(
        name=plan.name,
        engine=EngineSection(name=engine),
        model=ModelSection(
            config=own.model.config,
            max_model_len=own.model.max_model_len,
            dtype=own.model.dtype if own.model.dtype in SHARED_DTYPES else None,
        ),
        parallel=ParallelSection(
            tensor_parallel_size=own.parallel.tensor_parallel_size,
            pipeline_parallel_size=own.parallel.pipeline_parallel_size,
        ),
        scheduler=SchedulerSection(
            max_num_seqs=_most_requests(plan, engine, sizes),
            max_num_batched_tokens=_most_tokens(plan, engine, sizes),
        ),
        device=own.device,
    )
    if engine == VLLM:
        return evolve(base, compilation=CompilationSection(cudagraph_capture_sizes=tuple(sizes)))
    if engine == SGLANG:
        return evolve(base, sglang=sglang_sizes(SglangSection(), tuple(sizes), None))
    pads = resolved is None or resolved.lookup is None or resolved.lookup.pads_decode
    section = TensorrtLlmSection(cuda_graph_config=TensorrtCudaGraphConfig(enable_padding=pads or None))
    return evolve(base, tensorrt_llm=tensorrt_llm_sizes(section, tuple(sizes), None))


def _most_requests(plan: Plan, engine: str, sizes: Sequence[int]) -> int | None:
    """The most requests, where they are asked for or where the engine's default would be another's."""
    asked, resolved = plan.deployment.scheduler.max_num_seqs, plan.resolved.get(TARGET)
    if asked is not None:
        return asked
    if engine != VLLM:
        return resolved.max_num_seqs if resolved is not None else None
    # Other engines take many more by default than a step of vLLM has tokens.
    return sizes[-1] if sizes[-1] > SMALLEST_DEFAULT else None


def _most_tokens(plan: Plan, engine: str, sizes: Sequence[int]) -> int | None:
    """The most tokens of a step, where they are asked for and the other engine has such a limit.

    SGLang's own bounds chunks of prefill, and no whole step.
    """
    asked = plan.deployment.scheduler.max_num_batched_tokens
    if asked is None or SGLANG in (engine, engine_name(plan.deployment)):
        return None
    requests = _most_requests(plan, engine, sizes)
    return asked if asked >= max(requests or 0, sizes[-1]) else None


def _left_out(plan: Plan, carried: Deployment, engine: str) -> Iterator[str]:
    """What of the plan the other engine is not told."""
    own = engine_name(plan.deployment)
    told = {*_CARRIED, *(path for path, asked in _SHARED_SETTINGS if asked(carried) is not None)}
    paths = [
        path
        for section, values in plain(plan.deployment).items()
        for path in ([f"{section}.{key}" for key in values] if isinstance(values, dict) else [section])
        if path not in told and not path.endswith("_sha256")
    ]
    if paths:
        yield (
            f"not carried over from {own} to {engine}: {', '.join(paths)}; "
            f"set what {engine} has in their place"
        )
    for family, entries in plan.graphs.items():
        left = [entry for entry in entries if family != TARGET or not is_decode(entry)]
        if left:
            sizes = size_runs(sorted({entry.num_tokens for entry in left}))
            yield (
                f"{counted(len(left), 'graph')} of {family} that are not of decode ({sizes} tokens) are left "
                f"to the rules of {engine}"
            )


def _beyond(captured: Plan, engine: str, sizes: Sequence[int]) -> Iterator[str]:
    extra = [size for size in _decode_sizes(captured.entries(TARGET)) if size not in sizes]
    if extra:
        yield f"{engine} captures decode of {size_runs(extra)} requests beyond the plan"
    for family, entries in captured.graphs.items():
        other = [entry for entry in entries if family != TARGET or not is_decode(entry)]
        if other:
            tokens = size_runs(sorted({entry.num_tokens for entry in other}))
            graphs = counted(len(other), "graph")
            yield f"{engine} captures {graphs} of {family} by its own rules: {tokens} tokens"
