"""From layers with backends to attention groups, and the least that all of them replay.

Source: vLLM 0.33, KV-cache grouping and the combination of support levels (rules 3.1).
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve, frozen

from planner.backends.environment import Environment
from planner.backends.layers import ModelSide, Placed
from planner.backends.support import GroupShape, backend_support, varlen_bound
from planner.models.layers import LayerKind, Mixer
from planner.modes import AttentionSupport


@frozen(kw_only=True)
class BackendGroup:
    """Layers of one kind with one backend and one level; ``layers`` counts them.

    ``varlen_max_query_len`` is the largest number of tokens a request may have in a FULL graph
    over mixed query lengths, ``None`` where the backend sets no such bound. ``draft`` says that
    the layers are the draft's.
    """

    kind: LayerKind
    backend: str
    support: AttentionSupport
    layers: int
    draft: bool = False
    varlen_max_query_len: int | None = None

    @property
    def label(self) -> str:
        """How messages name the group: kind and backend, and ``draft`` where it is one."""
        return f"{self.kind}:{self.backend}" + (":draft" if self.draft else "")


def side_groups(
    side: ModelSide, placed: Iterable[Placed], env: Environment, *, non_causal: bool, draft: bool
) -> tuple[BackendGroup, ...]:
    """The groups of one side, in the order of their first layers.

    ``non_causal`` is the flag under which supports are asked: the target's for the minimum over
    all layers, the draft's own for the draft's.
    """
    groups: dict[tuple[LayerKind, str, AttentionSupport], BackendGroup] = {}
    unclamped_window = _has_unclamped_window(side)
    for item in placed:
        support, bound = _replays(side, item, env, non_causal=non_causal, unclamped_window=unclamped_window)
        kind, backend = item.layer.kind, item.backend
        fresh = BackendGroup(
            kind=kind, backend=backend, support=support, layers=0, draft=draft, varlen_max_query_len=bound
        )
        group = groups.get((kind, backend, support), fresh)
        groups[kind, backend, support] = evolve(group, layers=group.layers + 1)
    return tuple(groups.values())


def _replays(
    side: ModelSide, item: Placed, env: Environment, *, non_causal: bool, unclamped_window: bool
) -> tuple[AttentionSupport, int | None]:
    """What one layer replays, and the bound on its tokens in graphs over mixed lengths."""
    layer = item.layer
    if layer.kind is LayerKind.CHUNKED_LOCAL_ATTENTION:
        return AttentionSupport.NEVER, None
    shape = GroupShape(
        num_kv_heads=max(1, layer.num_kv_heads // side.tensor_parallel_size),
        head_size=layer.head_size,
        kv_cache_dtype=item.kv_cache_dtype,
        non_causal=non_causal,
        unclamped_window=unclamped_window,
    )
    support = backend_support(item.backend, env, shape)
    return support, varlen_bound(item.backend, env, support)


def _has_unclamped_window(side: ModelSide) -> bool:
    """Whether image tokens may look beyond a layer's window: Gemma 4 alone clamps them to it."""
    clamped = side.facts.text_model_type.startswith("gemma4")
    windowed = any(layer.kind is LayerKind.SLIDING_WINDOW for layer in side.layers)
    return side.mm_prefix and windowed and not clamped


def in_group_order(
    target: tuple[BackendGroup, ...], draft: tuple[BackendGroup, ...], placed: Iterable[Placed]
) -> tuple[BackendGroup, ...]:
    """All groups in the engine's order: the target's, then the draft's.

    Sparse MLA layers form one KV group, in which backends come before owners.
    """
    groups = (*target, *draft)
    if not any(item.layer.mixer is Mixer.SPARSE_INDEXER for item in placed):
        return groups
    backends = list(dict.fromkeys(group.backend for group in groups))
    return tuple(sorted(groups, key=lambda group: backends.index(group.backend)))


def deciding_group(groups: Iterable[BackendGroup]) -> BackendGroup | None:
    """The first group at the minimum, ``None`` where every group replays anything."""
    deciding = None
    least = AttentionSupport.ALWAYS
    for group in groups:
        if group.support < least:
            deciding, least = group, group.support
    return deciding


def least_support(groups: Iterable[BackendGroup]) -> AttentionSupport:
    """What all groups replay; without any, everything."""
    deciding = deciding_group(groups)
    return AttentionSupport.ALWAYS if deciding is None else deciding.support


def least_varlen_bound(groups: Iterable[BackendGroup], max_decode_query_len: int) -> int | None:
    """Tokens a request may have in a FULL graph over mixed lengths, over the target's groups.

    ``None`` where some group replays uniform batches only. Groups that replay anything are
    limited by ``max_decode_query_len`` alone, the longest decode query.
    """
    bound = max_decode_query_len
    for group in groups:
        if group.draft or group.support is AttentionSupport.ALWAYS:
            continue
        if group.varlen_max_query_len is None:
            return None
        bound = min(bound, group.varlen_max_query_len)
    return bound
