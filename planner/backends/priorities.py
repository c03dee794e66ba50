"""The order in which the engine tries backends for a layer.

Source: vLLM 0.33, the CUDA platform's priority lists.
"""

from __future__ import annotations

from planner.backends.environment import Environment
from planner.backends.question import Question

_FLASH_ATTN_FIRST = ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT")
_FLASHINFER_FIRST = ("FLASHINFER", "FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT")

_MLA_10 = ("FLASHINFER_MLA", "TOKENSPEED_MLA", "CUTLASS_MLA", "FLASH_ATTN_MLA", "FLASHMLA", "TRITON_MLA")
_MLA_OTHERS = ("FLASH_ATTN_MLA", "FLASHMLA", "FLASHINFER_MLA", "TRITON_MLA")

_SPARSE_9 = ("FLASH_ATTN_MLA_SPARSE", "FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM90")
_SPARSE_10_QUANTISED = ("FLASHINFER_MLA_SPARSE", "FLASHMLA_SPARSE")
_SPARSE_10_FEW_HEADS = ("FLASH_ATTN_MLA_SPARSE_FA4", "FLASHINFER_MLA_SPARSE", "FLASHMLA_SPARSE")
_SPARSE_10_MANY_HEADS = ("FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE")

FEW_HEADS = 16
"""Up to so many query heads a rank, the FlashAttention 4 kernel comes first on 10.x."""


def backend_priorities(env: Environment, question: Question) -> tuple[str, ...]:
    """Backends for a layer, the most wanted first."""
    if question.mla is not None:
        return _sparse_mla(env, question) if question.sparse else _dense_mla(env)
    if question.mm_prefix and env.major == 9:
        return ("TRITON_FLASH_ATTN", *_FLASH_ATTN_FIRST)
    if question.non_causal or env.major != 10:
        return _FLASH_ATTN_FIRST
    return ("TRITON_FLASHINFER", *_FLASHINFER_FIRST) if question.mm_prefix else _FLASHINFER_FIRST


def _dense_mla(env: Environment) -> tuple[str, ...]:
    return {10: _MLA_10, 12: ("TRITON_MLA",)}.get(env.major, _MLA_OTHERS)


def _sparse_mla(env: Environment, question: Question) -> tuple[str, ...]:
    if env.major == 12:
        return ("FLASHINFER_MLA_SPARSE_SM120",)
    if env.major == 10:
        if question.quantised_kv:
            return _SPARSE_10_QUANTISED
        return _SPARSE_10_FEW_HEADS if question.num_heads <= FEW_HEADS else _SPARSE_10_MANY_HEADS
    rope_free = question.head_size == 512
    return ("FLASHINFER_MLA_SPARSE_SM90", *_SPARSE_9[:2]) if rope_free else _SPARSE_9
