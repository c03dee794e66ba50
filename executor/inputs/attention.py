"""Attention metadata of a step, and paged attention over it in plain PyTorch as a marked operation.

The metadata's tensors are the step's static buffers; its numbers are constants of whatever graph the
operation is part of. So a graph holds for every batch within ``max_query_len`` and ``max_seq_len``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from attrs import define, frozen

from executor.breaks import graph_break
from executor.context import ForwardContext, get_forward_context
from executor.errors import ContextError, InputError
from executor.inputs.buffers import InputBuffers
from executor.inputs.kv_cache import KVCacheConfig, LayerKVCache

MAX_GATHERED_ELEMENTS = 1 << 27
"""Keys gathered at a time; longer batches take turns."""

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
    cache.write(key, value, slots)
    rows = metadata.num_tokens
    if rows:
        output[:rows].copy_(_attend(query[:rows], cache, _pattern_of(context, metadata, cache)))
    output[rows:].zero_()


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
    """Some rows of a pattern: where their keys lie, by head, and which of those each query must not see."""

    rows: slice
    index: torch.Tensor
    hidden: torch.Tensor


@frozen(eq=False)
class _Pattern:
    """Who attends to what in one step, the same for all layers of one shape.

    Queries stand in ``batch`` rows of ``length``; the queries of a row see keys of the same request.
    ``gather`` brings the step's tokens into that order and ``back`` returns them, for ``is_real`` tokens.
    """

    batch: int
    length: int
    parts: tuple[_Part, ...]
    gather: torch.Tensor | None = None
    back: torch.Tensor | None = None
    is_real: torch.Tensor | None = None


def _pattern_of(context: ForwardContext, metadata: AttentionMetadata, cache: LayerKVCache) -> _Pattern:
    """The pattern, computed by the first layer of a forward; a context serves one forward only."""
    known = context.additional_kwargs.setdefault("paged_attention", {})
    key = (id(metadata), cache.zero_slot, cache.num_kv_heads)
    if key not in known:
        known[key] = _make_pattern(metadata, cache)
    pattern: _Pattern = known[key]
    return pattern


def _make_pattern(metadata: AttentionMetadata, cache: LayerKVCache) -> _Pattern:
    reqs, rows, longest = metadata.num_reqs, metadata.num_tokens, metadata.max_query_len
    starts, lengths = metadata.query_start_loc, metadata.query_start_loc.diff()
    if reqs * longest == rows:
        limits = _limits(metadata, lengths)
        return _Pattern(reqs, longest, _parts(metadata.block_table, limits, cache, metadata))
    token = torch.arange(rows, dtype=torch.int32, device=starts.device)
    owner = torch.searchsorted(starts[1:], token, right=True).clamp_(max=reqs - 1)
    offset = token - starts[owner]
    is_real = offset < lengths[owner]
    if reqs * longest > _DENSE_SHARE * rows:
        limits = metadata.seq_lens[owner]
        if metadata.causal:
            limits = limits - lengths[owner] + offset + 1
        limits = torch.where(is_real, limits, 0)[:, None]
        return _Pattern(rows, 1, _parts(metadata.block_table[owner], limits, cache, metadata))
    step = torch.arange(longest, dtype=torch.int32, device=starts.device)
    return _Pattern(
        reqs,
        longest,
        _parts(metadata.block_table, _limits(metadata, lengths), cache, metadata),
        gather=(starts[:-1, None] + step).clamp_(max=rows - 1).flatten(),
        # A row without a request may lie beyond the last padded row.
        back=(owner * longest + offset).clamp_(max=reqs * longest - 1),
        is_real=is_real[:, None, None],
    )


def _limits(metadata: AttentionMetadata, lengths: torch.Tensor) -> torch.Tensor:
    """How many keys each query sees, by request, when all requests are padded to the longest."""
    seq_lens, longest = metadata.seq_lens[:, None], metadata.max_query_len
    if not metadata.causal:
        return seq_lens.expand(-1, longest)
    offset = torch.arange(1, longest + 1, dtype=torch.int32, device=seq_lens.device)
    return (seq_lens - lengths[:, None] + offset).clamp(min=0).minimum(seq_lens)


def _parts(
    block_table: torch.Tensor, limits: torch.Tensor, cache: LayerKVCache, metadata: AttentionMetadata
) -> tuple[_Part, ...]:
    """Parts of rows whose keys are gathered at a time; keys beyond a row's limits are read as zeros."""
    elements = metadata.max_seq_len * cache.num_kv_heads * cache.key.shape[3]
    share = max(MAX_GATHERED_ELEMENTS // elements, 1)
    position = torch.arange(metadata.max_seq_len, dtype=torch.int32, device=limits.device)
    blocks = block_table[:, position // cache.block_size]
    slots = blocks * cache.block_size + position % cache.block_size
    slots = torch.where(position < limits.amax(1, keepdim=True), slots, cache.zero_slot)
    index = cache.index(slots)
    hidden = position >= limits[:, None, None, :, None]
    rows = (slice(start, start + share) for start in range(0, len(limits), share))
    return tuple(_Part(part, index[part], hidden[part]) for part in rows)


def _attend(query: torch.Tensor, cache: LayerKVCache, pattern: _Pattern) -> torch.Tensor:
    """Attention of all query rows, ``[rows, heads, head_size]``."""
    placed = query if pattern.gather is None else query.index_select(0, pattern.gather)
    placed = placed.reshape(pattern.batch, pattern.length, *query.shape[1:])
    outputs = [_attend_part(placed[part.rows], part, cache) for part in pattern.parts]
    output = (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).flatten(0, 1)
    if pattern.back is None or pattern.is_real is None:
        return output
    return torch.where(pattern.is_real, output.index_select(0, pattern.back), 0)


def _attend_part(query: torch.Tensor, part: _Part, cache: LayerKVCache) -> torch.Tensor:
    batch, length, heads, size = query.shape
    keys, values = (tensor.to(query.dtype) for tensor in cache.read(part.index))
    group = (batch, cache.num_kv_heads, heads // cache.num_kv_heads, length)
    grouped = (query * size**-0.5).reshape(batch, length, *group[1:3], size).permute(0, 2, 3, 1, 4)
    scores = torch.matmul(grouped.flatten(2, 3), keys.transpose(2, 3)).view(*group, -1).float()
    # A finite least score: a query that sees nothing averages zeros instead of becoming NaN.
    weights = scores.masked_fill(part.hidden, torch.finfo(torch.float32).min).softmax(-1)
    output = torch.matmul(weights.to(query.dtype).flatten(2, 3), values)
    return output.view(*group, size).permute(0, 3, 1, 2, 4).reshape(query.shape)
