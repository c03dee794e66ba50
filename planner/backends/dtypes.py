"""The element types of a model and of its KV cache, as the engine settles them.

Source: vLLM 0.33, model and cache config (types ``auto`` and per-architecture rewrites).
"""

from __future__ import annotations

from planner.backends.environment import Capability, shown
from planner.errors import PlanError
from planner.models.facts import DTYPES, FP16_REFUSED_MODEL_TYPES, ModelFacts

FIRST_BF16: Capability = (8, 0)


def model_dtype(facts: ModelFacts, asked: str | None, capability: Capability) -> str:
    """The type that the model runs in.

    Raises:
        PlanError: the type is unknown, or one that the engine refuses for this model.
    """
    if asked in (None, "auto"):
        return _automatic(facts, capability)
    wanted = DTYPES.get(str(asked))
    if wanted is None or wanted == "float64":
        raise PlanError(
            f"{asked!r} is not a type that a model runs in; known are auto, half, float16, bfloat16, float, "
            "float32",
            fields=("model.dtype",),
        )
    if wanted == "float16" and _refuses_fp16(facts):
        raise PlanError(
            f"float16 is asked, but a {facts.text_model_type} model overflows in it; use auto, bfloat16 or "
            "float32",
            fields=("model.dtype", "model.config"),
        )
    return wanted


def _refuses_fp16(facts: ModelFacts) -> bool:
    return not FP16_REFUSED_MODEL_TYPES.isdisjoint((facts.model_type, facts.text_model_type))


def _automatic(facts: ModelFacts, capability: Capability) -> str:
    wanted = facts.dtype or "float32"
    fp16 = not _refuses_fp16(facts)
    if wanted in ("float32", "float64"):
        wanted = "float16" if facts.is_pooling else "bfloat16"
    if wanted == "float16" and not fp16:
        wanted = "bfloat16"
    if wanted == "bfloat16" and capability < FIRST_BF16:
        wanted = "float16" if fp16 else "float32"
    return wanted


def kv_cache_dtype(facts: ModelFacts, asked: str | None, dtype: str, capability: Capability) -> str:
    """The type of the KV cache before any backend changes it: ``auto`` for the model's own.

    Raises:
        PlanError: a 16-bit type is asked that is not the model's.
    """
    if asked in ("float16", "bfloat16") and asked != dtype:
        raise PlanError(
            f"kv_cache_dtype {asked} is asked but the model runs in {dtype} on compute capability "
            f"{shown(capability)}; use auto or {dtype}",
            fields=("model.kv_cache_dtype", "model.dtype"),
        )
    wanted = (facts.kv_cache_dtype or "auto") if asked in (None, "auto") else str(asked)
    if facts.architecture == "DeepseekV32ForCausalLM" and wanted == "bfloat16":
        return "auto"
    if facts.architecture == "GlmMoeDsaForCausalLM" and wanted == "auto" and capability[0] == 10:
        return "fp8_e4m3"
    return wanted


def cache_dtype_of(backend: str, kv_cache_dtype: str) -> str:
    """The type that a sparse MLA backend turns the cache into; others leave it."""
    if backend == "FLASHINFER_MLA_SPARSE_SM120" or (backend == "FLASHMLA_SPARSE" and kv_cache_dtype == "fp8"):
        return "fp8_ds_mla"
    return kv_cache_dtype
