"""A key/value cache of one row a request, at fixed addresses, for models that index it by position.

Where a token is written and what it may see follows from its position by tensor operations alone, so
that both change from replay to replay. Padding is written behind the last position of its row.
"""

from __future__ import annotations

from typing import Any

import torch
from attrs import define, frozen

PAD_POSITION = -1
"""The position of a token that belongs to no request."""

ALIGNMENT = 8
"""Attention kernels want this many elements to divide a mask's rows."""


@define(eq=False)
class _Layer:
    """Keys and values of one layer, ``[rows, heads, capacity, head_dim]``, once it has been used."""

    keys: torch.Tensor | None = None
    values: torch.Tensor | None = None


class StaticKVCache:
    """Rows of ``max_model_len`` positions, and behind them room for ``max_query_len`` tokens of padding.

    A layer's memory is taken at its first use, when its heads are known, and stays where it is.
    """

    def __init__(
        self,
        num_layers: int,
        max_num_reqs: int,
        max_model_len: int,
        max_query_len: int,
        device: torch.device,
    ) -> None:
        self.max_num_reqs = max_num_reqs
        self.max_model_len = max_model_len
        self.capacity = -(-(max_model_len + max_query_len) // ALIGNMENT) * ALIGNMENT
        self.layers = [_Layer() for _ in range(num_layers)]
        self._columns = torch.arange(self.capacity, device=device)

    @property
    def is_used(self) -> bool:
        """Whether any layer has stored anything."""
        return any(layer.keys is not None for layer in self.layers)

    def slots(self, positions: torch.Tensor) -> torch.Tensor:
        """Where in its row each token of ``positions`` ``[requests, query]`` is written."""
        behind = self.max_model_len + self._columns[: positions.shape[1]]
        return torch.where(positions < 0, behind, positions)

    def mask(self, slots: torch.Tensor, dtype: torch.dtype, window: int | None) -> torch.Tensor:
        """What is added to attention scores, ``[requests, 1, query, capacity]``: 0 where a token sees.

        A token sees its request up to itself, the last ``window`` tokens of it if that is given;
        padding sees padding only.
        """
        own = slots[:, None, :, None]
        seen = self._columns <= own
        seen &= (self._columns >= self.max_model_len) | (own < self.max_model_len)
        if window is not None:
            seen &= self._columns > own - window
        return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(
            ~seen, torch.finfo(dtype).min
        )

    def rows(self, first: int, slots: torch.Tensor) -> list[Any]:
        """The layers as a forward sees them: the rows from ``first`` on, one for each of ``slots``."""
        return [_Rows(self, layer, first, slots) for layer in self.layers]

    def move(self, source: int, target: int) -> None:
        """Copies the row of one request over that of another."""
        for layer in self.layers:
            for tensor in (layer.keys, layer.values):
                if tensor is not None:
                    tensor[target].copy_(tensor[source])

    def room(self, like: torch.Tensor) -> torch.Tensor:
        """Zeros for all rows, of the heads, the type and the device of ``like``."""
        shape = (self.max_num_reqs, like.shape[1], self.capacity, like.shape[3])
        return torch.zeros(shape, dtype=like.dtype, device=like.device)


@frozen(eq=False)
class _Rows:
    """Some rows of one layer during one forward; to transformers, a layer of its cache."""

    cache: StaticKVCache
    layer: _Layer
    first: int
    slots: torch.Tensor

    is_compileable = True
    is_croppable = False
    is_sliding = False

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Stores what a forward computed, ``[requests, heads, query, head_dim]``; all that is stored."""
        if self.layer.keys is None or self.layer.values is None:
            self.layer.keys = self.cache.room(key_states)
            self.layer.values = self.cache.room(value_states)
        last = self.first + self.slots.shape[0]
        keys, values = self.layer.keys[self.first : last], self.layer.values[self.first : last]
        index = self.slots[:, None, :, None]
        keys.scatter_(2, index.expand(key_states.shape), key_states)
        values.scatter_(2, index.expand(value_states.shape), value_states)
        return keys, values

    def get_seq_length(self) -> int:
        """Nothing is known of lengths outside the device; models are given positions and masks."""
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002
        """How many columns a mask has, and which is its first."""
        return self.cache.capacity, 0
