"""The device that graphs are saved on and rebuilt on: its memory, and how its graphs are got at."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

import torch

from executor.backends.base import Backend, GraphPool, Recording
from executor.backends.cuda import CudaBackend, CudaPool, CudaRecording
from executor.backends.cuda_memory import segments
from executor.errors import CaptureError
from executor.materialize.driver import GraphDriver
from executor.materialize.regions import Region

SMALL, LARGE = 1 << 20, 10 << 20
"""Up to how much PyTorch's allocator shares small segments, and from what size on they are as asked for."""


class GraphDevice(ABC):
    """What saving and restoring need of a device; ``driver`` reads and builds its graphs."""

    backend: Backend
    driver: GraphDriver

    def enter_thread(self) -> None:  # noqa: B027 - most need nothing
        """Called first on each thread that builds graphs."""

    @property
    @abstractmethod
    def stream(self) -> int:
        """The driver's handle of the stream that graphs are recorded on."""

    @abstractmethod
    def current_stream(self) -> Callable[[], int]:
        """What tells, at the least cost, the driver's handle of the stream that replays run on."""

    @abstractmethod
    def workspaces(self) -> tuple[Region, ...]:
        """Where libraries keep workspaces, from now on for good."""

    @abstractmethod
    def pool_regions(self, pool: GraphPool) -> tuple[Region, ...]:
        """The memory of a pool."""

    @abstractmethod
    def held_regions(self) -> tuple[Region, ...]:
        """All memory that the allocator holds."""

    @abstractmethod
    def claim(self, pool: GraphPool, sizes: Sequence[int]) -> tuple[Region, ...]:
        """Regions ``pool:0``, ``pool:1``, … of these sizes in ``pool`` for graphs that are rebuilt.

        The allocator then has the memory as free memory of the pool, so that graphs which are recorded
        later share it, as they do among themselves. Free memory that is there already is taken first.

        Raises:
            torch.OutOfMemoryError: there is no such memory.
        """

    @abstractmethod
    def graph_of(self, recording: Recording) -> int | None:
        """The driver's handle of a graph that was recorded here; None for any other."""


class CudaDevice(GraphDevice):
    """One GPU."""

    def __init__(self, backend: Backend, driver: GraphDriver) -> None:
        """Of a manager's backend.

        Raises:
            CaptureError: it is not a GPU's.
        """
        if not isinstance(backend, CudaBackend):
            raise CaptureError(f"device {backend.name}: graphs are saved and rebuilt on a GPU only")
        self.backend: CudaBackend = backend
        self.driver = driver

    def enter_thread(self) -> None:
        """Makes the GPU the thread's, and its context current."""
        torch.cuda.set_device(self.backend.device)

    @property
    def stream(self) -> int:
        """The driver's handle of the capture stream."""
        return self.backend.stream.cuda_stream

    def current_stream(self) -> Callable[[], int]:
        """PyTorch's own function, on the index of the device."""
        return partial(torch._C._cuda_getCurrentRawStream, self.backend.device.index)  # noqa: SLF001

    def workspaces(self) -> tuple[Region, ...]:
        """Where cuBLAS keeps its workspace for the capture stream."""
        return self.backend.pin_workspace()

    def pool_regions(self, pool: GraphPool) -> tuple[Region, ...]:
        """The segments of a pool."""
        return segments(_cuda(pool).handle, "pool")

    def held_regions(self) -> tuple[Region, ...]:
        """The segments of all pools."""
        return segments(None, "allocator")

    def claim(self, pool: GraphPool, sizes: Sequence[int]) -> tuple[Region, ...]:
        """Regions of these sizes: segments of ``pool`` that are free, and one new block for the rest."""
        own = _cuda(pool)
        free = _free_segments(own.handle, self.stream)
        starts = region_starts(sizes, free, lambda num_bytes: self._new_block(own, num_bytes))
        return tuple(Region(f"pool:{number}", starts[number], size) for number, size in enumerate(sizes))

    def _new_block(self, pool: CudaPool, num_bytes: int) -> int:
        """Makes the allocator take memory for ``pool``, and give it back to the pool."""
        handle, index = pool.handle, pool.device.index
        before = torch.cuda.memory_reserved(pool.device)
        with torch.cuda.stream(self.backend.stream):
            torch._C._cuda_beginAllocateCurrentThreadToPool(index, handle)  # noqa: SLF001 - as MemPool does
            try:
                address = _allocated(num_bytes, pool.device)
            finally:
                torch._C._cuda_endAllocateToPool(index, handle)  # noqa: SLF001
                torch._C._cuda_releasePool(index, handle)  # noqa: SLF001
        pool.reserved_bytes += torch.cuda.memory_reserved(pool.device) - before
        return address

    def graph_of(self, recording: Recording) -> int | None:
        """The handle of a graph that PyTorch recorded."""
        return recording.raw_graph() if isinstance(recording, CudaRecording) else None


def region_starts(sizes: Sequence[int], free: Sequence[Region], new_block: Callable[[int], int]) -> list[int]:
    """Where regions of ``sizes`` go: into ``free`` memory, and what has no room there into a new block.

    An allocator may well give memory that is free for a new block. Then all regions go into one.
    """
    starts, missing = packed_into(sizes, free)
    if missing:
        at = new_block(sum(sizes[number] for number in missing))
        if any(segment.start <= at < segment.end for segment in free):
            missing, at = list(range(len(sizes))), new_block(sum(sizes))
        for number in missing:
            starts[number] = at
            at += sizes[number]
    return [starts[number] for number in range(len(sizes))]


def packed_into(sizes: Sequence[int], free: Sequence[Region]) -> tuple[dict[int, int], list[int]]:
    """Where regions of ``sizes`` go in ``free`` memory, the largest first, and which have no room there.

    Sizes are those of segments, multiples of 2 MiB, so that regions behind each other begin as segments do.
    """
    starts: dict[int, int] = {}
    missing = []
    gaps = [[segment.start, segment.end] for segment in free]
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        wide = [gap for gap in gaps if gap[1] - gap[0] >= sizes[number]]
        if not wide:
            missing.append(number)
            continue
        narrowest = min(wide, key=lambda gap: gap[1] - gap[0])  # which leaves the others to larger ones
        starts[number] = narrowest[0]
        narrowest[0] += sizes[number]
    return starts, missing


def _allocated(num_bytes: int, device: torch.device) -> int:
    """The address of memory that the allocator takes from the driver, and keeps.

    For more than 1 MiB it takes at least 20; so less than 10 are taken 1 MiB at a time, if that happens to
    give one piece.
    """
    num_pieces = -(-num_bytes // SMALL)
    if num_bytes < LARGE:
        pieces = [torch.empty(SMALL, dtype=torch.uint8, device=device) for _ in range(num_pieces)]
        first = min(piece.data_ptr() for piece in pieces)
        if sorted(piece.data_ptr() - first for piece in pieces) == [SMALL * n for n in range(num_pieces)]:
            return first
        del pieces
    return torch.empty(num_bytes, dtype=torch.uint8, device=device).data_ptr()


def _cuda(pool: GraphPool) -> CudaPool:
    if not isinstance(pool, CudaPool):
        raise CaptureError("the pool belongs to another device; share pools among managers of one device")
    return pool


def _free_segments(pool: Sequence[int], stream: int) -> list[Region]:
    return [
        Region("", segment["address"], segment["total_size"])
        for segment in torch.cuda.memory_snapshot()
        if tuple(segment.get("segment_pool_id", ())) == tuple(pool)
        and segment["stream"] == stream
        and all(block["state"] == "inactive" for block in segment["blocks"])
    ]
