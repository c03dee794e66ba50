"""Which FlashAttention version runs, and what its builder can replay.

Source: vLLM 0.33, FlashAttention version choice and its metadata builder.
"""

from __future__ import annotations

from planner.backends.environment import Environment
from planner.backends.question import Question
from planner.modes import AttentionSupport

HD256 = 256
"""The head size that data-centre Blackwell has a kernel of its own for."""

HD256_BLOCK_SIZE = 128

MAX_FA4_HEAD_SIZE = 512


def _runs(version: int, env: Environment) -> bool:
    """Whether the device can run a version: 2 from 8.0, 3 on 9.x, 4 on 9.x to 11.x."""
    if version == 2:
        return env.capability >= (8, 0)
    return env.major == 9 if version == 3 else env.major in (9, 10, 11)


def fa4_runs(env: Environment) -> bool:
    """Whether the device can run FlashAttention 4."""
    return _runs(4, env)


def _wanted_version(env: Environment) -> int:
    wanted = env.flash_attn_version or {9: 3, 10: 4}.get(env.major, 2)
    if wanted == 3 and env.major >= 10:
        return 4 if fa4_runs(env) else 2
    return wanted


def flash_attn_version(env: Environment, question: Question | None = None) -> int | None:
    """The version that serves a layer, or the process at large without one.

    ``None`` means that none does.
    """
    version = _wanted_version(env)
    if question is not None and version == 3 and env.major == 9:
        wide = question.head_size > HD256
        if wide or (question.sinks and question.head_size != question.v_head_size):
            version = 4
    if version == 4 and env.batch_invariant:
        version = 2
    if question is not None and version == 4 and env.major >= 10 and not _blackwell_kernel(env, question):
        version = 2
    return version if _runs(version, env) else None


def _blackwell_kernel(env: Environment, question: Question) -> bool:
    """Whether FlashAttention 4 has a kernel for the layer's heads from 10.0 up."""
    widths = (question.head_size, question.v_head_size)
    if widths == (HD256, HD256):
        return uses_hd256_kernel(env, question)
    return question.head_size <= 128 or widths == (192, 128)


def uses_hd256_kernel(env: Environment, question: Question) -> bool:
    """Whether data-centre Blackwell's kernel for heads of 256 serves the layer."""
    return (
        env.major == 10
        and not env.batch_invariant
        and _wanted_version(env) == 4
        and question.head_size == question.v_head_size == HD256
        and not (question.sinks or question.softcap or question.quantised_kv or question.mm_prefix)
        and (question.block_size is None or question.block_size % HD256_BLOCK_SIZE == 0)
        and env.decode_context_parallel_size == 1
    )


def flash_attn_support(env: Environment) -> AttentionSupport:
    """What the builder replays: decided once a process, whatever head a layer has."""
    newer = flash_attn_version(env) in (3, 4)
    return AttentionSupport.ALWAYS if newer else AttentionSupport.UNIFORM_BATCH


def takes_fp8_kv(env: Environment, question: Question) -> bool:
    """Whether FlashAttention reads a cache in FP8 for the layer."""
    version = flash_attn_version(env, question)
    if env.major == 9:
        return version == 3 or (version == 4 and question.head_size == 512)
    return env.major == 10 and version == 4
