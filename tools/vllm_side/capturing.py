"""The graphs that vLLM's own managers make up their minds to capture for a config."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
import vllm.envs as envs
from vllm.config import CompilationMode, CUDAGraphMode, VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager
from vllm.v1.worker.gpu.lora_utils import get_lora_capture_cases
from vllm.v1.worker.gpu.spec_decode.adaptive_verification import resolve_adaptive_cudagraph_mode
from vllm.v1.worker.gpu.spec_decode.dflash.speculator import DFlashSpeculator
from vllm.v1.worker.gpu.spec_decode.multi_module_mtp.speculator import MultiModuleMTPSpeculator
from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator import TargetDependentARSpeculator

from planner.documents.plan import DRAFT, TARGET, Plan, ResolvedFamily
from planner.modes import AttentionSupport
from vllm_side.serving import environment

# A single process has no pipeline ranks; all that is asked of them is which this one is.
parallel_state._PP = SimpleNamespace(is_first_rank=True, is_last_rank=True)  # noqa: SLF001 - vLLM makes it with NCCL only


def runner_of(config: VllmConfig, plan: Plan, env: Mapping[str, str]) -> Any:
    """A model runner as far as it has made up its mind, with the plan's word on what attention can replay.

    Which backends vLLM selects, no machine without a GPU tells; all else is its own.
    """
    resolved = plan.resolved[TARGET]
    draft = plan.resolved.get(DRAFT, resolved)
    support, draft_support = _support(resolved), _support(draft)
    with environment(env), set_current_vllm_config(config):
        if config.use_v2_model_runner:
            return _v2(config, support, draft_support)
        return _v1(config, support)


def _support(resolved: ResolvedFamily) -> AttentionCGSupport:
    return AttentionCGSupport[str(resolved.attention_support or AttentionSupport.ALWAYS)]


def _v1(config: VllmConfig, support: AttentionCGSupport) -> Any:
    dispatcher = CudagraphDispatcher(config)
    length = config.uniform_decode_query_len
    mode = config.compilation_config.resolve_cudagraph_mode_and_sizes(support, "assumed", length)
    dispatcher = CudagraphDispatcher(config)
    dispatcher.initialize_cudagraph_keys(mode, length)
    return SimpleNamespace(cudagraph_dispatcher=dispatcher, drafter=_drafter(config, mode))


def _drafter(config: VllmConfig, mode: CUDAGraphMode) -> Any:
    speculative = config.speculative_config
    if speculative is None or not (speculative.use_eagle() or speculative.uses_draft_model()):
        return None
    drafter: Any = SimpleNamespace(
        speculative_config=speculative, cudagraph_dispatcher=CudagraphDispatcher(config)
    )
    own: Any = SpecDecodeBaseProposer
    own.initialize_cudagraph_keys(drafter, mode)
    return drafter


def _v2(config: VllmConfig, support: AttentionCGSupport, draft_support: AttentionCGSupport) -> Any:
    compilation, speculative = config.compilation_config, config.speculative_config
    compiled = compilation.mode in (CompilationMode.VLLM_COMPILE, CompilationMode.DYNAMO_TRACE_ONCE)
    in_pieces = bool(envs.VLLM_USE_BREAKABLE_CUDAGRAPH) or compiled
    adaptive = bool(getattr(speculative, "enable_adaptive_verification", False))
    if adaptive:
        compilation.cudagraph_mode = resolve_adaptive_cudagraph_mode(
            compilation.cudagraph_mode, piecewise_capture_available=in_pieces
        )
    length = config.uniform_decode_query_len
    mode = compilation.resolve_cudagraph_mode_and_sizes(
        support, "assumed", length, use_v2_model_runner=True, piecewise_capture_available=in_pieces
    )
    parallel = config.parallel_config
    microbatched = parallel.use_ubatching and parallel.data_parallel_size > 1
    manager = CudaGraphManager(
        config,
        torch.device("cpu"),
        mode,
        length,
        lora_capture_cases=get_lora_capture_cases(config.lora_config, compilation),
        varlen_decode=adaptive,
        # That there is one is all that is asked of it.
        ubatch_runner=SimpleNamespace() if microbatched else None,
    )
    return SimpleNamespace(cudagraph_manager=manager, speculator=_speculator(config, mode, draft_support))


def _speculator(config: VllmConfig, mode: CUDAGraphMode, support: AttentionCGSupport) -> Any:
    """What a drafter decides about its graphs, without its model and its buffers."""
    speculative = config.speculative_config
    if speculative is None or not (speculative.method in ("dflash", "mtp") or speculative.use_eagle()):
        return None
    length = config.num_speculative_tokens
    drafter = SimpleNamespace(
        vllm_config=config,
        device=torch.device("cpu"),
        num_speculative_steps=length,
        num_query_per_req=1 + length,
        attn_cg_support=SimpleNamespace(min_cg_support=support, min_cg_attn_backend="assumed"),
        _speculator_name="drafter",
    )
    own: Any = TargetDependentARSpeculator
    if speculative.method == "dflash":
        own = DFlashSpeculator
    elif speculative.use_multi_module_mtp():
        own = MultiModuleMTPSpeculator
    own.init_cudagraph_manager(drafter, mode)
    return drafter
