"""Which settings each engine has: those of another engine are refused, as the engine itself would.

Sections are shared between engines where the settings mean the same; what one engine alone has is
under a section of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from attrs import fields, frozen

from planner.describe import range_fault
from planner.documents.deployment import Deployment
from planner.documents.plan import Plan
from planner.modes import Runner

VLLM = "vllm"
SGLANG = "sglang"
TENSORRT_LLM = "tensorrt-llm"

SECTIONS: Mapping[str, str] = MappingProxyType({"sglang": SGLANG, "tensorrt_llm": TENSORRT_LLM})
"""Sections that one engine has, and which."""

TOKENS_FIELD = "scheduler.max_num_batched_tokens"
DP_ATTENTION_FIELD = "parallel.enable_dp_attention"

_SHARED_NAMES = """
engine.name engine.version engine.env
model.config model.max_model_len model.dtype model.kv_cache_dtype model.block_size model.num_kv_blocks
model.attention_backend
parallel.tensor_parallel_size parallel.pipeline_parallel_size parallel.enable_dp_attention
scheduler.max_num_seqs scheduler.max_num_batched_tokens
speculative.method speculative.model speculative.config speculative.num_speculative_tokens
lora.max_loras
"""
_SHARED = frozenset(_SHARED_NAMES.split())
_OF_ENGINE: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        SGLANG: _SHARED | {"parallel.data_parallel_size", "parallel.decode_context_parallel_size"},
        TENSORRT_LLM: _SHARED,
    }
)
"""Settings of shared sections that engines beside vLLM have."""

_UNCHECKED = frozenset({"name", "capture", "device", *SECTIONS})

_INSTEAD: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        SGLANG: {
            "model.enforce_eager": "sglang.disable_cuda_graph",
            "parallel.all2all_backend": "sglang.moe_a2a_backend",
            "parallel.enable_dbo": "sglang.enable_two_batch_overlap",
            "parallel.prefill_context_parallel_size": "sglang.attn_cp_size",
            "scheduler.enable_chunked_prefill": f"{TOKENS_FIELD}: -1",
            "compilation.cudagraph_mode": "sglang.cuda_graph_backend_decode and cuda_graph_backend_prefill",
            "compilation.cudagraph_capture_sizes": "sglang.cuda_graph_bs_decode and cuda_graph_bs_prefill",
            "compilation.max_cudagraph_capture_size": "sglang.cuda_graph_max_bs_decode",
            "attention.backend": "model.attention_backend",
        },
        TENSORRT_LLM: {
            "model.enforce_eager": "tensorrt_llm.cuda_graph_config: null",
            "parallel.data_parallel_size": f"{DP_ATTENTION_FIELD}, over the tensor-parallel ranks",
            "speculative.num_speculative_tokens_per_batch_size": "tensorrt_llm.speculative_config",
            "compilation.cudagraph_mode": "tensorrt_llm.cuda_graph_config and prefill_cuda_graph_backend",
            "compilation.cudagraph_capture_sizes": "tensorrt_llm.cuda_graph_config.batch_sizes",
            "compilation.max_cudagraph_capture_size": "tensorrt_llm.cuda_graph_config.max_batch_size",
            "attention.backend": "model.attention_backend",
        },
    }
)
"""What an engine has in place of a setting that it does not have."""


LOOKUP_RUNNERS = (Runner.SGLANG, Runner.TENSORRT_LLM)


@frozen
class Fault:
    """A setting that the deployment's engine does not take, by its dotted path; perhaps only its value."""

    path: str
    message: str
    of_value: bool = False


def engine_name(deployment: Deployment) -> str:
    """The engine of ``deployment``, vLLM where it names none."""
    return deployment.engine.name or VLLM


def lookup_runner(plan: Plan, family: str) -> Runner | None:
    """The engine that looks ``family`` up by requests and by tokens; ``None`` for vLLM's runners."""
    resolved = plan.resolved.get(family)
    if resolved is not None:
        return resolved.runner if resolved.runner in LOOKUP_RUNNERS else None
    return next((one for one in LOOKUP_RUNNERS if one.value == plan.deployment.engine.name), None)


def engine_faults(deployment: Deployment) -> Iterator[Fault]:
    """The settings that the engine of ``deployment`` does not take; none for an engine not known."""
    engine = engine_name(deployment)
    if engine != VLLM and engine not in _OF_ENGINE:
        return
    for section, owner in SECTIONS.items():
        if owner != engine and getattr(deployment, section) is not None:
            yield Fault(section, f"has settings of {owner}, but engine.name is {engine}; drop the section")
    tokens = deployment.scheduler.max_num_batched_tokens
    if tokens is not None and (fault := range_fault(tokens, -1 if engine == SGLANG else 1, None)):
        yield Fault(TOKENS_FIELD, fault, of_value=True)
    if engine == VLLM:
        if deployment.parallel.enable_dp_attention is not None:
            message = "unknown key; vllm has none of that name, sglang and tensorrt-llm have"
            yield Fault(DP_ATTENTION_FIELD, message)
        return
    for path in _given(deployment):
        if path not in _OF_ENGINE[engine]:
            instead = _INSTEAD[engine].get(path)
            yield Fault(path, f"{engine} has no such setting; {f'write {instead}' if instead else 'drop it'}")


def _given(deployment: Deployment) -> Iterator[str]:
    """Dotted paths of what is given in the sections that engines share."""
    for section in fields(Deployment):
        record = getattr(deployment, section.name)
        if section.name in _UNCHECKED or record is None:
            continue
        empty = type(record)()
        for attribute in fields(type(record)):
            value = getattr(record, attribute.name)
            if value == getattr(empty, attribute.name):
                continue
            names = value if attribute.name == "ignored" else (attribute.name,)
            yield from (f"{section.name}.{name}" for name in names)
