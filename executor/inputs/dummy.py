"""Dummy batches: what a graph is captured with, so that capturing writes to no cache."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import accumulate

from executor.inputs.attention import AttentionGroup, AttentionState, build_attention_state
from executor.inputs.batch import ScheduledBatch
from executor.inputs.block_tables import BlockTables
from executor.inputs.buffers import InputBuffers
from executor.inputs.kv_cache import KVCacheConfig


def dummy_query_lens(num_reqs: int, num_tokens: int) -> tuple[int, ...]:
    """Tokens of each request of a dummy batch: equal shares, and the last requests one more each.

    Source: vLLM 0.33, dummy batches of the V2 runner (rules 5.7).
    """
    base, more = divmod(num_tokens, num_reqs)
    return (base,) * (num_reqs - more) + (base + 1,) * more


def prepare_inputs_to_capture(
    num_reqs: int,
    num_tokens: int,
    input_buffers: InputBuffers,
    block_tables: BlockTables,
    attn_groups: Sequence[Sequence[AttentionGroup]],
    kv_cache_config: KVCacheConfig,
    max_model_len: int,
    skip_attn: bool = False,
    causal: bool | Mapping[int, bool] = True,
    max_query_len: int | None = None,
    for_capture: bool = True,
) -> AttentionState:
    """Puts a dummy batch into the buffers and builds its metadata: no context, all rows padding.

    The tables are empty and all slots PAD. Every request may grow up to ``max_model_len`` and, in a
    graph for more than the dummy batch, have queries of up to ``max_query_len`` tokens. Source: vLLM
    0.33 (rules 5.7, 7.3).

    Raises:
        InputError: the batch is larger than the buffers, or a request longer than the cache.
    """
    input_buffers.check(num_reqs, num_tokens)
    lengths = dummy_query_lens(num_reqs, num_tokens)
    input_buffers.fill(input_buffers.input_ids, (), 0)
    input_buffers.fill(input_buffers.positions, (), 0)
    input_buffers.fill(input_buffers.query_start_loc, [0, *accumulate(lengths)], num_tokens)
    input_buffers.fill(input_buffers.seq_lens, lengths, 0)
    input_buffers.mark_padding(0)
    return build_attention_state(
        num_reqs,
        num_tokens,
        input_buffers,
        block_tables.dummy_block_tables(num_reqs),
        block_tables.dummy_slot_mappings(num_tokens),
        attn_groups,
        max_query_len=max(lengths) if max_query_len is None else max_query_len,
        max_seq_len=min(max_model_len, kv_cache_config.max_tokens),
        causal=causal,
        for_capture=for_capture,
        skip_attn=skip_attn,
    )


def room_for_context(config: KVCacheConfig, max_model_len: int, num_reqs: int, longest: int) -> int:
    """The longest context that each of ``num_reqs`` requests can have ahead of ``longest`` tokens, if any."""
    share = (config.num_blocks - 1) // max(num_reqs, 1) * config.block_size
    return max(min(max_model_len, share) - longest, 0)


def random_batch(
    query_lens: Sequence[int],
    config: KVCacheConfig,
    max_context: int,
    max_model_len: int,
    vocab_size: int,
    seed: int = 0,
) -> ScheduledBatch:
    """A batch of requests with ``query_lens`` random tokens behind contexts of random length.

    It has as many of the requests as the cache has room for. Batches of one seed and ``max_context`` begin
    alike as far as their query lengths do, the last one up to its end.
    """
    draw = random.Random(seed)  # noqa: S311 - contents of a trial, no secret
    size = config.block_size
    first_block = 1
    tokens, computed, blocks = [], [], []
    for length in query_lens:
        context = draw.randint(0, max_context)
        needed = -(-(context + length) // size)
        if context + length > max_model_len or first_block + needed > config.num_blocks:
            break
        tokens.append(tuple(draw.randrange(vocab_size) for _ in range(length)))
        computed.append(context)
        blocks.append(tuple(range(first_block, first_block + needed)))
        first_block += needed
    return ScheduledBatch(tuple(tokens), tuple(computed), tuple(blocks))
