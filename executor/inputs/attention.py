"""Attention metadata of a step, and paged attention over it in plain PyTorch as a marked operation.

The metadata's tensors are the step's static buffers; its numbers are constants of whatever graph the
operation is part of. So a graph holds for every batch within ``max_query_len`` and ``max_seq_len``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from attrs import define, frozen
from torch.nn import functional

from executor.breaks import graph_break
from executor.context import ForwardContext, get_forward_context
from executor.errors import ContextError, InputError
from executor.inputs.buffers import InputBuffers
from executor.inputs.kv_cache import KVCacheConfig, LayerKVCache

T = TypeVar("T")

MAX_GATHERED_ELEMENTS = 1 << 27
"""Keys gathered at a time; longer batches take turns."""

_ALIGNED = 8
"""What sizes have to be multiples of for PyTorch's memory-efficient attention."""

_DENSE_SHARE = 4
"""How many times the tokens of a batch its requests may take when all are padded to the longest."""


@define(eq=False)
class AttentionMetadata:
    """Which tokens attend to what, for the layers of one group.

    ``query_start_loc`` int32 ``[num_reqs + 1]``, ``seq_lens`` int32 ``[num_reqs]`` (context and queries;
    0 for a padding request) and ``block_table`` int32 ``[num_reqs, blocks]`` are static buffers.
    ``num_tokens`` counts the query rows, ``max_query_len`` and ``max_seq_len`` bound every request.
    Without ``causal``, all queries of a request see each other.
    """

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    num_reqs: int
    num_tokens: int
    max_query_len: int
    max_seq_len: int
    causal: bool
    for_capture: bool


@frozen
class AttentionGroup:
    """Layers that share metadata, and the KV cache group that they belong to."""

    layer_names: tuple[str, ...]
    kv_cache_group_id: int

    def build(
        self,
        num_reqs: int,
        num_tokens: int,
        input_buffers: InputBuffers,
        block_table: torch.Tensor,
        max_query_len: int,
        max_seq_len: int,
        causal: bool,
        for_capture: bool,
    ) -> AttentionMetadata:
        """Metadata over the front of ``input_buffers`` and of ``block_table``."""
        return AttentionMetadata(
            query_start_loc=input_buffers.query_start_loc[: num_reqs + 1],
            seq_lens=input_buffers.seq_lens[:num_reqs],
            block_table=block_table[:num_reqs],
            num_reqs=num_reqs,
            num_tokens=num_tokens,
            max_query_len=max_query_len,
            max_seq_len=max_seq_len,
            causal=causal,
            for_capture=for_capture,
        )


def attention_groups(
    config: KVCacheConfig, layer_names: Sequence[str]
) -> tuple[tuple[AttentionGroup, ...], ...]:
    """The attention groups of a model's layers, a list for each KV cache group, empty for others'.

    Raises:
        InputError: a layer has no cache.
    """
    own = config.groups_of(layer_names)
    return tuple(
        (AttentionGroup(group.layer_names, index),) if index in own else ()
        for index, group in enumerate(config.groups)
    )


class AttentionState(NamedTuple):
    """Metadata and slots of a step by layer name; without metadata, attention is skipped."""

    attn_metadata: dict[str, AttentionMetadata] | None
    slot_mappings: dict[str, torch.Tensor]


def is_causal(causal: bool | Mapping[int, bool], group: int) -> bool:
    """The answer of KV cache group ``group``.

    Raises:
        InputError: there is none.
    """
    if isinstance(causal, bool):
        return causal
    if group not in causal:
        raise InputError(f"causal: no answer for KV cache group {group}; give one for each, or one for all")
    return causal[group]


def build_attention_state(
    num_reqs: int,
    num_tokens: int,
    input_buffers: InputBuffers,
    block_tables: Sequence[torch.Tensor],
    slot_mappings: Sequence[torch.Tensor],
    attn_groups: Sequence[Sequence[AttentionGroup]],
    *,
    max_query_len: int,
    max_seq_len: int,
    causal: bool | Mapping[int, bool] = True,
    for_capture: bool = False,
    skip_attn: bool = False,
) -> AttentionState:
    """Metadata and slots of all layers of ``attn_groups``, one list a KV cache group."""
    metadata: dict[str, AttentionMetadata] = {}
    slots: dict[str, torch.Tensor] = {}
    for group in (group for groups in attn_groups for group in groups):
        index = group.kv_cache_group_id
        slots.update(dict.fromkeys(group.layer_names, slot_mappings[index]))
        if not skip_attn:
            built = group.build(
                num_reqs,
                num_tokens,
                input_buffers,
                block_tables[index],
                max_query_len,
                max_seq_len,
                is_causal(causal, index),
                for_capture,
            )
            metadata.update(dict.fromkeys(group.layer_names, built))
    return AttentionState(None if skip_attn else metadata, slots)


