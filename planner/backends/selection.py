"""The engine's own selection of attention backends, from a model and a device to a minimum.

Source: vLLM 0.33 on CUDA. What ROCm, XPU and CPU would do is not modelled.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve, frozen

from planner.backends.block_size import resolved_block_size
from planner.backends.dtypes import cache_dtype_of, kv_cache_dtype, model_dtype
from planner.backends.environment import Environment
from planner.backends.groups import (
    BackendGroup,
    deciding_group,
    in_group_order,
    least_support,
    least_varlen_bound,
    side_groups,
)
from planner.backends.layers import ModelSide, Placed, model_settings, place_layers
from planner.backends.request import BackendRequest
from planner.errors import PlanError
from planner.models.draft import is_non_causal, mtp_layers
from planner.models.facts import ModelFacts
from planner.models.layers import Layer, LayerKind
from planner.modes import AttentionSupport, Runner

KERNELS_ASSUMED = (
    "the CUDA wheel's kernels load: FlashAttention 2 and 3, FlashMLA, DeepGEMM, and FlashAttention 4 with "
    "nvidia-cutlass-dsl"
)
CUBINS_ASSUMED = "FlashInfer is usable and its TRT-LLM kernels can be had (flashinfer-cubin, or a download)"
NO_CUBINS_ASSUMED = "FlashInfer is usable without its TRT-LLM kernels"
TRITON_ASSUMED = "Triton is usable"

UNSERVED_MODEL_TYPES = frozenset({"bamba"})
"""Model types without a class of their own, whose linear layers the generic one refuses."""

UNSERVED_MTP_MODEL_TYPES = frozenset({"minimax_m2"})
"""Model types whose checkpoints bring MTP layers that no class of the engine can run."""

NOT_DERIVED = (
    "DeepseekV4",
    "Dots3Note",
    "Glm5Next",
    "HYV4",
    "Inkling",
    "KimiK3",
    "KimiLinear",
    "MiniMaxM3",
    "PanguProMoE",
    "Qwen4Exp",
    "Step5",
    "VoxtralRealtime",
)
"""Beginnings of architectures with backend classes of their own, which are not modelled."""

LBNHC = frozenset({"LBNHC"})
LBHNC_OR_BLHNC = frozenset({"LBHNC", "BLHNC"})


@frozen(kw_only=True)
class BackendSelection:
    """The backends of a deployment, and what follows from them.

    ``groups`` hold the target's and the draft's layers; ``support`` is the least of them and
    ``deciding`` the first group at it, ``None`` where all replay anything.
    ``varlen_max_query_len`` is the largest number of tokens a request may have in a FULL graph
    over mixed query lengths, ``None`` where a target group takes none. ``draft_support`` is
    the draft's own minimum under its own causality (V2 only), with ``draft_groups`` by kind and
    backend. ``block_size`` counts tokens, ``None`` where it is not derived. ``assumptions`` are
    facts about the installation that no document shows.
    """

    groups: tuple[BackendGroup, ...]
    support: AttentionSupport
    deciding: BackendGroup | None
    varlen_max_query_len: int | None
    draft_groups: tuple[BackendGroup, ...]
    draft_support: AttentionSupport | None
    dtype: str
    kv_cache_dtype: str
    block_size: int | None
    assumptions: tuple[str, ...]


def select_backends(request: BackendRequest) -> BackendSelection:
    """What the engine would choose, and what its graphs could then replay.

    Raises:
        PlanError: the engine refuses the settings, or the model's backends are not derived.
    """
    _refuse_unknown(request.target, "model")
    _refuse_uneven_heads(request)
    capability = request.environment.capability
    dtype = model_dtype(request.target, request.dtype, capability)
    kv_dtype = kv_cache_dtype(request.target, request.kv_cache_dtype, dtype, capability)
    backend, version = model_settings(request, kv_dtype)
    env = evolve(request.environment, flash_attn_version=version)
    target = _target_side(request, backend, dtype, kv_dtype)
    draft = _draft_side(request, target)
    placed = place_layers(target, request, env)
    draft_placed = () if draft is None else place_layers(draft, request, env)
    _refuse_mixed_layouts((*placed, *draft_placed), request, env)

    target_groups = side_groups(target, placed, env, non_causal=False, draft=False)
    draft_groups: tuple[BackendGroup, ...] = ()
    own_groups: tuple[BackendGroup, ...] = ()
    if draft is not None:
        draft_groups = side_groups(draft, draft_placed, env, non_causal=False, draft=True)
        own_groups = side_groups(draft, draft_placed, env, non_causal=draft.non_causal, draft=True)
    groups = in_group_order(target_groups, draft_groups, placed)
    second = draft is not None and request.runner is Runner.V2
    return BackendSelection(
        groups=groups,
        support=least_support(groups),
        deciding=deciding_group(groups),
        varlen_max_query_len=least_varlen_bound(groups, env.max_decode_query_len),
        draft_groups=_sorted(own_groups) if second else (),
        draft_support=least_support(own_groups) if second else None,
        dtype=dtype,
        kv_cache_dtype=_final_cache_dtype(placed, kv_dtype),
        block_size=resolved_block_size(request, (*placed, *draft_placed), env, dtype),
        assumptions=_assumptions(request),
    )


def _refuse_unknown(facts: ModelFacts, section: str) -> None:
    if facts.text_model_type in UNSERVED_MODEL_TYPES:
        raise PlanError(
            f"vLLM 0.33 has no implementation of {facts.text_model_type} models and its generic one refuses "
            "their linear layers; serve another model",
            fields=(f"{section}.config",),
        )
    name = facts.architecture or ""
    if name.startswith(NOT_DERIVED):
        raise PlanError(
            f"the attention backends of {name} are not derived; set {section}.attention_support to what the "
            "engine's log says",
            fields=(f"{section}.config", f"{section}.attention_support"),
        )


def _refuse_uneven_heads(request: BackendRequest) -> None:
    heads, ranks = request.target.num_attention_heads or 0, request.tensor_parallel_size
    if heads % ranks:
        raise PlanError(
            f"{heads} attention heads do not divide over {ranks} ranks; use a tensor_parallel_size that "
            "divides them",
            fields=("parallel.tensor_parallel_size", "model.config"),
        )


def _target_side(request: BackendRequest, backend: str | None, dtype: str, kv_dtype: str) -> ModelSide:
    return ModelSide(
        field="model",
        backend_field=request.attention_backend_field,
        facts=request.target,
        layers=request.target.layers,
        backend=backend,
        dtype=dtype,
        kv_cache_dtype=kv_dtype,
        tensor_parallel_size=request.tensor_parallel_size,
        mm_prefix=request.target.mm_prefix,
        non_causal=False,
    )


def _draft_side(request: BackendRequest, target: ModelSide) -> ModelSide | None:
    """The draft's layers and settings, ``None`` where the method has no layers.

    A draft of the DFlash family does not inherit the target's backend; the others do.
    """
    if not request.has_draft_layers:
        return None
    if request.is_mtp and request.target.text_model_type in UNSERVED_MTP_MODEL_TYPES:
        raise PlanError(
            f"method {request.speculative_method} is asked, but vLLM 0.33 has no class for the MTP layers of "
            f"{request.target.text_model_type} models; drop it or use another method",
            fields=("speculative.method", "model.config"),
        )
    facts = request.draft or request.target
    if request.draft is not None:
        _refuse_unknown(request.draft, "speculative")
    layers = _draft_layers(request)
    own = request.draft_attention_backend
    return ModelSide(
        field="speculative",
        backend_field="speculative.attention_backend",
        facts=facts,
        layers=layers,
        backend=own if own is not None or request.is_dflash else target.backend,
        dtype=target.dtype,
        kv_cache_dtype=request.draft_kv_cache_dtype or target.kv_cache_dtype,
        tensor_parallel_size=request.draft_tensor_parallel_size or request.tensor_parallel_size,
        mm_prefix=target.mm_prefix and not (request.is_dflash and request.runner is Runner.V1),
        non_causal=request.is_dflash and is_non_causal(facts.dflash, layers),
    )


def _draft_layers(request: BackendRequest) -> tuple[Layer, ...]:
    target = request.target
    if request.is_mtp:
        return mtp_layers(target.layers, target.num_mtp_layers)
    if request.draft is not None:
        return request.draft.layers
    attending = [layer for layer in target.layers if layer.kind is LayerKind.FULL_ATTENTION]
    if attending:
        return (attending[-1],)
    return mtp_layers(target.layers, 1)


def _refuse_mixed_layouts(placed: Iterable[Placed], request: BackendRequest, env: Environment) -> None:
    """All layers share one order of cache dimensions; some backends take only certain ones."""
    flashinfer = LBHNC_OR_BLHNC if env.major == 10 else None
    taken = {
        "FLEX_ATTENTION": LBNHC,
        "TURBOQUANT": LBNHC,
        "FLASHINFER": flashinfer,
        "TRITON_FLASHINFER": flashinfer,
    }
    backends = list(dict.fromkeys(item.backend for item in placed))
    limits = [limit for name in backends if (limit := taken.get(name)) is not None]
    if limits and not frozenset.intersection(*limits):
        mixed = " and ".join(name for name in backends if taken.get(name) is not None)
        drafting = ("speculative.attention_backend",) if request.draft_attention_backend else ()
        raise PlanError(
            f"{mixed} share no order of KV-cache dimensions on compute capability 10.x; choose backends or a "
            "kv_cache_dtype that let all layers use one of them",
            fields=(request.attention_backend_field, "model.kv_cache_dtype", *drafting),
        )


def _sorted(groups: tuple[BackendGroup, ...]) -> tuple[BackendGroup, ...]:
    return tuple(sorted(groups, key=lambda group: (group.kind.value, group.backend)))


def _final_cache_dtype(placed: Iterable[Placed], kv_dtype: str) -> str:
    for item in placed:
        changed = cache_dtype_of(item.backend, kv_dtype)
        if changed != kv_dtype:
            return changed
    return kv_dtype


def _assumptions(request: BackendRequest) -> tuple[str, ...]:
    assumed = [
        KERNELS_ASSUMED,
        CUBINS_ASSUMED if request.environment.cubins else NO_CUBINS_ASSUMED,
        TRITON_ASSUMED,
    ]
    if request.has_draft_layers and not request.is_mtp and request.draft is None:
        assumed.append(
            "the draft's attention heads are those of the target; give speculative.config to be certain"
        )
    if request.speculative_method == "extract_hidden_states":
        assumed.append("the cache of extracted hidden states does not limit what graphs replay")
    if request.environment.batch_invariant and any(
        layer.kind is LayerKind.MAMBA for layer in request.target.layers
    ):
        assumed.append("the Mamba layers are batch invariant")
    return tuple(assumed)
