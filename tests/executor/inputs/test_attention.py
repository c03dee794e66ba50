"""Paged attention against a plain one, for every shape of batch, on caches full of NaN."""

from __future__ import annotations

import pytest
import torch

import executor.inputs.attention as attention_module
from executor.context import set_forward_context
from executor.errors import ContextError
from executor.inputs.attention import AttentionGroup, build_attention_state, paged_attention
from executor.inputs.batch import ScheduledBatch
from executor.inputs.block_tables import BlockTables
from executor.inputs.buffers import InputBuffers
from executor.inputs.kv_cache import KVCacheConfig, KVCacheGroup, LayerKVCache, PagedKVCache
from executor.parallel import ParallelInfo

CONFIG = KVCacheConfig(40, 4, (KVCacheGroup(("layer",), 2, 8, torch.float32),))
HEADS = 4

BATCHES = {
    "decode": [(5, 1), (0, 1), (17, 1)],
    "verify": [(5, 4), (0, 4), (17, 4)],
    "prefill": [(0, 9)],
    "chunk": [(8, 9)],
    "nearly equal": [(0, 5), (3, 4), (9, 5)],
    "mixed": [(0, 19), (4, 1), (11, 1), (2, 1), (7, 1), (3, 2)],
}


class Case:
    """Requests of (context, queries) with random contents, and room behind them for padding."""

    def __init__(self, requests: list[tuple[int, int]], pad_reqs: int = 0, pad_tokens: int = 0) -> None:
        generator = torch.Generator().manual_seed(1)
        free = iter(range(1, 40))
        self.batch = ScheduledBatch(
            tuple((1,) * length for _, length in requests),
            tuple(context for context, _ in requests),
            tuple(tuple(next(free) for _ in range(-(-(a + b) // 4))) for a, b in requests),
        )
        self.num_reqs, self.rows = len(requests) + pad_reqs, self.batch.num_tokens + pad_tokens
        self.cache = PagedKVCache(CONFIG, "cpu")
        self.layer: LayerKVCache = self.cache.layers["layer"]
        self.layer.key.fill_(float("nan"))
        self.layer.value.fill_(float("nan"))
        self.query = torch.randn(self.rows, HEADS, 8, generator=generator)
        self.key, self.value = (torch.randn(self.rows, 2, 8, generator=generator) for _ in range(2))
        self.context = [torch.randn(2, context, 2, 8, generator=generator) for context, _ in requests]
        for context, blocks in zip(self.context, self.batch.block_ids, strict=True):
            slots = torch.tensor(
                [blocks[i // 4] * 4 + i % 4 for i in range(context.shape[1])], dtype=torch.int64
            )
            self.layer.write(context[0], context[1], slots)

    def run(
        self, causal: bool, max_query_len: int | None = None, max_seq_len: int | None = None
    ) -> torch.Tensor:
        batch = self.batch
        buffers = InputBuffers(self.num_reqs, self.rows, "cpu")
        tables = BlockTables(CONFIG, self.num_reqs, self.rows, 40, "cpu")
        buffers.write(batch)
        tables.write(batch.block_ids)
        slots = tables.compute_slot_mappings(
            batch.num_reqs, batch.num_tokens, self.rows, buffers.query_start_loc, buffers.positions
        )
        state = build_attention_state(
            self.num_reqs,
            self.rows if self.num_reqs > batch.num_reqs else batch.num_tokens,
            buffers,
            tables.block_tables,
            slots,
            ((AttentionGroup(("layer",), 0),),),
            max_query_len=max_query_len or max(batch.query_lens),
            max_seq_len=max_seq_len or max(batch.seq_lens),
            causal=causal,
        )
        output = torch.full_like(self.query, float("nan"))
        parallel = ParallelInfo(no_compile_layers=self.cache.layers)
        with set_forward_context(state.attn_metadata, parallel, self.rows, slot_mapping=state.slot_mappings):
            paged_attention(self.query, self.key, self.value, output, "layer")
        return output

    def expected(self, causal: bool) -> torch.Tensor:
        outputs, start = [], 0
        for context, length in zip(self.context, self.batch.query_lens, strict=True):
            rows = slice(start, start + length)
            start += length
            own = torch.stack((self.key[rows], self.value[rows]))
            keys, values = torch.cat((context, own), dim=1).repeat_interleave(2, 2)
            scores = torch.einsum("qhd,khd->hqk", self.query[rows], keys) / 8**0.5
            if causal:
                seen = torch.ones(length, len(keys)).tril(len(keys) - length).bool()
                scores = scores.where(seen, -torch.inf)
            outputs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), values))
        padding = torch.zeros(self.rows - start, HEADS, 8)
        return torch.cat((*outputs, padding))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("name", BATCHES)
def test_it_equals_plain_attention(name: str, causal: bool, padding: int) -> None:
    case = Case(BATCHES[name], pad_tokens=padding)
    torch.testing.assert_close(case.run(causal), case.expected(causal))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", BATCHES)
def test_with_the_limits_of_a_graph_it_is_the_same(name: str, causal: bool) -> None:
    case = Case(BATCHES[name], pad_reqs=3, pad_tokens=7)
    output = case.run(causal, max_query_len=case.rows, max_seq_len=40)
    torch.testing.assert_close(output, case.expected(causal))


@pytest.mark.parametrize(("name", "length"), [("decode", 1), ("verify", 4)])
def test_padding_requests_of_a_uniform_graph_are_zero(name: str, length: int) -> None:
    case = Case(BATCHES[name], pad_reqs=2, pad_tokens=2 * length)
    torch.testing.assert_close(case.run(True, length, 40), case.expected(True))


@pytest.mark.parametrize("name", BATCHES)
def test_gathering_in_turns_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_module, "MAX_GATHERED_ELEMENTS", 500)
    case = Case(BATCHES[name])
    torch.testing.assert_close(case.run(True), case.expected(True))


@pytest.mark.parametrize("share", [0, 1000])
def test_both_ways_through_a_ragged_batch_agree(share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_module, "_DENSE_SHARE", share)
    case = Case(BATCHES["mixed"], pad_tokens=2)
    torch.testing.assert_close(case.run(True), case.expected(True))


def test_keys_and_values_are_stored_and_no_other_place_changes() -> None:
    case = Case([(2, 3)], pad_tokens=6)
    case.run(True)
    keys = case.layer.key[list(case.batch.block_ids[0])].flatten(0, 1)
    torch.testing.assert_close(keys[2:5], case.key[:3])
    finite = case.layer.key.isfinite().all(dim=(2, 3)).flatten()
    assert finite.sum() == 5


def test_without_metadata_attention_is_zero_and_nothing_is_stored() -> None:
    case = Case([(0, 3)])
    output = torch.full_like(case.query, float("nan"))
    with set_forward_context(None, ParallelInfo(no_compile_layers=case.cache.layers), 3):
        paged_attention(case.query, case.key, case.value, output, "layer")
    assert not output.any()
    assert case.layer.key.isnan().all()


def test_a_batch_without_requests_is_zero() -> None:
    case = Case([], pad_tokens=4)
    state_of_nothing = case.batch
    assert state_of_nothing.num_tokens == 0
    buffers, tables = InputBuffers(1, 4, "cpu"), BlockTables(CONFIG, 1, 4, 40, "cpu")
    state = build_attention_state(
        0,
        0,
        buffers,
        tables.block_tables,
        tables.dummy_slot_mappings(4),
        ((AttentionGroup(("layer",), 0),),),
        max_query_len=0,
        max_seq_len=0,
    )
    output = torch.full_like(case.query, float("nan"))
    parallel = ParallelInfo(no_compile_layers=case.cache.layers)
    with set_forward_context(state.attn_metadata, parallel, 4, slot_mapping=state.slot_mappings):
        paged_attention(case.query, case.key, case.value, output, "layer")
    assert not output.any()


def test_a_context_without_the_layer_is_refused() -> None:
    case = Case([(0, 3)])
    with set_forward_context({}, ParallelInfo(), 3), pytest.raises(ContextError, match="layer layer"):
        paged_attention(case.query, case.key, case.value, case.query, "layer")


def test_metadata_of_several_microbatches_at_once_is_refused() -> None:
    case = Case([(0, 3)])
    with (
        set_forward_context([{}, {}], ParallelInfo(), 3, slot_mapping=[{}, {}]),
        pytest.raises(ContextError, match="one at a time"),
    ):
        paged_attention(case.query, case.key, case.value, case.query, "layer")
