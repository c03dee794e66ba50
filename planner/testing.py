"""Hypothesis strategies for property tests over deployments, plans and batches.

    from hypothesis import given
    from planner.testing import deployments

    @given(deployments(valid_only=True))
    def test_my_engine_accepts_every_plan(deployment):
        my_engine.accept(planner.compile_plan(deployment))

Needs hypothesis, which ``pip install 'graphplan[test]'`` brings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from attrs import evolve, frozen

from planner.compile import compile_plan
from planner.descriptors import DFLASH_CONTEXT_KV, PlanEntry, Prologue
from planner.documents.deployment import (
    AttentionSection,
    CompilationSection,
    Deployment,
    DeviceSection,
    EngineSection,
    KvTransferSection,
    LoraSection,
    ModelSection,
    ParallelSection,
    SchedulerSection,
    SpeculativeSection,
)
from planner.documents.plan import DRAFT, TARGET, Plan
from planner.errors import FamilyError, MachineError, PlanError, argument_error
from planner.modes import (
    AttentionSupport,
    CompilationMode,
    CUDAGraphMode,
    PerformanceMode,
    Runner,
    Usage,
)
from planner.rules.entries import capture_order

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise MachineError(
        "planner.testing needs hypothesis, which is not installed; pip install 'graphplan[test]'"
    ) from error

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy


class DispatchArguments(TypedDict):
    """The keyword arguments of ``DispatchTable.dispatch``, which describes them."""

    num_reqs: int
    num_tokens: int
    uniform_token_count: int | None
    num_active_loras: int
    max_query_len: int | None
    num_ubatches: int


def deployments(*, valid_only: bool = False) -> SearchStrategy[Deployment]:
    """Deployments all over the rules of vLLM 0.33's V2 runner, small ones more often.

    Most can be planned; the others are ones that the engine refuses, and ``valid_only`` leaves
    them out.

    Example:
        ``@given(deployments(valid_only=True))``, then ``compile_plan(deployment)`` never raises.
    """
    found = _deployments()
    return found.filter(lambda deployment: _compiled(deployment) is not None) if valid_only else found


def plans() -> SearchStrategy[Plan]:
    """Plans of the V2 runner: compiled from deployments, and small ones as written by hand.

    Those written by hand have graphs alone, not always in the best order, with LoRA cases,
    microbatches and prologues among them. Like compiled ones they keep data-parallel ranks in
    agreement: a FULL graph has room for as many requests as can share its tokens.

    Example:
        ``@given(plans())``, then ``load_plan(dump_plan(plan)) == plan``.
    """
    compiled = _deployments().map(_compiled).filter(lambda plan: plan is not None)
    return st.one_of(_plans_by_hand(), compiled)


def batches(plan: Plan, family: str = TARGET) -> SearchStrategy[DispatchArguments]:
    """Batches that a runner could form under ``plan``, as arguments of dispatch for ``family``.

    Uniform decode, decode with mixed query lengths and batches with prefill, more often at the
    edges of an entry; within the limits of requests and tokens that the plan knows.

    Example:
        ``plan.dispatch_table().dispatch(**data.draw(batches(plan)))``

    Raises:
        ArgumentError: ``plan`` is none.
        FamilyError: the plan has no such family, or it is one of the V1 runner.
    """
    if not isinstance(plan, Plan):
        raise argument_error("batches", "Plan", plan, Deployment="compile_plan makes one of it")
    return _batches(_limits(plan, family))


def _compiled(deployment: Deployment) -> Plan | None:
    """The plan of ``deployment``, ``None`` where the engine refuses it."""
    try:
        return compile_plan(deployment)
    except PlanError:
        return None


# Deployments ------------------------------------------------------------------------------------

_SELDOM = st.sampled_from((False, False, False, True))
_SWITCH = st.sampled_from((None, False, True))
_NAMES = st.none() | st.text(max_size=8)
_COUNTS = st.one_of(
    st.integers(1, 8), st.integers(1, 64), st.sampled_from((100, 128, 256, 300, 512, 600, 1024))
)
"""Requests, small ones more often."""

_BUDGETS = st.sampled_from((64, 300, 512, 1000, 2048, 4096, 8192, 16384))
_COMPILATION_MODES = (None, None, None, None, None, None, *reversed(CompilationMode))
_CUDAGRAPH_MODES = (None, None, CUDAGraphMode.FULL, CUDAGraphMode.FULL, *reversed(CUDAGraphMode))
_SIZES = st.one_of(st.integers(1, 64), st.integers(1, 600))
_MAXIMA = st.one_of(st.integers(1, 64), st.sampled_from((100, 257, 512, 1024, 2048)))

_ENVIRONMENTS = st.dictionaries(
    st.sampled_from(("TORCH_COMPILE_DISABLE", "VLLM_USE_BREAKABLE_CUDAGRAPH")),
    st.sampled_from(("0", "1")),
    max_size=2,
)
_ENGINES = st.builds(
    EngineSection,
    name=st.sampled_from((None, "vllm")),
    version=st.sampled_from((None, "0.33")),
    runner=st.sampled_from((None, Runner.V2)),
    usage=st.sampled_from((None, *Usage)),
    performance_mode=st.sampled_from((None, *PerformanceMode)),
    optimization_level=st.sampled_from((None, None, None, None, None, 0, 1, 2, 3)),
    env=st.one_of(st.just({}), st.just({}), st.just({}), _ENVIRONMENTS),
)
_DEVICES = st.builds(DeviceSection, name=st.sampled_from((None, "A100", "H200", "B200"))) | st.builds(
    DeviceSection, compute_capability=st.sampled_from(("7.5", "8.0", "8.9", "9.0", "10.0", "10.3", "12.0"))
)
_LORAS = st.builds(LoraSection, max_loras=st.none() | st.integers(1, 16), specialize_active_lora=_SWITCH)
_SUPPORTS = st.sampled_from(
    (
        None,
        AttentionSupport.ALWAYS,
        AttentionSupport.ALWAYS,
        AttentionSupport.UNIFORM_BATCH,
        AttentionSupport.UNIFORM_BATCH,
        AttentionSupport.UNIFORM_SINGLE_TOKEN_DECODE,
        AttentionSupport.NEVER,
    )
)
_MODELS = st.builds(
    ModelSection,
    max_model_len=st.none() | st.sampled_from((2048, 40960)),
    enforce_eager=st.sampled_from((None,) * 8 + (False, True)),
    attention_support=_SUPPORTS,
    attention_backend=st.sampled_from((None, "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN")),
    varlen_max_query_len=st.none() | st.integers(1, 17),
)
_ATTENTIONS = st.one_of(
    st.just(AttentionSection()),
    st.just(AttentionSection()),
    st.builds(
        AttentionSection,
        backend=st.sampled_from((None, "auto", "FLASH_ATTN")),
        backend_per_kind=st.sampled_from(({}, {}, {"sliding_window": "TRITON_ATTN"})),
        flash_attn_version=st.sampled_from((None, None, 2, 3, 4)),
        use_trtllm_attention=_SWITCH,
        hisparse_config=st.sampled_from((None, None, None, {})),
    ),
)
_ROLE = {"kv_role": "kv_both"}
_LAYERWISE = st.sampled_from(({}, {"use_layerwise": False}, {"use_layerwise": True}))
_KV_TRANSFERS = st.one_of(
    st.just(KvTransferSection()),
    st.just(KvTransferSection()),
    st.builds(
        KvTransferSection,
        kv_connector=st.sampled_from(("LMCacheConnectorV1", "NixlConnector")),
        kv_connector_extra_config=_LAYERWISE,
        ignored=st.just(_ROLE),
    ),
    _LAYERWISE.map(
        lambda extra: KvTransferSection(
            kv_connector="MultiConnector",
            kv_connector_extra_config={
                "connectors": [
                    {"kv_connector": "LMCacheConnectorV1", "kv_connector_extra_config": extra},
                ]
            },
            ignored=_ROLE,
        )
    ),
)
_PARALLELS = st.builds(
    ParallelSection,
    tensor_parallel_size=st.sampled_from((None, 1, 2, 8)),
    data_parallel_size=st.sampled_from((None, 1, 2, 4)),
    prefill_context_parallel_size=st.sampled_from((None, None, None, 1, 2)),
    is_moe_model=_SWITCH,
)
_MICROBATCHED = st.builds(
    ParallelSection,
    data_parallel_size=st.sampled_from((2, 4)),
    enable_expert_parallel=_SWITCH,
    all2all_backend=st.just("deepep_low_latency"),
    enable_dbo=st.just(True),
    dbo_decode_token_threshold=st.sampled_from((None, 2, 8, 32)) | st.integers(1, 64),
    dbo_prefill_token_threshold=st.none() | st.sampled_from((32, 512)),
)


@st.composite
def _deployments(draw: DrawFn) -> Deployment:
    engine = draw(_ENGINES)
    speculative = lora = None
    if draw(_SELDOM):
        # The V2 runner cuts steps only where it is asked for by name.
        engine = evolve(engine, runner=Runner.V2)
        parallel = draw(_MICROBATCHED)
    else:
        parallel = draw(_PARALLELS)
        speculative = draw(st.none() | _speculative())
        lora = draw(st.none() | _LORAS)
    if speculative is not None and lora is None and draw(st.booleans()):
        speculative = evolve(speculative, enable_adaptive_verification=True)
    scheduler = draw(_schedulers())
    return Deployment(
        name=draw(_NAMES),
        engine=engine,
        model=draw(_MODELS),
        attention=draw(_ATTENTIONS),
        parallel=parallel,
        scheduler=scheduler,
        speculative=speculative,
        lora=lora,
        compilation=draw(_compilations(scheduler)),
        kv_transfer=draw(_KV_TRANSFERS),
        device=draw(_DEVICES),
    )


@st.composite
def _schedulers(draw: DrawFn) -> SchedulerSection:
    seqs = draw(st.none() | _COUNTS)
    at_least = seqs or 1
    budgets = st.one_of(
        _BUDGETS.map(lambda budget: max(budget, at_least)), st.integers(at_least, at_least + 600)
    )
    return SchedulerSection(max_num_seqs=seqs, max_num_batched_tokens=draw(st.none() | budgets))


@st.composite
def _speculative(draw: DrawFn) -> SpeculativeSection:
    draft_tokens = draw(st.integers(1, 4) | st.integers(1, 16) | st.sampled_from((7, 15, 16)))
    return SpeculativeSection(
        method=draw(st.sampled_from(("eagle3", "mtp", "dflash", "ngram"))),
        num_speculative_tokens=draft_tokens,
        num_speculative_tokens_per_batch_size=draw(st.none() | _schedules(draft_tokens)),
        attention_support=draw(_SUPPORTS),
    )


@st.composite
def _schedules(draw: DrawFn, draft_tokens: int) -> tuple[tuple[int, int, int], ...]:
    """Ranges from 1 request on, with gaps in between, and now and then one that starts too late."""
    first = 2 if draw(_SELDOM) and draw(_SELDOM) else 1
    ranges = []
    for _ in range(draw(st.integers(1, 4))):
        last = first + draw(st.integers(0, 40))
        ranges.append((first, last, draw(st.integers(0, draft_tokens + 1))))
        first = last + 1 + draw(st.sampled_from((0, 0, 3)))
    return tuple(ranges)


@st.composite
def _compilations(draw: DrawFn, scheduler: SchedulerSection) -> CompilationSection:
    sizes = draw(st.none() | st.lists(_SIZES, min_size=1, max_size=12).map(tuple))
    maximum = draw(st.none() | _MAXIMA)
    if sizes is not None and maximum is not None and not draw(_SELDOM):
        budget = scheduler.max_num_batched_tokens or max(sizes)
        maximum = max((size for size in sizes if size <= budget), default=None)
    return CompilationSection(
        mode=draw(st.sampled_from(_COMPILATION_MODES)),
        cudagraph_mode=draw(st.sampled_from(_CUDAGRAPH_MODES)),
        cudagraph_capture_sizes=sizes,
        max_cudagraph_capture_size=maximum,
        cudagraph_specialize_lora=draw(_SWITCH),
        use_inductor_graph_partition=draw(st.sampled_from((None, None, True))),
        splitting_ops=draw(st.sampled_from((None, None, ()))),
    )


# Plans as written by hand -----------------------------------------------------------------------

_FEW_SIZES = st.lists(st.integers(1, 64), max_size=3, unique=True)
_FEW_COUNTS = st.lists(st.integers(1, 16), min_size=1, max_size=3, unique=True)
_FEW_CASES = st.sampled_from(((0,), (0,), (0, 2), (0, 1, 2, 4), (0, 1, 2, 4, 5)))


@st.composite
def _plans_by_hand(draw: DrawFn) -> Plan:
    shapes = draw(st.one_of(_uniform_graphs(), _mixed_graphs()))
    shapes += [PlanEntry(CUDAGraphMode.PIECEWISE, size) for size in draw(_FEW_SIZES)]
    cases = draw(_FEW_CASES)
    entries = [
        evolve(shape, num_active_loras=case, with_lora=cases != (0,)) for shape in shapes for case in cases
    ]
    graphs = {TARGET: draw(st.one_of(st.just(capture_order(entries)), st.permutations(entries).map(tuple)))}
    if draw(_SELDOM):
        graphs[DRAFT] = draw(_dflash_graphs())
    return Plan(name=draw(_NAMES), graphs=graphs)


@st.composite
def _uniform_graphs(draw: DrawFn) -> list[PlanEntry]:
    """FULL graphs of uniform decode for up to two query lengths, some with a microbatched twin."""
    graphs = []
    for query_len in draw(st.lists(st.integers(1, 8), min_size=1, max_size=2, unique=True)):
        for num_reqs in draw(_FEW_COUNTS):
            graphs.append(PlanEntry(CUDAGraphMode.FULL, num_reqs * query_len, num_reqs, query_len))
            if graphs[-1].num_tokens > 1 and draw(_SELDOM):
                graphs.append(evolve(graphs[-1], num_ubatches=2))
    return graphs


@st.composite
def _mixed_graphs(draw: DrawFn) -> list[PlanEntry]:
    """FULL graphs of any mix of query lengths, of all lengths or up to a bound."""
    bound = draw(st.none() | st.integers(1, 8))
    return [PlanEntry(CUDAGraphMode.FULL, size, size, max_query_len=bound) for size in draw(_FEW_COUNTS)]


@st.composite
def _dflash_graphs(draw: DrawFn) -> tuple[PlanEntry, ...]:
    query_len = draw(st.integers(2, 16))
    return tuple(
        PlanEntry(CUDAGraphMode.FULL, rows, num_reqs, query_len, prologue=Prologue(DFLASH_CONTEXT_KV, rows))
        for num_reqs in sorted(draw(_FEW_COUNTS), reverse=True)
        if (rows := num_reqs * query_len)
    )


# Batches ----------------------------------------------------------------------------------------


@frozen(kw_only=True)
class _Limits:
    """What bounds the batches of a family, and where its entries lie."""

    max_num_seqs: int
    max_num_tokens: int
    sizes: tuple[int, ...]
    query_lens: tuple[int, ...]
    max_lora_case: int
    num_ubatches: tuple[int, ...]


def _limits(plan: Plan, family: str) -> _Limits:
    entries = plan.entries(family)
    resolved = plan.resolved.get(family)
    if resolved is not None and resolved.runner is Runner.V1:
        raise FamilyError(
            f"graphs.{family}: is of the v1 runner; batches are generated for the v2 runner only"
        )
    sizes = tuple(sorted({entry.num_tokens for entry in entries}))
    open_ended = 2 * sizes[-1] if sizes else 64
    max_num_tokens = (resolved and resolved.max_num_batched_tokens) or open_ended
    max_num_seqs = (resolved and (resolved.max_num_active_seqs or resolved.max_num_seqs)) or open_ended
    query_lens = {entry.uniform_token_count or 1 for entry in entries}
    query_lens.update(resolved.uniform_query_lens if resolved else ())
    cases = resolved.lora_cases if resolved else [entry.num_active_loras for entry in entries]
    return _Limits(
        max_num_seqs=min(max_num_seqs, max_num_tokens),
        max_num_tokens=max_num_tokens,
        sizes=tuple(size for size in sizes if size <= max_num_tokens),
        query_lens=tuple(sorted(count for count in query_lens if count <= max_num_tokens)) or (1,),
        max_lora_case=max(cases, default=0),
        num_ubatches=tuple(sorted({1, *(entry.num_ubatches for entry in entries)})),
    )


@st.composite
def _batches(draw: DrawFn, limits: _Limits) -> DispatchArguments:
    num_tokens = draw(_token_counts(limits))
    if draw(st.booleans()):
        query_len = draw(st.sampled_from(limits.query_lens) | st.integers(1, min(limits.max_num_tokens, 17)))
        num_reqs = max(1, min(num_tokens // query_len, limits.max_num_seqs))
        num_tokens, uniform, longest = num_reqs * query_len, query_len, query_len
    else:
        num_reqs = draw(st.integers(1, min(num_tokens, limits.max_num_seqs)))
        uniform, longest = None, None
        # The longest of unequal query lengths is above their mean, and leaves the others 1 at least.
        above_mean, most = num_tokens // num_reqs + 1, num_tokens - num_reqs + 1
        if above_mean <= most and draw(st.booleans()):
            longest = draw(st.integers(above_mean, most))
    return DispatchArguments(
        num_reqs=num_reqs,
        num_tokens=num_tokens,
        uniform_token_count=uniform,
        num_active_loras=draw(st.integers(0, limits.max_lora_case)),
        max_query_len=longest,
        num_ubatches=draw(st.sampled_from(limits.num_ubatches)),
    )


def _token_counts(limits: _Limits) -> SearchStrategy[int]:
    """Tokens at an entry's size, one beside it, and anywhere up to the budget."""
    anywhere = st.integers(1, limits.max_num_tokens)
    if not limits.sizes:
        return anywhere
    at_an_edge = st.builds(
        lambda size, beside: min(max(size + beside, 1), limits.max_num_tokens),
        st.sampled_from(limits.sizes),
        st.sampled_from((0, -1, 1)),
    )
    return st.one_of(at_an_edge, at_an_edge, anywhere)
