"""What FlashInfer can replay, which depends on the device, the heads and its kernels.

Source: vLLM 0.33, FlashInfer's metadata builder (rules 3.4).
"""

from __future__ import annotations

from planner.backends.environment import Environment
from planner.modes import AttentionSupport

XQA_HEAD_SIZES = range(16, 257, 16)


def trtllm_runs(env: Environment) -> bool:
    """Whether the TRT-LLM decode kernels (XQA on 9.0 and 12.x) can serve at all."""
    return (
        env.use_trtllm_attention is not False
        and not env.batch_invariant
        and env.cubins
        and (env.capability == (9, 0) or env.major in (10, 12))
    )


def flashinfer_support(
    env: Environment, *, num_kv_heads: int, head_size: int, kv_cache_dtype: str, non_causal: bool
) -> AttentionSupport:
    """What the builder replays for layers of one KV group; heads are those of one rank.

    ``env.num_heads`` are the target's query heads, for a draft's layers too.
    """
    single, uniform = AttentionSupport.UNIFORM_SINGLE_TOKEN_DECODE, AttentionSupport.UNIFORM_BATCH
    if env.decode_context_parallel_size > 1:
        return single
    if env.major < 9:
        return single if non_causal else uniform
    if not trtllm_runs(env) or env.num_heads % num_kv_heads != 0:
        return single
    if env.major == 10:
        return single if non_causal else uniform
    if head_size not in XQA_HEAD_SIZES:
        return single
    return single if kv_cache_dtype.startswith("nvfp4") and env.major != 12 else uniform


def flashinfer_varlen_bound(env: Environment, support: AttentionSupport) -> int | None:
    """Tokens a request may have in a FULL graph over mixed lengths, ``None`` where it cannot."""
    replays = support is AttentionSupport.UNIFORM_BATCH and env.major == 10
    return env.max_decode_query_len if replays else None
