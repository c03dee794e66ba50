"""Block tables and slot mappings: every token its place, every other row PAD."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from executor.errors import InputError
from executor.inputs.batch import ScheduledBatch
from executor.inputs.block_tables import BlockTables
from executor.inputs.buffers import InputBuffers
from executor.inputs.kv_cache import PAD_SLOT_ID, KVCacheConfig, KVCacheGroup

CONFIG = KVCacheConfig(
    32, 4, (KVCacheGroup(("a",), 1, 2, torch.float32), KVCacheGroup(("b",), 1, 2, torch.float32))
)


def tables_of() -> BlockTables:
    return BlockTables(CONFIG, 4, 24, 20, "cpu")


def slots_of(batch: ScheduledBatch, padded: int, tables: BlockTables) -> list[int]:
    buffers = InputBuffers(4, 24, "cpu")
    buffers.write(batch)
    tables.write(batch.block_ids)
    first, second = tables.compute_slot_mappings(
        batch.num_reqs, batch.num_tokens, padded, buffers.query_start_loc, buffers.positions
    )
    assert torch.equal(first, second)
    return [int(slot) for slot in first]


def test_slots_follow_the_block_table() -> None:
    batch = ScheduledBatch(((1, 1, 1), (1,)), (2, 5), ((7, 3), (9, 11)))
    assert slots_of(batch, 6, tables_of()) == [
        7 * 4 + 2,
        7 * 4 + 3,
        3 * 4,
        11 * 4 + 1,
        PAD_SLOT_ID,
        PAD_SLOT_ID,
    ]


def test_a_smaller_batch_leaves_nothing_of_a_larger_one() -> None:
    tables = tables_of()
    slots_of(ScheduledBatch(((1,) * 5, (1,) * 5), (0, 0), ((1, 2), (3, 4))), 10, tables)
    slots_of(ScheduledBatch(((1,),), (0,), ((5,),)), 1, tables)
    assert tables.slot_mappings[0].tolist() == [20] + [PAD_SLOT_ID] * 23
    assert tables.block_tables[1].tolist() == [[5, 0, 0, 0, 0]] + [[0] * 5] * 3


def test_a_token_in_the_null_block_or_beyond_the_table_has_no_place() -> None:
    batch = ScheduledBatch(((1, 1), (1, 1)), (3, 19), ((7,), (1, 2, 3, 4, 5)))
    assert slots_of(batch, 4, tables_of()) == [31, PAD_SLOT_ID, 5 * 4 + 3, PAD_SLOT_ID]


def test_dummies_are_empty_views_of_the_same_memory() -> None:
    tables = tables_of()
    slots_of(ScheduledBatch(((1,),), (0,), ((5,),)), 1, tables)
    (table, _), (slots, _) = tables.dummy_block_tables(2), tables.dummy_slot_mappings(3)
    assert table.data_ptr() == tables.block_tables[0].data_ptr()
    assert slots.data_ptr() == tables.slot_mappings[0].data_ptr()
    assert not tables.block_tables[0].any()
    assert tables.slot_mappings[1].eq(PAD_SLOT_ID).all()
    assert table.shape == (2, 5)
    assert slots.shape == (3,)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (((1,),) * 5, "hold 4"),
        (((1,) * 6,), "6 blocks"),
        (((32,),), "blocks 0 to 31"),
        (((-1,),), "blocks 0 to 31"),
    ],
)
def test_tables_that_the_cache_does_not_have_are_refused(
    blocks: tuple[tuple[int, ...], ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        tables_of().write(blocks)


def test_a_step_beyond_the_mapping_is_refused() -> None:
    buffers = InputBuffers(4, 32, "cpu")
    with pytest.raises(InputError, match="25 tokens"):
        tables_of().compute_slot_mappings(1, 1, 25, buffers.query_start_loc, buffers.positions)


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(1, 5)), min_size=1, max_size=4))
def test_no_two_tokens_share_a_slot(requests: list[tuple[int, int]]) -> None:
    free = iter(range(1, 32))
    blocks = tuple(
        tuple(next(free) for _ in range(-(-(computed + length) // 4))) for computed, length in requests
    )
    batch = ScheduledBatch(
        tuple((1,) * length for _, length in requests), tuple(computed for computed, _ in requests), blocks
    )
    slots = slots_of(batch, batch.num_tokens, tables_of())
    assert len(set(slots)) == batch.num_tokens
    assert min(slots) >= 4
