"""CUDA-graph mode: from what is asked to what the engine runs in, one recorded step at a time.

Source: vLLM 0.33, level defaults and downgrades of the engine config, splitting operations, and
mode resolution by attention support (rules 1, 3.2, 3.3, 3.5, 3.6).
"""

from __future__ import annotations

from attrs import evolve, frozen

from planner.documents.plan import Decision
from planner.errors import PlanError
from planner.modes import AttentionSupport, CompilationMode, CUDAGraphMode

MODE_FIELD = "compilation.cudagraph_mode"
COMPILE_FIELD = "compilation.mode"
SUPPORT_FIELD = "model.attention_support"

LEVEL_MODES = (
    CUDAGraphMode.NONE,
    CUDAGraphMode.PIECEWISE,
    CUDAGraphMode.FULL_AND_PIECEWISE,
    CUDAGraphMode.FULL_AND_PIECEWISE,
)
"""Default CUDA-graph mode of each optimisation level."""


@frozen(kw_only=True)
class ModeState:
    """The modes as they stand after some steps, and the decisions that led there.

    ``splits_attention`` says that compilation cuts the model at every attention operation, so that
    the pieces between can be recorded.
    """

    cudagraph_mode: CUDAGraphMode
    compile_mode: CompilationMode
    splits_attention: bool = False
    decisions: tuple[Decision, ...] = ()

    def lowered(self, mode: CUDAGraphMode, rule: str, because: str) -> ModeState:
        """This state with another CUDA-graph mode, or itself where nothing changes."""
        if mode is self.cudagraph_mode:
            return self
        decision = Decision(
            path=MODE_FIELD, asked=str(self.cudagraph_mode), became=str(mode), rule=rule, because=because
        )
        return evolve(self, cudagraph_mode=mode, decisions=(*self.decisions, decision))

    def compiled(self, mode: CompilationMode, rule: str, because: str) -> ModeState:
        """This state with another compile mode, or itself where nothing changes."""
        if mode is self.compile_mode:
            return self
        decision = Decision(
            path=COMPILE_FIELD, asked=str(self.compile_mode), became=str(mode), rule=rule, because=because
        )
        return evolve(self, compile_mode=mode, decisions=(*self.decisions, decision))


@frozen(kw_only=True)
class ModeRequest:
    """Settings that the mode follows from before attention is looked at; ``None`` is "not given".

    ``v1_schedule`` says that the V1 runner drafts by a schedule. ``breakable_because`` says why
    graphs are breakable, ``None`` where they are not. ``uncompiled_because`` says why the model is
    recorded whole and not compiled where no compile mode is written. ``layerwise_connector`` names a
    KV connector that moves each layer's cache on its own.
    """

    cudagraph_mode: CUDAGraphMode | None = None
    compile_mode: CompilationMode | None = None
    optimization_level: int = 2
    enforce_eager: bool = False
    torch_compile_disabled: bool = False
    breakable_because: str | None = None
    uncompiled_because: str | None = None
    hisparse: bool = False
    v1_schedule: bool = False
    pooling: bool = False
    encoder_decoder: bool = False
    layerwise_connector: str | None = None


def asked_modes(request: ModeRequest) -> ModeState:
    """The modes that are asked for: what is written, else the optimisation level's defaults.

    A model that is recorded whole comes before either.
    """
    if request.compile_mode is None and request.uncompiled_because:
        return _uncompiled(request, request.uncompiled_because)
    level = request.optimization_level
    compile_default = CompilationMode.NONE if level == 0 else CompilationMode.VLLM_COMPILE
    because = f"default of optimization_level {level}"
    decisions = []
    if request.compile_mode is None:
        became = str(compile_default)
        decisions.append(Decision(path=COMPILE_FIELD, became=became, rule="level-default", because=because))
    if request.cudagraph_mode is None:
        became = str(LEVEL_MODES[level])
        decisions.append(Decision(path=MODE_FIELD, became=became, rule="level-default", because=because))
    return ModeState(
        cudagraph_mode=LEVEL_MODES[level] if request.cudagraph_mode is None else request.cudagraph_mode,
        compile_mode=compile_default if request.compile_mode is None else request.compile_mode,
        decisions=tuple(decisions),
    )


def _uncompiled(request: ModeRequest, because: str) -> ModeState:
    rule, asked = "model-default", request.cudagraph_mode
    full, none = CUDAGraphMode.FULL, CompilationMode.NONE
    decisions = [Decision(path=COMPILE_FIELD, became=str(none), rule=rule, because=because)]
    if asked is not full:
        overruled = None if asked is None else str(asked)
        decisions.append(
            Decision(path=MODE_FIELD, asked=overruled, became=str(full), rule=rule, because=because)
        )
    return ModeState(cudagraph_mode=full, compile_mode=none, decisions=tuple(decisions))


