"""Dummy batches: what a graph is captured with."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from executor.errors import InputError
from executor.inputs.attention import AttentionGroup, AttentionMetadata, AttentionState
from executor.inputs.block_tables import BlockTables
from executor.inputs.buffers import InputBuffers
from executor.inputs.dummy import (
    dummy_query_lens,
    prepare_inputs_to_capture,
    random_batch,
    room_for_context,
)
from executor.inputs.kv_cache import PAD_SLOT_ID, KVCacheConfig, KVCacheGroup

CONFIG = KVCacheConfig(
    16, 4, (KVCacheGroup(("a", "b"), 1, 2, torch.float32), KVCacheGroup(("c",), 1, 2, torch.float32))
)
GROUPS = ((AttentionGroup(("a", "b"), 0),), (AttentionGroup(("c",), 1),))


def prepare(num_reqs: int, num_tokens: int, **options: object) -> tuple[InputBuffers, AttentionState]:
    buffers, tables = InputBuffers(8, 24, "cpu"), BlockTables(CONFIG, 8, 24, 20, "cpu")
    for tensor in (*tables.block_tables, *tables.slot_mappings, buffers.input_ids, buffers.seq_lens):
        tensor.fill_(3)
    state = prepare_inputs_to_capture(
        num_reqs,
        num_tokens,
        buffers,
        tables,
        GROUPS,
        CONFIG,
        20,
        **options,  # type: ignore[arg-type]
    )
    return buffers, state


def metadata_of(state: AttentionState, layer: str = "a") -> AttentionMetadata:
    assert state.attn_metadata is not None
    return state.attn_metadata[layer]


@given(st.integers(1, 300), st.integers(0, 1000))
def test_tokens_are_shared_out_and_the_last_requests_get_one_more(num_reqs: int, more: int) -> None:
    lengths = dummy_query_lens(num_reqs, num_reqs + more)
    assert sum(lengths) == num_reqs + more
    assert list(lengths) == sorted(lengths)
    assert lengths[-1] - lengths[0] <= 1


def test_the_dummy_batch_has_no_context_and_is_all_padding() -> None:
    buffers, state = prepare(3, 11)
    assert buffers.query_start_loc.tolist() == [0, 3, 7, 11, 11, 11, 11, 11, 11]
    assert buffers.seq_lens.tolist() == [3, 4, 4, 0, 0, 0, 0, 0]
    assert buffers.is_padding.all()
    assert not buffers.input_ids.any()
    assert set(state.slot_mappings) == {"a", "b", "c"}
    assert all(slots.tolist() == [PAD_SLOT_ID] * 11 for slots in state.slot_mappings.values())


def test_metadata_reads_the_static_buffers_and_bounds_what_the_graph_serves() -> None:
    buffers, state = prepare(3, 11)
    metadata = metadata_of(state)
    assert metadata is metadata_of(state, "b")
    assert metadata.seq_lens.data_ptr() == buffers.seq_lens.data_ptr()
    assert metadata.query_start_loc.data_ptr() == buffers.query_start_loc.data_ptr()
    assert not metadata.block_table.any()
    assert (metadata.max_query_len, metadata.max_seq_len) == (4, 20)
    assert metadata.for_capture
    assert metadata.causal
    assert metadata_of(prepare(3, 11, max_query_len=11)[1]).max_query_len == 11


def test_causality_may_differ_by_group() -> None:
    state = prepare(2, 8, causal={0: True, 1: False})[1]
    assert metadata_of(state, "a").causal
    assert not metadata_of(state, "c").causal
    with pytest.raises(InputError, match="KV cache group 1"):
        prepare(2, 8, causal={0: True})


def test_attention_can_be_left_out() -> None:
    state = prepare(2, 8, skip_attn=True)[1]
    assert state.attn_metadata is None
    assert state.slot_mappings["a"].shape == (8,)


def test_an_entry_beyond_the_buffers_is_refused() -> None:
    with pytest.raises(InputError, match="25 tokens"):
        prepare(1, 25)


@given(st.integers(1, 8), st.integers(0, 30), st.integers(0, 5))
def test_a_random_batch_fits_the_cache(num_reqs: int, more: int, seed: int) -> None:
    lengths = dummy_query_lens(num_reqs, num_reqs + more)
    room = room_for_context(CONFIG, 20, num_reqs, max(lengths))
    batch = random_batch(lengths, CONFIG, room, 20, 50, seed)
    assert batch == random_batch(lengths, CONFIG, room, 20, 50, seed)
    blocks = [block for row in batch.block_ids for block in row]
    assert len(blocks) == len(set(blocks))
    assert all(0 < block < 16 for block in blocks)
    assert all(length <= 20 for length in batch.seq_lens)
    assert all(len(row) * 4 >= length for row, length in zip(batch.block_ids, batch.seq_lens, strict=True))


@given(st.integers(1, 4), st.integers(0, 4), st.integers(0, 3), st.integers(0, 5))
def test_random_batches_begin_alike(length: int, full: int, rest: int, seed: int) -> None:
    config = evolve(CONFIG, num_blocks=64)
    large = random_batch((length,) * 5, config, 7, 20, 50, seed)
    lengths = (length,) * full + (min(rest, length - 1),) * (rest > 0 and length > 1)
    small = random_batch(lengths, config, 7, 20, 50, seed)
    assert small.query_lens == lengths
    for index, tokens in enumerate(small.token_ids):
        assert tokens == large.token_ids[index][: len(tokens)]
        assert small.num_computed[index] == large.num_computed[index]
        blocks = small.block_ids[index]
        assert blocks == large.block_ids[index][: len(blocks)]
