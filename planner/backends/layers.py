"""Which backend each layer of a deployment gets: what it asks, and what it is given.

Source: vLLM 0.33, attention layers and the CUDA platform's selection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from attrs import frozen

from planner.backends.environment import Environment, shown
from planner.backends.flash_attn import MAX_FA4_HEAD_SIZE, fa4_runs, flash_attn_version
from planner.backends.priorities import backend_priorities
from planner.backends.question import Question
from planner.backends.request import PER_KIND_FIELD, BackendRequest
from planner.backends.traits import SELECTABLE
from planner.backends.validity import Reason, reasons_against, refused_when_built
from planner.documents.deployment import unless_auto
from planner.errors import PlanError
from planner.models.facts import ModelFacts
from planner.models.layers import Layer, LayerKind, Mixer

FIXED_BACKENDS: Mapping[Mixer, str] = MappingProxyType(
    {
        Mixer.SPARSE_INDEXER: "DEEPSEEK_V32_INDEXER",
        Mixer.MAMBA1: "MAMBA1_ATTN",
        Mixer.MAMBA2: "MAMBA2_ATTN",
        Mixer.GATED_DELTA_NET: "GDN_ATTN",
        Mixer.LINEAR_ATTENTION: "LINEAR_ATTN",
        Mixer.SHORT_CONVOLUTION: "SHORT_CONV_ATTN",
    }
)
"""Mixers that never ask: their backend follows from the layer."""

WRAPPED_KINDS = frozenset(
    {LayerKind.CHUNKED_LOCAL_ATTENTION, LayerKind.CROSS_ATTENTION, LayerKind.ENCODER_ONLY_ATTENTION}
)
"""Kinds that wrap a backend, and tell it neither windows nor sinks."""

BOUNDARY_KV_PREFIXES = ("turboquant_", "ultraquant_")
BOUNDARY_LAYERS = 2
"""So many attention layers at either end keep an unquantised cache under TurboQuant."""


@frozen(kw_only=True)
class ModelSide:
    """The layers of the target or of the draft, and the settings that they see.

    ``field`` prefixes the settings in messages: ``model`` or ``speculative``. ``backend_field`` is the
    setting that ``backend`` is asked for with.
    """

    field: str
    backend_field: str
    facts: ModelFacts
    layers: tuple[Layer, ...]
    backend: str | None
    dtype: str
    kv_cache_dtype: str
    tensor_parallel_size: int
    mm_prefix: bool
    non_causal: bool


@frozen(kw_only=True)
class Placed:
    """One layer with its backend and the type of its cache."""

    layer: Layer
    backend: str
    kv_cache_dtype: str
    question: Question | None = None


def place_layers(side: ModelSide, request: BackendRequest, env: Environment) -> tuple[Placed, ...]:
    """The backend of every layer of one side, in layer order.

    Raises:
        PlanError: a layer finds no backend, the one that the user asked for cannot serve it, or
            its backend is not derived here.
    """
    answers: dict[Question, str] = {}
    skipped = _unquantised(side)
    placed = []
    for layer in side.layers:
        kv_dtype = "auto" if layer.index in skipped else side.kv_cache_dtype
        if layer.mixer is not Mixer.ATTENTION:
            placed.append(Placed(layer=layer, backend=_fixed(side, layer), kv_cache_dtype=kv_dtype))
            continue
        question = _question(side, layer, kv_dtype, request)
        if question not in answers:
            answers[question] = _answer(side, question, request, env)
        backend = answers[question]
        placed.append(Placed(layer=layer, backend=backend, kv_cache_dtype=kv_dtype, question=question))
    return tuple(placed)


def _fixed(side: ModelSide, layer: Layer) -> str:
    backend = FIXED_BACKENDS.get(layer.mixer)
    if backend is None:
        raise PlanError(
            f"the attention backends of {side.facts.architecture or side.facts.model_type} are not derived; "
            f"set {side.field}.attention_support to what the engine's log says",
            fields=(f"{side.field}.config", f"{side.field}.attention_support"),
        )
    return backend


def _unquantised(side: ModelSide) -> frozenset[int]:
    """Layers whose cache TurboQuant leaves alone: the outermost ones of a model without Mamba."""
    quantised = side.kv_cache_dtype.startswith(BOUNDARY_KV_PREFIXES)
    if not quantised or side.field != "model" or side.facts.is_hybrid:
        return frozenset()
    indices = sorted({layer.index for layer in side.layers})
    return frozenset((*indices[:BOUNDARY_LAYERS], *indices[-BOUNDARY_LAYERS:]))


def _question(side: ModelSide, layer: Layer, kv_dtype: str, request: BackendRequest) -> Question:
    wrapped = layer.kind in WRAPPED_KINDS
    without_cache_config = side.facts.text_model_type == "modernbert"
    mla = side.facts.mla if layer.kind is LayerKind.MLA_ATTENTION else None
    return Question(
        kind=layer.kind,
        head_size=layer.head_size,
        v_head_size=layer.v_head_size,
        num_heads=layer.num_heads // side.tensor_parallel_size if mla else 0,
        dtype=side.dtype,
        kv_cache_dtype="auto" if without_cache_config else kv_dtype,
        block_size=request.block_size,
        mla=mla,
        sparse=mla is not None and mla.index_topk is not None,
        sinks=layer.sinks and not wrapped,
        softcap=side.facts.softcap,
        sliding_window=layer.kind is LayerKind.SLIDING_WINDOW,
        mm_prefix=side.mm_prefix and not wrapped,
        non_causal=side.non_causal,
    )


@frozen
class Asked:
    """A backend that the user asks for, and the setting that says so."""

    backend: str
    field: str


def _answer(side: ModelSide, question: Question, request: BackendRequest, env: Environment) -> str:
    asked = _asked(side, question, request)
    if _has_wide_keys(question):
        backend = _wide_keys(asked, question, env)
    elif asked is not None:
        backend = _requested(side, asked, question, env)
    else:
        backend = _first_valid(side, question, env)
    refusal = refused_when_built(backend, question, env)
    if refusal is not None:
        raise _refused(side, backend, (refusal,), question, env, asked)
    return backend


def _asked(side: ModelSide, question: Question, request: BackendRequest) -> Asked | None:
    """The user's backend for a layer: the one for its kind, else the one for all.

    A chunked-local layer counts as full attention here.
    """
    kind = question.kind
    if kind is LayerKind.CHUNKED_LOCAL_ATTENTION:
        kind = LayerKind.FULL_ATTENTION
    by_kind = kind.value in request.backend_per_kind
    backend = unless_auto(request.backend_per_kind[kind.value] if by_kind else side.backend)
    field = f"{PER_KIND_FIELD}.{kind}" if by_kind else side.backend_field
    return None if backend is None else Asked(backend, field)


def _wide_keys(asked: Asked | None, question: Question, env: Environment) -> str:
    """Keys wider than values: the model class chooses, and only backends for such layers count."""
    if asked is not None and asked.backend in ("FLASH_ATTN_DIFFKV", "TRITON_ATTN_DIFFKV"):
        return asked.backend
    return "FLASH_ATTN_DIFFKV" if flash_attn_version(env, question) in (3, 4) else "TRITON_ATTN_DIFFKV"


def _requested(side: ModelSide, asked: Asked, question: Question, env: Environment) -> str:
    if asked.backend not in SELECTABLE:
        raise PlanError(
            f"{asked.backend} is not an attention backend that a layer on a CUDA device can get; those are: "
            f"{', '.join(SELECTABLE)}",
            fields=(asked.field,),
        )
    reasons = reasons_against(asked.backend, question, env)
    if reasons:
        raise _refused(side, asked.backend, reasons, question, env, asked)
    return asked.backend


def _first_valid(side: ModelSide, question: Question, env: Environment) -> str:
    tried = {name: reasons_against(name, question, env) for name in backend_priorities(env, question)}
    for name, reasons in tried.items():
        if not reasons:
            return name
    why = "; ".join(f"{name}: {_joined(reasons)}" for name, reasons in tried.items())
    fields = (reason.field for reasons in tried.values() for reason in reasons)
    raise PlanError(
        f"no attention backend serves the {question.kind} layers on compute capability "
        f"{shown(env.capability)} ({why}); change one of these settings",
        fields=_fields(side, fields),
    )


def _refused(
    side: ModelSide,
    backend: str,
    reasons: tuple[Reason, ...],
    question: Question,
    env: Environment,
    asked: Asked | None,
) -> PlanError:
    valid = [
        name
        for name in backend_priorities(env, question)
        if not (_has_wide_keys(question) or reasons_against(name, question, env))
        and refused_when_built(name, question, env) is None
    ]
    instead = f"choose one of: {', '.join(valid)}" if valid else "change one of these settings"
    own = () if asked is None else (asked.field,)
    return PlanError(
        f"{backend} cannot serve the {question.kind} layers on compute capability {shown(env.capability)}: "
        f"{_joined(reasons)}; {instead}",
        fields=_fields(side, (*own, *(reason.field for reason in reasons))),
    )


def _has_wide_keys(question: Question) -> bool:
    return question.head_size != question.v_head_size and question.mla is None


def _joined(reasons: Iterable[Reason]) -> str:
    return ", ".join(reason.text for reason in reasons)


def _fields(side: ModelSide, fields: Iterable[str]) -> tuple[str, ...]:
    """Each setting once, the model's config under the section of the side that asks."""
    own = f"{side.field}.config"
    return tuple(dict.fromkeys(own if field == "model.config" else field for field in fields))


def model_settings(request: BackendRequest, kv_cache_dtype: str) -> tuple[str | None, int | None]:
    """Backend and FlashAttention version, after what the model and its cache demand.

    Gemma 4 has heads of two sizes, which FlashAttention 4 alone serves together; a TurboQuant
    cache runs with FlashAttention 2.
    """
    backend, env = request.attention_backend, request.environment
    version = env.flash_attn_version
    if _is_undecided_gemma4(request):
        widest = max(layer.head_size for layer in request.target.layers)
        if not fa4_runs(env) or widest > MAX_FA4_HEAD_SIZE:
            backend = "TRITON_ATTN"
        elif version is None and not (env.major == 9 and kv_cache_dtype.startswith("fp8")):
            version = 4
    if kv_cache_dtype.startswith(BOUNDARY_KV_PREFIXES):
        version = 2
    return backend, version


def _is_undecided_gemma4(request: BackendRequest) -> bool:
    sizes = {layer.head_size for layer in request.target.layers}
    chosen = unless_auto(request.attention_backend)
    return request.target.text_model_type.startswith("gemma4") and len(sizes) > 1 and not chosen
