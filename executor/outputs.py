"""Where outputs of graphs live: outside the pool, so that a replay of another graph leaves them alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from cache.captures import OutputShape
from executor.errors import CaptureError
from executor.trees import map_tensors, tensors_of


class OutputBuffers:
    """One buffer for each tensor that a forward returns, long enough for the largest entry so far.

    The first dimension of an output (tokens or requests) may differ from entry to entry, the others
    and the type may not.
    """

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []

    def reserve(self, outputs: Any) -> None:
        """Makes room for outputs of these shapes. Must not be called while something is recorded.

        Raises:
            CaptureError: the forward returns other tensors than for earlier entries.
        """
        leaves = list(tensors_of(outputs))
        if self._buffers and len(leaves) != len(self._buffers):
            raise CaptureError(
                f"the forward returns {len(leaves)} tensors, for an earlier entry it was "
                f"{len(self._buffers)}; return the same for all"
            )
        for index, leaf in enumerate(leaves):
            if index == len(self._buffers):
                self._buffers.append(_buffer_like(leaf))
                continue
            buffer = self._buffers[index]
            if leaf.dtype != buffer.dtype or leaf.shape[1:] != buffer.shape[1:] or leaf.dim() != buffer.dim():
                raise CaptureError(
                    f"output {index} is {leaf.dtype} {tuple(leaf.shape)}, an earlier entry's "
                    f"{buffer.dtype} {tuple(buffer.shape)}; only the first dimension may differ"
                )
            if leaf.dim() and leaf.shape[0] > buffer.shape[0]:
                # Entries that were recorded already keep the shorter buffer.
                self._buffers[index] = _buffer_like(leaf)

    def reserve_shapes(self, shapes: Sequence[OutputShape], device: torch.device) -> None:
        """Makes room for outputs as an earlier capture recorded them, unless there is room already.

        A type that this PyTorch does not have leaves the room to be made by a warm-up forward.
        """
        dtypes = [getattr(torch, shape.dtype, None) for shape in shapes]
        if self._buffers or not all(isinstance(dtype, torch.dtype) for dtype in dtypes):
            return
        with suppress(RuntimeError):  # no such memory here: warm-up forwards tell what is needed
            self._buffers = [
                torch.empty(shape.shape, dtype=dtype, device=device)
                for shape, dtype in zip(shapes, dtypes, strict=True)
            ]

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The buffers, in the order in which the forward returns its tensors."""
        return tuple(self._buffers)

    def keep(self, outputs: Any) -> Any:
        """Copies ``outputs`` into the buffers and returns the same tree over the buffers.

        Called while the graph is recorded, so that every replay copies.

        Raises:
            CaptureError: no room was reserved for outputs of these shapes.
        """
        buffers = iter(self._buffers)

        def kept(leaf: torch.Tensor) -> torch.Tensor:
            buffer = next(buffers, None)
            if buffer is None or not _has_room(buffer, leaf):
                raise CaptureError(f"no buffer for an output of {tuple(leaf.shape)}; warm the entry up first")
            part = buffer[: leaf.shape[0]] if leaf.dim() else buffer
            return part.copy_(leaf)

        return map_tensors(kept, outputs)

    def clear(self) -> None:
        """Drops the buffers; outputs that somebody still holds stay as they are."""
        self._buffers.clear()


def _has_room(buffer: torch.Tensor, leaf: torch.Tensor) -> bool:
    same = buffer.dtype == leaf.dtype and buffer.shape[1:] == leaf.shape[1:] and buffer.dim() == leaf.dim()
    return same and (not leaf.dim() or leaf.shape[0] <= buffer.shape[0])


def _buffer_like(leaf: torch.Tensor) -> torch.Tensor:
    return torch.empty(leaf.shape, dtype=leaf.dtype, device=leaf.device)
