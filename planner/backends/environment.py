"""What all attention layers of a deployment share when they ask for a backend."""

from __future__ import annotations

from attrs import frozen

Capability = tuple[int, int]
"""Compute capability of a CUDA device, such as (9, 0)."""

FIRST_NATIVE_FP8: Capability = (8, 9)


@frozen(kw_only=True)
class Environment:
    """Device, process-wide settings and installed kernels.

    ``num_heads`` counts the target's query heads of one rank. ``num_speculative_tokens`` is 0
    without speculation. ``flash_attn_version`` and ``use_trtllm_attention`` are vLLM's own
    settings of those names, ``None`` where not given. ``cubins`` says whether FlashInfer's
    TRT-LLM and XQA kernels can be had.
    """

    capability: Capability
    num_heads: int = 0
    num_speculative_tokens: int = 0
    max_decode_query_len: int = 1
    decode_context_parallel_size: int = 1
    prefill_context_parallel_size: int = 1
    batch_invariant: bool = False
    adaptive_verification: bool = False
    flash_attn_version: int | None = None
    use_trtllm_attention: bool | None = None
    cubins: bool = True

    @property
    def major(self) -> int:
        """The family of the device: 9 for 9.x."""
        return self.capability[0]


def shown(capability: Capability) -> str:
    """The capability as people write it."""
    return f"{capability[0]}.{capability[1]}"