def mode_before_sizes(request: ModeRequest) -> ModeState:
    """The mode that decides whether capture sizes exist at all.

    Raises:
        PlanError: FULL is asked for and HiSparse is on.
    """
    return _within_model_kind(_within_compilation(request), request)


def mode_after_sizes(state: ModeState, request: ModeRequest) -> ModeState:
    """The mode as the engine looks at pieces a second time: a model's kind may have asked for them."""
    return state if request.breakable_because else _without_uncompiled_pieces(state)


def _within_model_kind(state: ModeState, request: ModeRequest) -> ModeState:
    """What pooling, an encoder before the decoder and a KV connector leave of the mode."""
    mode = state.cudagraph_mode
    if request.pooling and mode.has_full_cudagraphs():
        because = "a pooling model never decodes, so no whole forward is recorded"
        state = state.lowered(CUDAGraphMode.PIECEWISE, "pooling-model", because)
    elif request.encoder_decoder and not request.pooling and mode is not CUDAGraphMode.NONE:
        because = "steps with encoder inputs run eagerly in an encoder-decoder model"
        state = state.lowered(CUDAGraphMode.FULL_DECODE_ONLY, "encoder-decoder", because)
    if request.layerwise_connector and state.cudagraph_mode.has_full_cudagraphs():
        because = f"the KV connector {request.layerwise_connector} works layer by layer, between pieces"
        state = state.lowered(CUDAGraphMode.PIECEWISE, "layerwise-kv-connector", because)
    return state


def _within_compilation(request: ModeRequest) -> ModeState:
    """What eager mode and the way of compiling leave of the mode."""
    state = asked_modes(request)
    if request.enforce_eager:
        rule, because = "enforce-eager", "model.enforce_eager is true"
        return state.compiled(CompilationMode.NONE, rule, because).lowered(CUDAGraphMode.NONE, rule, because)
    if request.torch_compile_disabled:
        because = "TORCH_COMPILE_DISABLE is 1 in engine.env"
        state = state.compiled(CompilationMode.NONE, "torch-compile-disabled", because)
    if request.v1_schedule and state.cudagraph_mode.has_full_cudagraphs():
        because = "the v1 runner records no FULL graphs for draft lengths that follow a schedule"
        state = state.lowered(CUDAGraphMode.PIECEWISE, "v1-schedule", because)
    if request.hisparse and state.cudagraph_mode is CUDAGraphMode.FULL:
        raise PlanError(
            "FULL is asked for, but HiSparse decodes and prefills in different graphs; set cudagraph_mode "
            "FULL_AND_PIECEWISE or FULL_DECODE_ONLY, or drop hisparse_config",
            fields=(MODE_FIELD, "attention.hisparse_config"),
        )
    if request.breakable_because:
        return state.compiled(CompilationMode.NONE, "breakable-graphs", request.breakable_because)
    return _without_uncompiled_pieces(state)


def _without_uncompiled_pieces(state: ModeState) -> ModeState:
    """``state`` without pieces that no compilation makes."""
    if state.compile_mode is CompilationMode.VLLM_COMPILE:
        return state
    because = f"compilation.mode is {state.compile_mode}, which records no pieces"
    return state.lowered(state.cudagraph_mode.without_piecewise(), "piecewise-needs-compilation", because)


@frozen(kw_only=True)
class SplittingRequest:
    """Settings that decide where compilation cuts the model.

    ``splitting_ops`` is the user's list, ``None`` for the default; ``names_attention`` says that
    it has every attention operation. ``expert_backend`` is the all-to-all backend where experts
    run on several data-parallel ranks, else ``None``.
    """

    splitting_ops: tuple[str, ...] | None = None
    names_attention: bool = False
    inductor_partition: bool = False
    fuse_attention_quant: bool = False
    expert_backend: str | None = None


