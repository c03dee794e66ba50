"""What turns the graphs of a phase off, in SGLang's order.

The early rules leave a backend alone that the user gave; the later ones do not.
Source: SGLang 0.5.23, compatibility cascade, disaggregation roles and later disablers (rules 3, 7).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planner.documents.deployment import Deployment
from planner.documents.engine_sections import SglangSection
from planner.engines.sglang.config import BREAKABLE, DECODE, DISABLED, PREFILL, GraphConfig
from planner.engines.sglang.parallel import DEEPEP, NO_A2A, Layout

if TYPE_CHECKING:
    from planner.models.facts import ModelFacts

A2A_WITH_PREFILL = frozenset({NO_A2A, DEEPEP, "megamoe", "flashinfer"})
UNCAPTURED_BACKENDS = frozenset({"torch_native", "flex_attention"})
"""Attention backends that no graph can record."""

MLA_PREFILL_BACKEND = "trtllm_mla"
DEEPSEEK_ARCHITECTURES = frozenset({"DeepseekV3ForCausalLM"})
DELTA_ATTENTION_MODELS = frozenset({"kimi_linear"})
DEEPSEEK_V4_MODELS = frozenset({"deepseek_v4"})


def within_cascade(config: GraphConfig, layout: Layout, facts: ModelFacts | None) -> GraphConfig:
    """Without prefill graphs where the engine knows that breakable ones do not work."""
    if config.is_locked(PREFILL, "backend"):
        return config
    because = next(_prefill_obstacles(config, layout, facts), None)
    return config if because is None else config.without(PREFILL, "prefill-compatibility", because)


def _prefill_obstacles(config: GraphConfig, layout: Layout, facts: ModelFacts | None) -> Iterator[str]:
    if config.prefill.backend != BREAKABLE:
        return
    if layout.pp > 1:
        yield f"breakable prefill graphs do not work over {layout.pp} pipeline stages"
    model_type = facts.text_model_type if facts else None
    if model_type in DELTA_ATTENTION_MODELS:
        yield f"the linear attention of {model_type} cannot be recorded in prefill"
    if model_type in DEEPSEEK_V4_MODELS and layout.attn_cp == 1:
        yield f"prefill of {model_type} is recorded with context parallelism only"
    if layout.attn_cp > 1:
        yield f"prefill is spread over {layout.attn_cp} context-parallel ranks"
    if layout.dcp > 1:
        yield f"decode_context_parallel_size is {layout.dcp}"
    if layout.two_batch_overlap:
        yield "two batches overlap"
    if layout.a2a not in A2A_WITH_PREFILL:
        yield f"prefill with moe_a2a_backend {layout.a2a} cannot be recorded"


def by_role(config: GraphConfig, section: SglangSection) -> GraphConfig:
    """Without the graphs of the phase that a server of a disaggregated pair leaves to the other."""
    other = {"prefill": DECODE, "decode": PREFILL}.get(section.disaggregation_mode or "")
    if other is None or config.is_locked(other, "backend") or config.phase(other).backend == DISABLED:
        return config
    because = f"disaggregation_mode is {section.disaggregation_mode}: another server does the {other}"
    return config.without(other, "disaggregation-role", because)


def by_attention_backend(
    config: GraphConfig, deployment: Deployment, section: SglangSection, facts: ModelFacts | None
) -> GraphConfig:
    """Without what the attention backend cannot record."""
    common = deployment.model.attention_backend
    name = (common or "").casefold()
    if name in UNCAPTURED_BACKENDS:
        for phase in (DECODE, PREFILL):
            config = config.without(phase, "attention-backend", f"{name} cannot be recorded")
    of_prefill = (section.prefill_attention_backend or common or "").casefold()
    is_deepseek = facts is not None and facts.architecture in DEEPSEEK_ARCHITECTURES
    if is_deepseek and of_prefill == MLA_PREFILL_BACKEND and not config.is_locked(PREFILL, "backend"):
        because = f"prefill of this model with {MLA_PREFILL_BACKEND} cannot be recorded"
        return config.without(PREFILL, "attention-backend", because)
    return config


def by_all_to_all(config: GraphConfig, layout: Layout, section: SglangSection) -> GraphConfig:
    """Without what the exchange between experts cannot record."""
    if layout.a2a == DEEPEP and section.deepep_mode == "normal":
        for phase in (DECODE, PREFILL):
            config = config.without(phase, "deepep-mode", "deepep_mode normal cannot be recorded")
    if layout.a2a == "deepep_v2":
        because = "prefill with moe_a2a_backend deepep_v2 cannot be recorded"
        config = config.without(PREFILL, "deepep-mode", because)
    return config
