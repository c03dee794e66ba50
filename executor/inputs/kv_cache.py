"""A paged KV cache in plain PyTorch, whose writes to the PAD slot are dropped.

A slot is a place for one token: ``block * block_size + offset``. Every operation here has a fixed
shape and reads nothing back to the host, so that a graph can hold it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from attrs import define, field, frozen

from executor.errors import InputError

PAD_SLOT_ID = -1
"""The slot of a token that has no place in the cache: what is written there is dropped."""

NULL_BLOCK = 0
"""The block that no request owns; empty places of a block table name it."""

_SPARE_ROWS = 2


@frozen
class KVCacheGroup:
    """Layers whose caches have one shape and share block tables; sizes count heads and elements."""

    layer_names: tuple[str, ...]
    num_kv_heads: int
    head_size: int
    dtype: torch.dtype


@frozen
class KVCacheConfig:
    """Size of every layer's cache, in blocks of ``block_size`` tokens. Block 0 is the null block."""

    num_blocks: int
    block_size: int
    groups: tuple[KVCacheGroup, ...]

    def __attrs_post_init__(self) -> None:
        if self.num_blocks < 2 or self.block_size < 1:
            raise InputError(
                f"{self.num_blocks} blocks of {self.block_size} tokens hold nothing; "
                "give at least 2 blocks, as block 0 stays empty, of at least 1 token"
            )
        names = [name for group in self.groups for name in group.layer_names]
        if len(names) != len(set(names)):
            raise InputError("a layer stands in two KV cache groups; each layer has one cache")

    @property
    def max_tokens(self) -> int:
        """Tokens that fit into the cache of a layer."""
        return (self.num_blocks - 1) * self.block_size

    def groups_of(self, layer_names: Iterable[str]) -> tuple[int, ...]:
        """Indices of the groups that hold ``layer_names``.

        Raises:
            InputError: a layer has no cache, or shares its group with a layer that is not named.
        """
        wanted = set(layer_names)
        found = [index for index, group in enumerate(self.groups) if wanted & set(group.layer_names)]
        held = {name for index in found for name in self.groups[index].layer_names}
        if held != wanted:
            name = min(held ^ wanted)
            problem = "has no KV cache" if name in wanted else "is in a group with another model's layers"
            raise InputError(f"layer {name} {problem}; give each model's layers groups of their own")
        return tuple(found)


@define(eq=False)
class LayerKVCache:
    """Keys and values of one layer, ``[num_blocks, block_size, num_kv_heads, head_size]`` each.

    Behind the last block lie two spare rows: writes to PAD end in one, and reads of a place that
    holds nothing come from the other, which is always zero.
    """

    key: torch.Tensor = field(init=False)
    value: torch.Tensor = field(init=False)
    block_size: int
    _key_rows: torch.Tensor
    _value_rows: torch.Tensor

    def __attrs_post_init__(self) -> None:
        num_blocks = (self._key_rows.shape[0] - _SPARE_ROWS) // self.block_size
        shape = (num_blocks, self.block_size, *self._key_rows.shape[1:])
        self.key = self._key_rows[:-_SPARE_ROWS].view(shape)
        self.value = self._value_rows[:-_SPARE_ROWS].view(shape)

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys and values."""
        return self._key_rows.shape[1]

    @property
    def zero_slot(self) -> int:
        """A slot to read zeros from."""
        return self._key_rows.shape[0] - 1

    def write(self, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        """Stores a key and a value a token, ``[tokens, num_kv_heads, head_size]``, at ``slots``."""
        self.store(key, value, self.rows_of(slots))

    def rows_of(self, slots: torch.Tensor) -> torch.Tensor:
        """Where ``store`` puts the tokens of ``slots``, the same in all caches of one size."""
        return torch.where(slots < 0, self._key_rows.shape[0] - _SPARE_ROWS, slots)

    def store(self, key: torch.Tensor, value: torch.Tensor, rows: torch.Tensor) -> None:
        """What ``write`` does, for slots that ``rows_of`` has looked up for many layers at once."""
        self._key_rows.index_copy_(0, rows, key.to(self._key_rows.dtype))
        self._value_rows.index_copy_(0, rows, value.to(self._value_rows.dtype))

    def poison(self, rows: torch.Tensor) -> None:
        """Makes what lies in ``rows`` NaN."""
        self._key_rows.index_fill_(0, rows, float("nan"))
        self._value_rows.index_fill_(0, rows, float("nan"))

    def read(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``[batch, num_kv_heads, keys, head_size]`` at ``slots`` ``[batch, keys]``."""
        flat, shape = slots.flatten(), (*slots.shape, *self._key_rows.shape[1:])
        keys, values = (
            rows.flatten(1).index_select(0, flat).view(shape).transpose(1, 2)
            for rows in (self._key_rows, self._value_rows)
        )
        return keys, values


class PagedKVCache:
    """The caches of all layers, zeroed. ``layers`` is what a forward context's layers map to."""

    def __init__(self, config: KVCacheConfig, device: torch.device | str) -> None:
        self.config = config
        self.layers: Mapping[str, LayerKVCache] = {
            name: _layer_cache(config, group, device) for group in config.groups for name in group.layer_names
        }

    @property
    def num_bytes(self) -> int:
        """Bytes of all keys and values."""
        return sum(layer.key.nbytes + layer.value.nbytes for layer in self.layers.values())

    def randomize(self, seed: int = 0) -> None:
        """Fills all blocks with random contents, as contexts of batches that nobody computed."""
        for index, layer in enumerate(self.layers.values()):
            generator = torch.Generator(layer.key.device).manual_seed(seed + index)
            layer.key.normal_(generator=generator)
            layer.value.normal_(generator=generator)


def _layer_cache(config: KVCacheConfig, group: KVCacheGroup, device: torch.device | str) -> LayerKVCache:
    shape = (config.num_blocks * config.block_size + _SPARE_ROWS, group.num_kv_heads, group.head_size)
    keys, values = (torch.zeros(shape, dtype=group.dtype, device=device) for _ in range(2))
    return LayerKVCache(config.block_size, keys, values)
