"""The paged cache: what is written at a slot is read there, and PAD has no place."""

from __future__ import annotations

import pytest
import torch

from executor.errors import InputError
from executor.inputs.kv_cache import PAD_SLOT_ID, KVCacheConfig, KVCacheGroup, LayerKVCache, PagedKVCache

GROUP = KVCacheGroup(("a", "b"), 2, 4, torch.float32)


def cache_of(num_blocks: int = 3, block_size: int = 4) -> PagedKVCache:
    return PagedKVCache(KVCacheConfig(num_blocks, block_size, (GROUP,)), "cpu")


def rows(layer: LayerKVCache, slots: list[list[int]]) -> torch.Tensor:
    return layer.read(torch.tensor(slots))[0]


def test_each_layer_has_keys_and_values_of_its_own() -> None:
    layers = cache_of().layers
    assert set(layers) == {"a", "b"}
    layers["a"].key.fill_(1)
    assert layers["a"].key.shape == (3, 4, 2, 4)
    assert not layers["a"].value.any()
    assert not layers["b"].key.any()


def test_what_is_written_at_slots_is_read_there() -> None:
    layer = cache_of().layers["a"]
    key, value = torch.randn(3, 2, 4), torch.randn(3, 2, 4)
    layer.write(key, value, torch.tensor([5, 11, 4]))
    assert torch.equal(layer.key[1, 1], key[0])
    assert torch.equal(layer.value[2, 3], value[1])
    assert torch.equal(rows(layer, [[4, 5, 11]])[0].transpose(0, 1), key[[2, 0, 1]])


def test_writes_to_pad_change_nothing_that_can_be_read() -> None:
    layer = cache_of().layers["a"]
    layer.key.fill_(7)
    layer.value.fill_(7)
    ones = torch.ones(3, 2, 4)
    layer.write(ones, ones, torch.tensor([PAD_SLOT_ID, 2, PAD_SLOT_ID]))
    changed = (layer.key.flatten(0, 1) != 7).any(dim=(1, 2)) | (layer.value.flatten(0, 1) != 7).any(
        dim=(1, 2)
    )
    assert changed.nonzero().tolist() == [[2]]
    assert not rows(layer, [[layer.zero_slot]]).any()


@pytest.mark.parametrize("block_size", [1, 2, 16])
def test_a_place_that_holds_nothing_reads_zeros_even_in_a_poisoned_cache(block_size: int) -> None:
    layer = cache_of(block_size=block_size).layers["b"]
    layer.key.fill_(float("nan"))
    layer.value.fill_(float("nan"))
    layer.write(torch.ones(1, 2, 4), torch.ones(1, 2, 4), torch.tensor([PAD_SLOT_ID]))
    assert not rows(layer, [[layer.zero_slot]]).any()


def test_sizes_that_hold_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="at least 2 blocks"):
        KVCacheConfig(1, 16, (GROUP,))


def test_a_layer_in_two_groups_is_refused() -> None:
    with pytest.raises(InputError, match="two KV cache groups"):
        KVCacheConfig(2, 16, (GROUP, KVCacheGroup(("b",), 1, 4, torch.float32)))


def test_groups_of_a_model_are_found_by_its_layers() -> None:
    config = KVCacheConfig(2, 16, (GROUP, KVCacheGroup(("c",), 1, 4, torch.float32)))
    assert config.groups_of(["c"]) == (1,)
    assert config.groups_of(["a", "b"]) == (0,)
    with pytest.raises(InputError, match="layer d has no KV cache"):
        config.groups_of(["c", "d"])
    with pytest.raises(InputError, match="another model's layers"):
        config.groups_of(["a"])


def test_bytes_are_those_of_all_keys_and_values() -> None:
    assert cache_of(3, 4).num_bytes == 2 * 2 * 3 * 4 * 2 * 4 * 4
