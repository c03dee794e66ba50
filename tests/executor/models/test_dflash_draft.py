"""The drafter: what it takes from its target, and what its buffers sample."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from executor.errors import ModelError
from executor.inputs.kv_cache import KVCacheConfig, PagedKVCache
from executor.models.config import DFlashConfig
from executor.models.dflash_draft import DFlashDraft, DraftBuffers, build_draft
from executor.models.pairs import build_pair


@pytest.fixture(scope="module")
def draft() -> DFlashDraft:
    return build_pair(3).draft


def buffers_of(draft: DFlashDraft) -> DraftBuffers:
    return DraftBuffers(
        draft, num_speculative_tokens=3, max_num_reqs=2, max_staged_tokens=8, max_context_tokens=8
    )


def test_context_rows_are_stored_in_every_layer_and_pad_is_not(draft: DFlashDraft) -> None:
    cache = PagedKVCache(KVCacheConfig(4, 4, (draft.kv_cache_group,)), "cpu")
    caches = [cache.layers[name] for name in draft.layer_names]
    aux = torch.randn(3, draft.fc.weight.shape[1])
    with torch.no_grad():
        draft.store_context(draft.combine(aux), torch.tensor([2, 0, 3]), torch.tensor([6, -1, 7]), caches)
    for layer in caches:
        written = layer.value.flatten(0, 1).flatten(1).any(1)
        assert written.nonzero().flatten().tolist() == [6, 7]


def test_sampling_is_greedy_by_row_and_inert_rows_give_minus_one(draft: DFlashDraft) -> None:
    buffers = buffers_of(draft)
    hidden = torch.randn(8, draft.config.hidden_size)
    buffers.sample_indices.copy_(torch.tensor([1, 2, 3, 5, 6, 7]))
    buffers.sample_idx_mapping.copy_(torch.tensor([0, 0, 0, -1, -1, -1]))
    with torch.no_grad():
        buffers.sample(draft, hidden, 2)
        expected = draft.compute_logits(hidden[1:4]).argmax(-1)
    assert torch.equal(buffers.draft_tokens[0], expected)
    assert buffers.draft_tokens[1].tolist() == [-1, -1, -1]


def test_ties_go_to_the_lowest_token(draft: DFlashDraft) -> None:
    buffers = buffers_of(draft)
    buffers.sample_idx_mapping.zero_()
    with torch.no_grad():
        buffers.sample(draft, torch.zeros(8, draft.config.hidden_size), 2)
    assert not buffers.draft_tokens.any()


def test_inert_buffers_sample_nothing_and_store_nothing(draft: DFlashDraft) -> None:
    buffers = buffers_of(draft)
    for tensor in (
        buffers.sample_indices,
        buffers.sample_pos,
        buffers.sample_idx_mapping,
        buffers.context_slots,
    ):
        tensor.fill_(5)
    buffers.make_inert()
    assert buffers.sample_idx_mapping.eq(-1).all()
    assert buffers.context_slots.eq(-1).all()
    assert not buffers.sample_indices.any()
    assert not buffers.sample_pos.any()


def test_a_target_that_returns_other_layers_is_refused(draft: DFlashDraft) -> None:
    config: DFlashConfig = evolve(draft.draft_config, target_layer_ids=(1,))
    with pytest.raises(ModelError, match=r"reads layers \[1\]"):
        build_draft(config, draft.target)


def test_a_target_of_another_size_is_refused(draft: DFlashDraft) -> None:
    smaller = evolve(draft.config, vocab_size=16)
    with pytest.raises(ModelError, match="hidden size and vocabulary"):
        build_draft(evolve(draft.draft_config, decoder=smaller), draft.target)


def test_a_drafter_without_a_target_says_so(draft: DFlashDraft) -> None:
    with pytest.raises(ModelError, match="no target"):
        DFlashDraft(draft.draft_config).compute_logits(torch.zeros(1, 128))


def test_the_targets_weights_are_not_the_drafters(draft: DFlashDraft) -> None:
    assert not any(weight is draft.target.lm_head.weight for weight in draft.parameters())