def mode_after_splitting(state: ModeState, request: SplittingRequest) -> ModeState:
    """The mode once it is known where compilation cuts the model.

    Raises:
        PlanError: attention is fused with quantisation and also a place to cut.
    """
    asked = request.splitting_ops
    if state.compile_mode is not CompilationMode.VLLM_COMPILE:
        return evolve(state, splits_attention=request.names_attention)
    if request.fuse_attention_quant and not request.inductor_partition:
        if request.names_attention:
            raise PlanError(
                "attention is listed as a place to cut, but fuse_attn_quant true needs it inside a piece; "
                "drop one of the two",
                fields=("compilation.splitting_ops", "compilation.pass_config.fuse_attn_quant"),
            )
        if asked is None and state.cudagraph_mode.has_piecewise_cudagraphs():
            because = "fuse_attn_quant leaves no place to cut the model at attention"
            state = state.lowered(CUDAGraphMode.FULL, "fused-attention-quant", because)
        state = evolve(state, splits_attention=False)
    elif asked == ():
        because = "compilation.splitting_ops is empty: the model is never cut"
        without = {
            CUDAGraphMode.PIECEWISE: CUDAGraphMode.NONE,
            CUDAGraphMode.FULL_AND_PIECEWISE: CUDAGraphMode.FULL,
        }
        state = state.lowered(
            without.get(state.cudagraph_mode, state.cudagraph_mode), "no-splitting-ops", because
        )
    else:
        state = evolve(state, splits_attention=asked is None or request.names_attention)
    if request.expert_backend == "deepep_high_throughput":
        because = "parallel.all2all_backend deepep_high_throughput over several ranks cannot be recorded"
        state = state.lowered(CUDAGraphMode.NONE, "deepep-high-throughput", because)
    return state


@frozen(kw_only=True)
class SupportRequest:
    """What the attention of all KV groups can replay, and the query length that it must replay.

    ``checks_pieces`` says that the runner asks whether pieces can be recorded at all; V1 does not.
    """

    support: AttentionSupport
    backend: str | None
    query_len: int
    inductor_partition: bool = False
    breakable_graphs: bool = False
    checks_pieces: bool = True


def mode_within_support(state: ModeState, request: SupportRequest) -> ModeState:
    """The mode that the weakest attention group allows.

    Raises:
        PlanError: FULL is asked for and attention cannot be recorded at all.
    """
    if not state.cudagraph_mode:
        return state
    support, who = request.support, request.backend or "attention"
    cut = CUDAGraphMode.PIECEWISE if state.splits_attention else CUDAGraphMode.NONE
    if state.cudagraph_mode.mixed_mode() is CUDAGraphMode.FULL and support is not AttentionSupport.ALWAYS:
        if support is AttentionSupport.NEVER:
            raise PlanError(
                f"{state.cudagraph_mode} is asked for but {who} supports graphs NEVER; "
                "set cudagraph_mode PIECEWISE, or choose another attention backend",
                fields=(MODE_FIELD, SUPPORT_FIELD),
            )
        lower = CUDAGraphMode.FULL_AND_PIECEWISE if cut else CUDAGraphMode.FULL_DECODE_ONLY
        state = state.lowered(lower, "attention-support", f"{who} replays uniform batches only ({support})")
    if _decodes_full(state) and support is AttentionSupport.NEVER:
        compiled = state.compile_mode is CompilationMode.VLLM_COMPILE
        pieces = compiled and (state.splits_attention or request.inductor_partition)
        lower = CUDAGraphMode.PIECEWISE if pieces else CUDAGraphMode.NONE
        state = state.lowered(lower, "attention-support", f"{who} supports graphs NEVER")
    if _decodes_full(state) and request.query_len > 1 and support < AttentionSupport.UNIFORM_BATCH:
        because = f"{who} replays one token a request ({support}), decode has {request.query_len}"
        state = state.lowered(cut, "attention-support", because)
    # Without breakable graphs a piece is recorded only inside a compiled submodule.
    uncompiled = state.compile_mode is CompilationMode.NONE and not request.breakable_graphs
    if uncompiled and request.checks_pieces:
        because = "the model is not compiled, so there are no pieces to record"
        state = state.lowered(
            state.cudagraph_mode.without_piecewise(), "piecewise-needs-compilation", because
        )
    return state


def mode_for_adaptive_verification(state: ModeState, *, piecewise_available: bool) -> ModeState:
    """The mode that adaptive verification runs in.

    Raises:
        PlanError: the mode has no FULL graphs, which adaptive verification replays.
    """
    mode = state.cudagraph_mode
    if not mode.has_full_cudagraphs():
        raise PlanError(
            f"adaptive verification needs FULL graphs but the mode is {mode}; "
            "set cudagraph_mode FULL_AND_PIECEWISE, or enable_adaptive_verification false",
            fields=("speculative.enable_adaptive_verification", MODE_FIELD),
        )
    if mode is CUDAGraphMode.FULL_DECODE_ONLY or not piecewise_available:
        became = CUDAGraphMode.FULL_DECODE_ONLY
    else:
        became = CUDAGraphMode.FULL_AND_PIECEWISE
    because = "adaptive verification replays decode and mixed batches from graphs of their own"
    return state.lowered(became, "adaptive-verification", because)


def _decodes_full(state: ModeState) -> bool:
    return state.cudagraph_mode.decode_mode() is CUDAGraphMode.FULL