@graph_break
def paged_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, output: torch.Tensor, layer_name: str
) -> None:
    """Stores the keys and values of a step, then lets its queries attend to the cache.

    ``query`` and ``output`` are ``[tokens, heads, head_size]``, ``key`` and ``value`` have the KV heads.
    Metadata, slots and the layer's cache come from the forward context. Rows without a request become
    zero; without metadata all do and nothing is stored.

    Raises:
        ContextError: the context lacks the layer, or has slots for another number of tokens.
    """
    context = get_forward_context()
    if context.attn_metadata is None:
        output.zero_()
        return
    cache, metadata, slots = _of_layer(context, layer_name)
    if len(slots) != len(key):
        raise ContextError(
            f"layer {layer_name}: {len(slots)} slots for {len(key)} tokens; give each its slot"
        )
    places = _once(context, (id(slots), cache.zero_slot), lambda: cache.rows_of(slots))
    cache.store(key, value, places)
    rows = metadata.num_tokens
    if rows:
        shape = (id(metadata), cache.zero_slot, query.shape[1], cache.num_kv_heads, query.dtype)
        pattern = _once(context, shape, lambda: _make_pattern(metadata, cache, query))
        _attend(query[:rows], cache, pattern, output[:rows])
    output[rows:].zero_()


def _once(context: ForwardContext, key: Hashable, make: Callable[[], T]) -> T:
    """What ``make`` gives the first layer of a forward that asks; a context serves one forward only."""
    known: dict[Hashable, T] = context.additional_kwargs.setdefault("paged_attention", {})
    if key not in known:
        known[key] = make()
    return known[key]


def _of_layer(
    context: ForwardContext, layer_name: str
) -> tuple[LayerKVCache, AttentionMetadata, torch.Tensor]:
    if not isinstance(context.attn_metadata, Mapping) or not isinstance(context.slot_mapping, Mapping):
        raise ContextError("attention metadata of several microbatches; set the context of one at a time")
    try:
        return (
            context.no_compile_layers[layer_name],
            context.attn_metadata[layer_name],
            context.slot_mapping[layer_name],
        )
    except KeyError:
        raise ContextError(
            f"layer {layer_name}: the forward context lacks its cache, metadata or slots; "
            "give them for every attention layer"
        ) from None


@frozen(eq=False)
class _Part:
    """Some rows of a pattern: the slots of their keys, and what is added to the score of each.

    ``slots`` ``[batch, keys]``; ``bias`` ``[batch, num_kv_heads, group * length, keys]``: 0 for what a query
    sees, a very low number for what it must not see. That is finite, so that a query which sees nothing
    averages zeros instead of becoming NaN.
    """

    rows: slice
    slots: torch.Tensor
    bias: torch.Tensor


@frozen(eq=False)
class _Order:
    """``gather`` brings tokens into the order of a pattern, ``back`` returns those that ``is_real`` marks."""

    gather: torch.Tensor
    back: torch.Tensor
    is_real: torch.Tensor


@frozen(eq=False)
class _Pattern:
    """Who attends to what in one step, the same for all layers of one shape.

    Queries stand in ``batch`` rows of ``length``; the queries of a row see keys of the same request.
    Without ``order``, the step's tokens stand like that already.
    """

    batch: int
    length: int
    parts: tuple[_Part, ...]
    order: _Order | None = None


def _make_pattern(metadata: AttentionMetadata, cache: LayerKVCache, query: torch.Tensor) -> _Pattern:
    reqs, rows, longest = metadata.num_reqs, metadata.num_tokens, metadata.max_query_len
    starts, lengths = metadata.query_start_loc, metadata.query_start_loc.diff()
    parts = partial(_parts, cache=cache, metadata=metadata, query=query)
    if reqs * longest == rows:
        return _Pattern(reqs, longest, parts(metadata.block_table, _limits(metadata, lengths)))
    token = torch.arange(rows, dtype=torch.int32, device=starts.device)
    owner = torch.searchsorted(starts[1:], token, right=True).clamp_(max=reqs - 1)
    offset = token - starts[owner]
    is_real = offset < lengths[owner]
    if reqs * longest > _DENSE_SHARE * rows:
        limits = metadata.seq_lens[owner]
        if metadata.causal:
            limits = limits - lengths[owner] + offset + 1
        limits = torch.where(is_real, limits, 0)[:, None]
        return _Pattern(rows, 1, parts(metadata.block_table[owner], limits))
    step = torch.arange(longest, dtype=torch.int32, device=starts.device)
    return _Pattern(
        reqs,
        longest,
        parts(metadata.block_table, _limits(metadata, lengths)),
        _Order(
            gather=(starts[:-1, None] + step).clamp_(max=rows - 1).flatten(),
            # A row without a request may lie beyond the last padded row.
            back=(owner * longest + offset).clamp_(max=reqs * longest - 1),
            is_real=is_real[:, None, None],
        ),
    )


