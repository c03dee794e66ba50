"""DFlashCudaGraphManager: graphs of a parallel drafter, the context's K/V computed inside each.

Source: vLLM 0.33, the graph manager of its DFlash speculator (rules 7.2, 7.3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from executor.capture_loop import CreateForward, Forward
from executor.dp_metadata import same_tokens_across_dp
from executor.guide import CaptureOptions
from executor.inputs.attention import AttentionGroup
from executor.inputs.block_tables import BlockTables
from executor.inputs.buffers import InputBuffers
from executor.inputs.dummy import prepare_inputs_to_capture
from executor.inputs.kv_cache import KVCacheConfig
from executor.manager import CudaGraphManager
from executor.records import CaptureReport
from planner.descriptors import BatchExecutionDescriptor
from planner.modes import CUDAGraphMode


class DFlashCudaGraphManager(CudaGraphManager):
    """Captures the query forward of a drafter with its own attention metadata, built from scratch."""

    def capture(  # type: ignore[override]  # the interface of the engine's manager
        self,
        forward_fn: Callable[..., Any],
        input_buffers: InputBuffers,
        block_tables: BlockTables,
        attn_groups: Sequence[Sequence[AttentionGroup]],
        kv_cache_config: KVCacheConfig,
        max_model_len: int,
        causal: bool | Mapping[int, bool],
        precompute_context_kv: Callable[[int], None],
        progress_bar_desc: str = "Capturing CUDA graphs",
        *,
        options: CaptureOptions | None = None,
    ) -> CaptureReport:
        """Captures every entry of the family.

        ``precompute_context_kv(num_reqs)`` is recorded ahead of the query forward, in the same graph.
        ``forward_fn(num_reqs, num_tokens, attn_metadata, slot_mappings, num_tokens_across_dp,
        cg_mode)`` is that forward; metadata is None for PIECEWISE. ``attn_groups`` are lists of groups,
        one list a KV-cache group; ``causal`` is one answer for all or one by KV-cache group.
        """
        create_forward_fn = self.forward_factory(
            forward_fn,
            input_buffers,
            block_tables,
            attn_groups,
            kv_cache_config,
            max_model_len,
            causal,
            precompute_context_kv,
        )
        return super().capture(create_forward_fn, progress_bar_desc, options=options)

    def forward_factory(
        self,
        forward_fn: Callable[..., Any],
        input_buffers: InputBuffers,
        block_tables: BlockTables,
        attn_groups: Sequence[Sequence[AttentionGroup]],
        kv_cache_config: KVCacheConfig,
        max_model_len: int,
        causal: bool | Mapping[int, bool],
        precompute_context_kv: Callable[[int], None],
    ) -> CreateForward:
        """What ``capture`` asks for the forward of each entry; verification asks it again."""

        def create_forward_fn(desc: BatchExecutionDescriptor, warmup: bool) -> Forward:  # noqa: ARG001
            num_tokens = desc.num_tokens
            num_reqs = desc.num_reqs or min(num_tokens, self.max_num_reqs)
            num_tokens_across_dp = same_tokens_across_dp(self.parallel, num_tokens)
            attn_metadata, slot_mappings = prepare_inputs_to_capture(
                num_reqs,
                num_tokens,
                input_buffers,
                block_tables,
                attn_groups,
                kv_cache_config,
                max_model_len,
                skip_attn=desc.cg_mode is CUDAGraphMode.PIECEWISE,
                causal=causal,
            )

            def forward(cg_mode: CUDAGraphMode) -> Any:
                precompute_context_kv(num_reqs)
                return forward_fn(
                    num_reqs, num_tokens, attn_metadata, slot_mappings, num_tokens_across_dp, cg_mode
                )

            return forward

        return create_forward_fn
