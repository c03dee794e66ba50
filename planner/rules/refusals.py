"""What the engine refuses once it knows the mode that is left of the one asked for.

Source: vLLM 0.33, validation of unsupported features, context parallelism and adaptive verification
(rules 2.8, 3.3, 3.5).
"""

from __future__ import annotations

from planner.documents.deployment import Deployment
from planner.errors import PlanError
from planner.modes import AttentionSupport, CUDAGraphMode, Runner
from planner.rules.attention import Attention
from planner.rules.mode import MODE_FIELD
from planner.rules.settings import Settings

ADAPTIVE_FIELD = "speculative.enable_adaptive_verification"
PCP_FIELD = "parallel.prefill_context_parallel_size"

PCP_GRAPH_MODEL_TYPES = frozenset({"deepseek_v32", "glm_moe_dsa"})
"""Model types whose sparse MLA is recorded under prefill context parallelism."""

WHOLE_BATCH_REFUSED = ("VoxtralRealtime",)
"""Beginnings of architectures that are never recorded whole over mixed batches."""


def refuse_microbatched_pieces(deployment: Deployment, settings: Settings, mode: CUDAGraphMode) -> None:
    """Refuse microbatches in a mode that has pieces alone, which V1 takes.

    Raises:
        PlanError: both are asked for on the V2 runner.
    """
    cut = deployment.parallel.num_ubatches > 1
    if settings.runner is Runner.V2 and cut and mode is CUDAGraphMode.PIECEWISE:
        raise PlanError(
            "the v2 runner does not serve microbatches (DBO) with cudagraph_mode PIECEWISE; set "
            "FULL_AND_PIECEWISE or FULL_DECODE_ONLY, or turn enable_dbo off",
            fields=("parallel.enable_dbo", MODE_FIELD),
        )


def refuse_mode_of_model(deployment: Deployment, settings: Settings, mode: CUDAGraphMode) -> None:
    """Refuse a mode that the model cannot be loaded in, before attention has lowered it.

    Raises:
        PlanError: the engine would stop with an error here.
    """
    if settings.runner is Runner.V2:
        _refuse_prefill_context_parallel(deployment, settings, mode)
    architecture = (settings.target and settings.target.architecture) or ""
    if architecture.startswith(WHOLE_BATCH_REFUSED) and mode.mixed_mode() is CUDAGraphMode.FULL:
        raise PlanError(
            f"{mode} is asked for, but {architecture} is not recorded whole over mixed batches; set "
            "cudagraph_mode FULL_AND_PIECEWISE",
            fields=(MODE_FIELD, "model.config"),
        )


def _refuse_prefill_context_parallel(deployment: Deployment, settings: Settings, mode: CUDAGraphMode) -> None:
    parallel, target = deployment.parallel, settings.target
    ranks = parallel.prefill_context_parallel_size or 1
    if ranks == 1:
        return
    if mode is CUDAGraphMode.FULL:
        raise PlanError(
            f"FULL is asked for, but {ranks} ranks that share prefills record decode on its own; set "
            "cudagraph_mode FULL_AND_PIECEWISE or FULL_DECODE_ONLY",
            fields=(MODE_FIELD, PCP_FIELD),
        )
    sparse = target is not None and target.mla is not None and target.mla.index_topk is not None
    shares_decode = (parallel.decode_context_parallel_size or 1) > 1
    if target is None or not sparse or shares_decode or not mode:
        return
    if target.text_model_type not in PCP_GRAPH_MODEL_TYPES:
        known = " and ".join(sorted(PCP_GRAPH_MODEL_TYPES))
        raise PlanError(
            f"{mode} is asked for, but sparse MLA over {ranks} ranks that share prefills is recorded for "
            f"model types {known} only, not {target.text_model_type}; set cudagraph_mode NONE",
            fields=(MODE_FIELD, PCP_FIELD, "model.config"),
        )


def refuse_adaptive_verification(deployment: Deployment, settings: Settings, attention: Attention) -> None:
    """Refuse what adaptive verification does not go with.

    Raises:
        PlanError: LoRA, pipeline stages, or attention that cannot replay its mix of query lengths.
    """
    if deployment.lora is not None:
        raise PlanError(
            "adaptive verification and LoRA exclude each other; drop one", fields=(ADAPTIVE_FIELD, "lora")
        )
    stages = deployment.parallel.pipeline_parallel_size or 1
    if stages > 1:
        raise PlanError(
            f"adaptive verification runs in 1 pipeline stage, not {stages}; set the size to 1",
            fields=(ADAPTIVE_FIELD, "parallel.pipeline_parallel_size"),
        )
    bound = attention.varlen_max_query_len
    if attention.support is not AttentionSupport.ALWAYS and (bound is None or bound < settings.query_len):
        allows = "none" if bound is None else f"at most {bound}"
        raise PlanError(
            f"adaptive verification replays 1 to {settings.query_len} tokens a request, but "
            f"{attention.deciding or 'attention'} ({attention.support}) allows {allows}; "
            "choose a backend with ALWAYS support, or turn it off",
            fields=(ADAPTIVE_FIELD, "model.varlen_max_query_len"),
        )


def refuse_missing_state_blocks(deployment: Deployment, settings: Settings, mode: CUDAGraphMode) -> None:
    """Refuse FULL graphs of more requests than there are Mamba state blocks.

    Raises:
        PlanError: there are fewer blocks than requests.
    """
    blocks = deployment.model.num_kv_blocks
    if blocks is None or not mode.has_full_cudagraphs() or settings.max_num_seqs <= blocks:
        return
    raise PlanError(
        f"{settings.max_num_seqs} requests need as many Mamba state blocks, but there are {blocks}; "
        f"lower max_num_seqs to {blocks}, give the cache more memory, or set cudagraph_mode PIECEWISE",
        fields=("scheduler.max_num_seqs", "model.num_kv_blocks"),
    )