def _limits(metadata: AttentionMetadata, lengths: torch.Tensor) -> torch.Tensor:
    """How many keys each query sees, by request, when all requests are padded to the longest."""
    seq_lens, longest = metadata.seq_lens[:, None], metadata.max_query_len
    if not metadata.causal:
        return seq_lens.expand(-1, longest)
    offset = torch.arange(1, longest + 1, dtype=torch.int32, device=seq_lens.device)
    return (seq_lens - lengths[:, None] + offset).clamp(min=0).minimum(seq_lens)


def _parts(
    block_table: torch.Tensor,
    limits: torch.Tensor,
    *,
    cache: LayerKVCache,
    metadata: AttentionMetadata,
    query: torch.Tensor,
) -> tuple[_Part, ...]:
    """Parts of rows whose keys are gathered at a time; keys beyond a row's limits are read as zeros."""
    size, group = cache.block_size, query.shape[1] // cache.num_kv_heads
    num_blocks = -(-metadata.max_seq_len // size)
    position = torch.arange(num_blocks * size, dtype=torch.int32, device=limits.device)
    slots = (block_table[:, :num_blocks, None] * size + position[:size]).flatten(1)
    # The last query of a row sees the most.
    slots = torch.where(position < limits[:, -1:], slots, cache.zero_slot)
    is_seen = position < limits[:, None, None, :, None]
    bias = torch.where(is_seen, 0.0, torch.finfo(query.dtype).min / 4).to(query.dtype)
    bias = bias.expand(-1, -1, group, -1, -1).flatten(2, 3).expand(-1, cache.num_kv_heads, -1, -1)
    elements = num_blocks * size * cache.num_kv_heads * query.shape[2]
    share = max(MAX_GATHERED_ELEMENTS // elements, 1)
    rows = (slice(start, start + share) for start in range(0, len(limits), share))
    return tuple(_Part(part, slots[part], bias[part]) for part in rows)


def _attend(query: torch.Tensor, cache: LayerKVCache, pattern: _Pattern, output: torch.Tensor) -> None:
    """Attention of all query rows into ``output``, ``[rows, heads, head_size]`` both."""
    shape, order = (pattern.batch, pattern.length, cache.num_kv_heads, -1, query.shape[2]), pattern.order
    placed = query if order is None else query.index_select(0, order.gather)
    attended = output if order is None else torch.empty_like(placed)
    for part in pattern.parts:
        found = _attend_part(placed.view(shape)[part.rows], part, cache)
        attended.view(shape)[part.rows].copy_(found)
    if order is not None:
        output.copy_(torch.where(order.is_real, attended.index_select(0, order.back), 0))


def _attend_part(query: torch.Tensor, part: _Part, cache: LayerKVCache) -> torch.Tensor:
    """Attention of ``query`` ``[batch, length, num_kv_heads, group, head_size]``, of the same shape."""
    keys, values = (tensor.to(query.dtype) for tensor in cache.read(part.slots))
    by_head = query.permute(0, 2, 3, 1, 4)
    found = _weighed(by_head.flatten(2, 3), keys, values, part.bias)
    return found.view(by_head.shape).permute(0, 3, 1, 2, 4)


def _weighed(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Values by the softmax of scores and ``bias``, ``[batch, heads, rows, size]``.

    On a GPU by one kernel that PyTorch brings along, wherever that takes the shape. Left to itself,
    PyTorch may choose cuDNN, which plans anew for every shape.
    """
    if query.is_cuda and not (query.shape[3] | keys.shape[2]) % _ALIGNED:
        attend = torch.ops.aten._scaled_dot_product_efficient_attention  # noqa: SLF001 - exported graphs name it
        found: torch.Tensor = attend(query, keys, values, bias, compute_log_sumexp=False)[0]
        return found
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=bias)
