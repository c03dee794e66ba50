"""Compile: deployment -> settings -> mode -> sizes -> entries -> plan."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from planner.documents.deployment import Deployment
from planner.documents.digest import plan_digest
from planner.documents.plan import TARGET, Finding, Plan, ResolvedFamily
from planner.documents.traffic import without_traffic
from planner.engines.compile import compile_for_engine, refuse_settings_of_other_engines
from planner.engines.shared import VLLM, engine_name
from planner.errors import PlanError, argument_error
from planner.estimate import estimate
from planner.modes import CapturePolicy, CompilationMode, CUDAGraphMode, Runner
from planner.rules.attention import Attention, attention_of
from planner.rules.breakable import uncompiled_reason
from planner.rules.decoder_replay import decoder_replay_families
from planner.rules.devices import device_findings
from planner.rules.drafts import draft_families, refuse_unknown_method
from planner.rules.encoder import encoder_families
from planner.rules.entries import MAX_ENTRIES, EntryRequest, family_entries, too_many_graphs
from planner.rules.entries_v1 import v1_family_entries
from planner.rules.family import Family
from planner.rules.kv_connector import connector_findings, layerwise_connector, refuse_connector_without_role
from planner.rules.mode import (
    ModeRequest,
    ModeState,
    SplittingRequest,
    SupportRequest,
    mode_after_sizes,
    mode_after_splitting,
    mode_before_sizes,
    mode_for_adaptive_verification,
    mode_within_support,
)
from planner.rules.refusals import (
    refuse_adaptive_verification,
    refuse_microbatched_pieces,
    refuse_missing_state_blocks,
    refuse_mode_of_model,
)
from planner.rules.rounding import expanded_compile_sizes, refuse_padded_compile_sizes, rounded_to_query_len
from planner.rules.settings import Settings, require_supported_engine, settle
from planner.rules.sizes import CaptureSizes, capture_sizes, size_request
from planner.traffic.histogram import Histogram
from planner.verify import verify

ATTENTION_OPERATIONS = 17
"""How many operations vLLM 0.33 cuts at by default; a shorter list cannot name all of them."""


def compile_plan(deployment: Deployment, *, histogram: Histogram | None = None) -> Plan:
    """The plan of ``deployment``: what its server would capture, and why.

    ``histogram`` is the traffic to plan for where the deployment brings none of its own.

    Raises:
        ArgumentError: ``deployment`` is none.
        PlanError: the engine would refuse to start, or would capture more graphs than a plan takes; the
            error names the fields and their values.
    """
    if not isinstance(deployment, Deployment):
        raise argument_error("compile_plan", "Deployment", deployment, Plan="compile its plan.deployment")
    require_supported_engine(deployment)
    refuse_settings_of_other_engines(deployment)
    by_policy = deployment.capture.policy not in (None, CapturePolicy.ENGINE)
    if engine_name(deployment) != VLLM:
        if by_policy:
            raise _policy_of_other_engine(deployment)
        return compile_for_engine(deployment)
    if histogram is not None:
        deployment = evolve(deployment, capture=evolve(deployment.capture, histogram=histogram))
    refuse_connector_without_role(deployment)
    refuse_unknown_method(deployment)
    settings = settle(deployment)
    attention = attention_of(deployment, settings)
    request = _mode_request(deployment, settings)
    state = mode_before_sizes(request)
    sizes = _sizes(deployment, settings, state)
    state = mode_after_sizes(state, request)
    if not state.cudagraph_mode:
        sizes = CaptureSizes((), 0, ())
    state = _after_sizes(deployment, settings, request, state, attention)
    sizes = _sizes_of_runner(deployment, settings, state, sizes)
    families, family_findings = _families(deployment, settings, state, sizes, attention)
    policy_findings: tuple[Finding, ...] = ()
    if by_policy and state.cudagraph_mode:
        sizes, families, policy_findings = _by_policy(deployment, settings, state, sizes, attention)
    deployment = without_traffic(deployment)
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
    findings = (
        *device_findings(deployment.device),
        *attention.findings,
        *connector_findings(deployment, state.cudagraph_mode),
        *family_findings,
        *policy_findings,
        *verify(plan),
    )
    return evolve(plan, findings=findings, estimates=estimate(plan))


def _families(
    deployment: Deployment, settings: Settings, state: ModeState, sizes: CaptureSizes, attention: Attention
) -> tuple[tuple[Family, ...], tuple[Finding, ...]]:
    """The families that follow from ``sizes``, and the findings about what is beside them."""
    target = _target(deployment, settings, state, sizes, attention)
    drafts = draft_families(deployment, settings, target.resolved, attention)
    encoder = encoder_families(deployment, settings)
    replay = decoder_replay_families(deployment, settings, target.resolved)
    families = (target, *drafts.families, *encoder.families)
    return families, (*drafts.findings, *encoder.findings, *replay.findings)


def _policy_of_other_engine(deployment: Deployment) -> PlanError:
    engine = engine_name(deployment)
    return PlanError(
        f"{deployment.capture.policy} is a policy for vllm only; {engine} is planned by its own rules: leave "
        "the policy out, or set engine",
        fields=("capture.policy", "engine.name"),
    )


def _by_policy(
    deployment: Deployment, settings: Settings, state: ModeState, sizes: CaptureSizes, attention: Attention
) -> tuple[CaptureSizes, tuple[Family, ...], tuple[Finding, ...]]:
    """What the deployment's policy captures in place of the engine's own ``sizes``, and its findings."""
    from planner.policies.choose import capture_sizes_of, chosen
    from planner.policies.request import PolicyRequest

    def build(other: Sequence[int]) -> tuple[Family, ...]:
        others = CaptureSizes(tuple(other), other[-1] if other else 0, ())
        return _families(deployment, settings, state, others, attention)[0]

    choice = chosen(PolicyRequest(deployment, settings, state.cudagraph_mode, sizes, build))
    return capture_sizes_of(choice), choice.outcome.families, choice.findings


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
        hisparse=deployment.uses_hisparse,
        layerwise_connector=layerwise_connector(deployment),
        uncompiled_because=uncompiled_reason(target),
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
    refuse_microbatched_pieces(deployment, settings, state.cudagraph_mode)
    adaptive = deployment.verifies_adaptively
    if adaptive:
        refuse_adaptive_verification(deployment, settings, attention)
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
    refuse_mode_of_model(deployment, settings, state.cudagraph_mode)
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
    refuse_missing_state_blocks(deployment, settings, state.cudagraph_mode)
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
