"""Compile: deployment -> settings -> mode -> sizes -> entries -> plan."""

from __future__ import annotations

from attrs import evolve

from planner.documents.deployment import Deployment
from planner.documents.digest import plan_digest
from planner.documents.plan import TARGET, Plan, ResolvedFamily
from planner.errors import PlanError
from planner.modes import AttentionSupport, CompilationMode, CUDAGraphMode, Runner
from planner.rules.attention import Attention, attention_of
from planner.rules.drafts import draft_families
from planner.rules.encoder import encoder_families
from planner.rules.entries import MAX_ENTRIES, EntryRequest, family_entries, too_many_graphs
from planner.rules.entries_v1 import v1_family_entries
from planner.rules.family import Family
from planner.rules.mode import (
    ModeRequest,
    ModeState,
    SplittingRequest,
    SupportRequest,
    mode_after_splitting,
    mode_before_sizes,
    mode_for_adaptive_verification,
    mode_within_support,
)
from planner.rules.rounding import expanded_compile_sizes, refuse_padded_compile_sizes, rounded_to_query_len
from planner.rules.settings import Settings, settle
from planner.rules.sizes import CaptureSizes, capture_sizes, size_request
from planner.verify import verify

ATTENTION_OPERATIONS = 17
"""How many operations vLLM 0.33 cuts at by default; a shorter list cannot name all of them."""


def compile_plan(deployment: Deployment) -> Plan:
    """The plan of ``deployment``: what its server would capture, and why.

    Raises:
        PlanError: the engine would refuse to start, or would capture more graphs than a plan takes; the
            error names the fields and their values.
    """
    settings = settle(deployment)
    attention = attention_of(deployment, settings)
    request = _mode_request(deployment, settings)
    state = mode_before_sizes(request)
    sizes = _sizes(deployment, settings, state)
    state = _after_sizes(deployment, settings, request, state, attention)
    sizes = _sizes_of_runner(deployment, settings, state, sizes)
    target = _target(deployment, settings, state, sizes, attention)
    drafts = draft_families(deployment, settings, target.resolved, attention)
    encoder = encoder_families(deployment, settings)
    families = (target, *drafts.families, *encoder.families)
    if sum(len(family.entries) for family in families) > MAX_ENTRIES:
        raise too_many_graphs(f"{len(sizes.sizes)} capture sizes in {len(families)} families")
    resolved = {family.name: family.resolved for family in families}
    graphs = {family.name: family.entries for family in families}
    plan = Plan(
        name=deployment.name,
        digest=plan_digest(deployment, resolved, graphs),
        deployment=deployment,
        resolved=resolved,
        decisions=(
            *settings.decisions,
            *state.decisions,
            *sizes.decisions,
            *(decision for family in families for decision in family.decisions),
        ),
        graphs=graphs,
    )
    return evolve(plan, findings=(*attention.findings, *drafts.findings, *encoder.findings, *verify(plan)))


def _mode_request(deployment: Deployment, settings: Settings) -> ModeRequest:
    compilation, target = deployment.compilation, settings.target
    return ModeRequest(
        cudagraph_mode=compilation.cudagraph_mode,
        compile_mode=compilation.mode,
        optimization_level=settings.optimization_level,
        enforce_eager=bool(deployment.model.enforce_eager),
        torch_compile_disabled=bool(deployment.engine.flag("TORCH_COMPILE_DISABLE")),
        breakable_because=settings.breakable_because,
        v1_schedule=settings.runner is Runner.V1 and settings.follows_schedule,
        pooling=deployment.scheduler.runner_type == "pooling" or bool(target and target.is_pooling),
        encoder_decoder=bool(target and target.is_encoder_decoder),
    )


def _sizes(deployment: Deployment, settings: Settings, state: ModeState) -> CaptureSizes:
    if not state.cudagraph_mode:
        return CaptureSizes((), 0, ())
    return capture_sizes(
        size_request(
            deployment,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            query_len=settings.query_len,
            tiers=settings.tiers,
        )
    )


