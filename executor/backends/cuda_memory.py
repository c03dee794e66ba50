"""Memory of a GPU that graphs name, all of it PyTorch's own: segments of pools and a library's workspace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from executor.materialize.regions import Region

_SIDE = 16


class PinnedWorkspace:
    """The workspace of cuBLAS for one stream, in memory of its own that lives as long as this does.

    Where it is made on first use instead, it lies among everything else that the allocator holds, and
    graphs that were recorded with it cannot say where that is.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        self._pool = torch.cuda.MemPool()
        with torch.cuda.device(device), torch.cuda.stream(stream):
            self._make(device)
            if not self.regions:
                torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001 - as PyTorch's own graph trees do
                self._make(device)

    def _make(self, device: torch.device) -> None:
        ones = torch.ones(_SIDE, _SIDE, device=device, dtype=torch.bfloat16)
        into = torch.empty_like(ones)
        with torch.cuda.use_mem_pool(self._pool, device):
            torch.mm(ones, ones, out=into)

    @property
    def regions(self) -> tuple[Region, ...]:
        """Where it lies."""
        return segments(tuple(self._pool.id), "workspace")


def segments(pool: Sequence[int] | None, name: str) -> tuple[Region, ...]:
    """The segments of an allocator's pool in the order of their addresses; of all pools for None."""
    found = [
        (segment["address"], segment["total_size"])
        for segment in torch.cuda.memory_snapshot()
        if pool is None or tuple(segment.get("segment_pool_id", ())) == tuple(pool)
    ]
    return tuple(Region(f"{name}:{index}", *each) for index, each in enumerate(sorted(found)))


def tensor_at(
    address: int, num_bytes: int, dtype: torch.dtype, device: torch.device, shape: Any, strides: Any
) -> torch.Tensor:
    """A tensor over memory that somebody else keeps."""
    storage = torch._C._construct_storage_from_data_pointer(address, device, num_bytes)  # noqa: SLF001
    return torch.empty(0, dtype=dtype, device=device).set_(storage, 0, shape, strides)
