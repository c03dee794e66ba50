"""What each attention backend can replay from one recorded graph.

Source: vLLM 0.33, the support that each metadata builder declares (rules 3.4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from attrs import frozen

from planner.backends.environment import Environment
from planner.backends.flash_attn import flash_attn_support
from planner.backends.flashinfer import flashinfer_support, flashinfer_varlen_bound
from planner.modes import AttentionSupport

NEVER = AttentionSupport.NEVER
SINGLE = AttentionSupport.UNIFORM_SINGLE_TOKEN_DECODE
UNIFORM = AttentionSupport.UNIFORM_BATCH
ALWAYS = AttentionSupport.ALWAYS


@frozen(kw_only=True)
class GroupShape:
    """What a level may depend on besides the device: heads of one rank, cache, causality.

    ``unclamped_window`` says that image tokens may look beyond a layer's window, as in Gemma 3.
    """

    num_kv_heads: int = 1
    head_size: int = 128
    kv_cache_dtype: str = "auto"
    non_causal: bool = False
    unclamped_window: bool = False


Rule = Callable[[Environment, GroupShape], AttentionSupport]

_FIXED: Mapping[AttentionSupport, str] = {
    ALWAYS: """TRITON_ATTN TRITON_ATTN_DIFFKV FLEX_ATTENTION FLASHINFER_MLA KPOOL_TAIL KIMI_K3_KDA
        FLASHMLA_SPARSE_DSV4 FLASHMLA_SPARSE_DSV41 FLASHINFER_MLA_SPARSE_DSV4 FLASHINFER_MLA_SPARSE_DSV41
        DEEPSEEK_SPARSE_SWA STEP5_CSA_SUMMARY STEP5_CSA_TAIL_RING
        ROCM_ATTN ROCM_SEGMENTED_ATTN ROCM_AITER_UNIFIED_ATTN""",
    UNIFORM: """B12X TURBOQUANT BAILING_LINEAR_ATTN MAMBA1_ATTN MAMBA2_ATTN SHORT_CONV_ATTN
        PLE_SHORT_CONV_ATTN GDN_ATTN TRITON_MLA FLASHMLA FLASH_ATTN_MLA TOKENSPEED_MLA FLASHMLA_SPARSE
        FLASH_ATTN_MLA_SPARSE FLASH_ATTN_MLA_SPARSE_FA4 FLASHINFER_MLA_SPARSE FLASHINFER_MLA_SPARSE_SM90
        FLASHINFER_MLA_SPARSE_SM120 INKLING_SCONV_SWA QWEN4_EXP_QSA_TRITON MINIMAX_M3_SPARSE CUTLASS_MSA
        TRITON_MSA
        ROCM_AITER_FA ROCM_OCTAVE ROCM_AITER_MLA ROCM_AITER_MLA_SPARSE KIMI_K3_KDA_ROCM""",
    SINGLE: "LINEAR_ATTN CUTLASS_MLA",
    NEVER: "CPU_ATTN CACHE_ONLY_ATTN AMX_MLA XPU_MLA_SPARSE",
}


def _constant(level: AttentionSupport) -> Rule:
    def rule(_env: Environment, _shape: GroupShape) -> AttentionSupport:
        return level

    return rule


def _flash_attn(env: Environment, _shape: GroupShape) -> AttentionSupport:
    return flash_attn_support(env)


def _flashinfer(env: Environment, shape: GroupShape) -> AttentionSupport:
    return flashinfer_support(
        env,
        num_kv_heads=shape.num_kv_heads,
        head_size=shape.head_size,
        kv_cache_dtype=shape.kv_cache_dtype,
        non_causal=shape.non_causal,
    )


def _composite(causal: Rule) -> Rule:
    """Image tokens go to Triton, the others to ``causal``; routing them limits what replays."""

    def rule(env: Environment, shape: GroupShape) -> AttentionSupport:
        return min(ALWAYS, causal(env, shape), NEVER if shape.unclamped_window else SINGLE)

    return rule


def _uniform_when_speculating(env: Environment, _shape: GroupShape) -> AttentionSupport:
    return UNIFORM if env.num_speculative_tokens > 0 else SINGLE


def _indexer(env: Environment, _shape: GroupShape) -> AttentionSupport:
    """Query lengths that the kernel cannot take natively are flattened, which replays anything."""
    native = (1, 2, 4) if env.major == 9 else (1, 2)
    flattened = env.major != 10 and 1 + env.num_speculative_tokens not in native
    return ALWAYS if env.major == 10 or flattened else UNIFORM


def _always_when_adaptive(env: Environment, _shape: GroupShape) -> AttentionSupport:
    return ALWAYS if env.adaptive_verification else UNIFORM


_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **{name: _constant(level) for level, names in _FIXED.items() for name in names.split()},
        "FLASH_ATTN": _flash_attn,
        "FLASH_ATTN_DIFFKV": _flash_attn,
        "FLASHINFER": _flashinfer,
        "TRITON_FLASH_ATTN": _composite(_flash_attn),
        "TRITON_FLASHINFER": _composite(_flashinfer),
        "HPC_ATTN": _uniform_when_speculating,
        "STEP5_DSA": _uniform_when_speculating,
        "DEEPSEEK_V32_INDEXER": _indexer,
        "DEEPSEEK_V4_INDEXER": _indexer,
        "DEEPSEEK_V41_INDEXER": _indexer,
        "DEEPSEEK_V41_SPARSE_INDEXER": _indexer,
        "ROCM_FLASHMLA_SPARSE_DSV4": _always_when_adaptive,
        "ROCM_FLASHMLA_SPARSE_DSV41": _always_when_adaptive,
    }
)

BACKEND_NAMES = tuple(sorted(_RULES))
"""The names of all backends whose level is known."""

OTHER_PLATFORMS = ("ROCM_", "XPU_", "CPU_", "AMX_", "KIMI_K3_KDA_ROCM")
"""Beginnings of names that no CUDA device runs."""


def backend_support(name: str, env: Environment, shape: GroupShape) -> AttentionSupport:
    """What the backend ``name`` replays for the layers of one group.

    Raises:
        KeyError: ``name`` is not in ``BACKEND_NAMES``.
    """
    return _RULES[name](env, shape)


def varlen_bound(name: str, env: Environment, support: AttentionSupport) -> int | None:
    """Tokens a request may have in a FULL graph over mixed query lengths.

    ``None`` where the backend has no such bound: it replays anything, or uniform batches only.
    """
    if name == "FLASHINFER":
        return flashinfer_varlen_bound(env, support)
    trtllm_sparse = name in ("FLASHINFER_MLA_SPARSE", "FLASH_ATTN_MLA_SPARSE_FA4")
    return env.max_decode_query_len if name == "MAMBA2_ATTN" or trtllm_sparse else None