def _after_sizes(
    deployment: Deployment,
    settings: Settings,
    request: ModeRequest,
    state: ModeState,
    attention: Attention,
) -> ModeState:
    """The resolved mode: the downgrades that the engine applies once the sizes are known."""
    compilation, parallel = deployment.compilation, deployment.parallel
    if state.compile_mode is CompilationMode.STOCK_TORCH_COMPILE and settings.runner is Runner.V2:
        because = "the v2 runner records no graphs of a model compiled as STOCK_TORCH_COMPILE"
        state = state.lowered(CUDAGraphMode.NONE, "stock-torch-compile", because)
    adaptive = deployment.verifies_adaptively
    if adaptive:
        _refuse_adaptive_verification(deployment, settings, attention)
    across_ranks = settings.data_parallel_size > 1
    if across_ranks and parallel.enable_expert_parallel and parallel.all2all_backend == "moonep":
        because = "parallel.all2all_backend moonep cannot be recorded"
        state = state.lowered(CUDAGraphMode.NONE, "moonep", because)
    splitting_ops = compilation.splitting_ops
    partition = bool(compilation.use_inductor_graph_partition)
    state = mode_after_splitting(
        state,
        SplittingRequest(
            splitting_ops=splitting_ops,
            names_attention=splitting_ops is not None and len(set(splitting_ops)) >= ATTENTION_OPERATIONS,
            inductor_partition=partition,
            fuse_attention_quant=bool((compilation.pass_config or {}).get("fuse_attn_quant")),
            expert_backend=parallel.all2all_backend if across_ranks else None,
        ),
    )
    if adaptive:
        compiled = state.compile_mode is not CompilationMode.NONE
        available = request.breakable_because is not None or compiled
        state = mode_for_adaptive_verification(state, piecewise_available=available)
    return mode_within_support(
        state,
        SupportRequest(
            support=attention.support,
            backend=attention.deciding,
            query_len=settings.query_len,
            inductor_partition=partition,
            breakable_graphs=request.breakable_because is not None,
            checks_pieces=settings.runner is Runner.V2,
        ),
    )


def _refuse_adaptive_verification(deployment: Deployment, settings: Settings, attention: Attention) -> None:
    """Refuse what adaptive verification does not go with (vLLM 0.33, rules 3.3 and 3.5)."""
    field = "speculative.enable_adaptive_verification"
    if deployment.lora is not None:
        raise PlanError("adaptive verification and LoRA exclude each other; drop one", fields=(field, "lora"))
    stages = deployment.parallel.pipeline_parallel_size or 1
    if stages > 1:
        raise PlanError(
            f"adaptive verification runs in 1 pipeline stage, not {stages}; set the size to 1",
            fields=(field, "parallel.pipeline_parallel_size"),
        )
    bound = attention.varlen_max_query_len
    if attention.support is not AttentionSupport.ALWAYS and (bound is None or bound < settings.query_len):
        allows = "none" if bound is None else f"at most {bound}"
        raise PlanError(
            f"adaptive verification replays 1 to {settings.query_len} tokens a request, but "
            f"{attention.deciding or 'attention'} ({attention.support}) allows {allows}; "
            "choose a backend with ALWAYS support, or turn it off",
            fields=(field, "model.varlen_max_query_len"),
        )


def _sizes_of_runner(
    deployment: Deployment, settings: Settings, state: ModeState, sizes: CaptureSizes
) -> CaptureSizes:
    """What the runner makes of the sizes once the mode is resolved."""
    compile_sizes = expanded_compile_sizes(deployment.compilation.compile_sizes, sizes.sizes)
    if settings.runner is Runner.V2:
        stock = state.compile_mode is CompilationMode.STOCK_TORCH_COMPILE
        return CaptureSizes((), 0, ()) if stock else sizes
    if state.cudagraph_mode.decode_mode() is CUDAGraphMode.FULL:
        sizes = rounded_to_query_len(sizes, settings.query_len)
    if state.cudagraph_mode:
        refuse_padded_compile_sizes(compile_sizes, sizes)
    return sizes


def _target(
    deployment: Deployment, settings: Settings, state: ModeState, sizes: CaptureSizes, attention: Attention
) -> Family:
    _refuse_missing_state_blocks(deployment, settings, state)
    is_v1 = settings.runner is Runner.V1
    query_lens = (settings.query_len,) if is_v1 else settings.query_lens
    request = EntryRequest(
        mode=state.cudagraph_mode,
        sizes=sizes.sizes,
        max_num_seqs=settings.max_num_seqs,
        decode_query_len=settings.query_len,
        query_lens=query_lens,
        lora_cases=settings.lora_cases,
        varlen_decode=deployment.verifies_adaptively,
        microbatching=settings.microbatching,
    )
    entries = v1_family_entries(request) if is_v1 else family_entries(request)
    resolved = ResolvedFamily(
        runner=settings.runner,
        cudagraph_mode=state.cudagraph_mode,
        cudagraph_capture_sizes=sizes.sizes,
        max_cudagraph_capture_size=sizes.maximum,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_active_seqs=settings.max_num_active_seqs,
        data_parallel_size=settings.data_parallel_size,
        decode_query_len=settings.query_len,
        uniform_query_lens=query_lens,
        lora_cases=settings.lora_cases,
        attention_support=attention.support,
        attention_groups=attention.groups,
        microbatching=settings.microbatching,
    )
    return Family(name=TARGET, resolved=resolved, entries=entries)


def _refuse_missing_state_blocks(deployment: Deployment, settings: Settings, state: ModeState) -> None:
    blocks = deployment.model.num_kv_blocks
    if blocks is None or not state.cudagraph_mode.has_full_cudagraphs() or settings.max_num_seqs <= blocks:
        return
    raise PlanError(
        f"{settings.max_num_seqs} requests need as many Mamba state blocks, but there are {blocks}; "
        f"lower max_num_seqs to {blocks}, give the cache more memory, or set cudagraph_mode PIECEWISE",
        fields=("scheduler.max_num_seqs", "model.num_kv_blocks"),
    )
