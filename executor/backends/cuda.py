"""Recording on a GPU: CUDA graphs on one capture stream, without what makes the textbook loop slow.

``torch.cuda.graph()`` synchronises and flushes the allocator's caches at every entry; here that
happens once around a whole series. PyTorch (seen in 2.11) does not clean up after a capture that fails:
its allocators keep routing to the pool, the pool keeps a user that never goes away, and the random
generator believes that it is still being captured. ``CudaRecorder.abort`` sees to that.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from attrs import define, field

from executor.backends.base import Backend, Digests, GraphPool, MemoryBudgetError, Recorder, Recording
from executor.backends.cuda_driver import capture_is_active, restart_capture
from executor.backends.cuda_memory import PinnedWorkspace, segments, tensor_at
from executor.backends.cuda_nodes import describe_nodes, num_nodes
from executor.errors import CaptureError, ReplayError
from executor.materialize.regions import Region
from executor.trees import map_tensors

CAPTURE_MODE = "thread_local"
"""Other threads may go on using the GPU, as servers' do while one thread captures."""


class CudaPool(GraphPool):
    """Memory of PyTorch's allocator that graphs share.

    An anchor, a graph of one node, keeps the pool alive from the first recording until the last one
    is released, whatever fails in between.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        self.device = device
        self._stream = stream
        self._handle: Any = None
        self._anchor: torch.cuda.CUDAGraph | None = None
        self._recordings = 0
        self.reserved_bytes = 0
        self._segments: tuple[int, tuple[Region, ...]] | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes that the allocator took from the driver while recording into this pool."""
        return self.reserved_bytes

    @property
    def handle(self) -> Any:
        """The allocator's name for the pool, anchored."""
        if self._anchor is None:
            self._handle = torch.cuda.graph_pool_handle()
            self._anchor = self._record_one_node()
        return self._handle

    def joined(self) -> None:
        """Counts a recording that lives in the pool."""
        self._recordings += 1

    def left(self) -> None:
        """Uncounts a recording; after the last one the allocator has the memory back."""
        self._recordings -= 1
        if self._recordings == 0 and self._anchor is not None:
            self._anchor.reset()
            self._anchor, self.reserved_bytes, self._segments = None, 0, None

    def _record_one_node(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            cell = torch.zeros(1, device=self.device)
            graph.capture_begin(pool=self._handle, capture_error_mode=CAPTURE_MODE)
            cell.add_(1)
            graph.capture_end()
        return graph

    def holds(self) -> Callable[[torch.Tensor], bool]:
        """A test of whether a tensor lies in this pool, as the pool is after the last recording."""
        if self._segments is None or self._segments[0] != self.reserved_bytes:
            self._segments = self.reserved_bytes, segments(self.handle, "pool")
        own = self._segments[1]
        return lambda tensor: any(each.start <= tensor.data_ptr() < each.end for each in own)


@define(eq=False)
class CudaRecording(Recording):
    """A CUDA graph; ``None`` once released."""

    graph: torch.cuda.CUDAGraph | None
    pool: CudaPool
    instantiated: Future[None]

    @property
    def num_nodes(self) -> int | None:
        """Nodes of the graph, where the CUDA bindings are installed."""
        return None if self.graph is None else num_nodes(self.graph)

    def replay(self) -> None:
        """Launches the graph on the current stream."""
        if self.graph is None:
            raise ReplayError("the graph was released; capture it again")
        self.graph.replay()

    def launcher(self) -> Callable[[], None]:
        """PyTorch's own method, without the Python around it."""
        if self.graph is None:
            return self.replay
        return super(torch.cuda.CUDAGraph, self.graph).replay

    def raw_graph(self) -> int:
        """The driver's handle of the graph.

        Raises:
            ReplayError: the graph was released.
        """
        if self.graph is None:
            raise ReplayError("the graph was released; capture it again")
        return int(self.graph.raw_cuda_graph())

    def digests(self) -> Digests | None:
        """Over node types, kernel names, launch shapes and edges, where the bindings are installed."""
        described = None if self.graph is None else describe_nodes(self.graph)
        return None if described is None else Digests.of(*described)

    def kernel_names(self) -> frozenset[str] | None:
        """Names of the graph's kernels, where the bindings are installed."""
        described = None if self.graph is None else describe_nodes(self.graph)
        return None if described is None else frozenset(described[0])

    def wait_until_ready(self) -> None:
        """Waits for the thread that instantiates the graph."""
        self.instantiated.result()

    def release(self) -> None:
        """Destroys the graph."""
        wait([self.instantiated])
        if self.graph is not None:
            self.graph.reset()
            self.graph = None
            self.pool.left()


@define(eq=False)
class CudaRecorder(Recorder):
    """One capture on the current stream, which is the session's."""

    pool: CudaPool
    worker: Executor
    graph: torch.cuda.CUDAGraph = field(factory=lambda: torch.cuda.CUDAGraph(keep_graph=True))
    stream: torch.cuda.Stream = field(factory=torch.cuda.current_stream)
    began_with: int = 0
    ended: bool = False

    def begin(self) -> None:
        """Begins the capture."""
        handle = self.pool.handle
        self.began_with = torch.cuda.memory_reserved(self.pool.device)
        self.graph.capture_begin(pool=handle, capture_error_mode=CAPTURE_MODE)

    def end(self) -> CudaRecording:
        """Ends the capture; the graph is made ready to launch while the next one is recorded."""
        with warnings.catch_warnings():
            # A piece between two marked operations may well be empty.
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            self.graph.capture_end()
        self.ended = True
        self._count()
        instantiated = self.worker.submit(self.graph.instantiate)
        self.pool.joined()
        return CudaRecording(self.graph, self.pool, instantiated)

    def abort(self) -> None:
        """Drops the capture in a way that lets PyTorch clean up after it.

        ``capture_end`` of a capture that a forbidden call spoiled gives up half-way. So an empty capture
        is put in its place on the stream, which then ends as any other.
        """
        with suppress(RuntimeError, CaptureError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not self.ended:
                if not capture_is_active(self.stream):
                    restart_capture(self.stream)
                self.graph.capture_end()
        self._count()
        with suppress(RuntimeError):
            self.graph.reset()

    def _count(self) -> None:
        grown = torch.cuda.memory_reserved(self.pool.device) - self.began_with
        self.pool.reserved_bytes += max(grown, 0)


class CudaBackend(Backend):
    """Recording on one GPU."""

    name = "cuda"

    def __init__(self, device: torch.device) -> None:
        index = device.index if ":" in str(device) else torch.cuda.current_device()
        self.device = torch.device("cuda", index)
        self.stream = torch.cuda.Stream(self.device)
        self._worker = ThreadPoolExecutor(
            1, "graphplan-instantiate", initializer=partial(torch.cuda.set_device, self.device)
        )
        self._workspace: PinnedWorkspace | None = None

    def new_pool(self) -> CudaPool:
        """A pool whose graphs are recorded on this backend's stream."""
        return CudaPool(self.device, self.stream)

    def pin_workspace(self) -> tuple[Region, ...]:
        """Where the workspace of cuBLAS lies for this backend's stream, from now on for good."""
        if self._workspace is None:
            self._workspace = PinnedWorkspace(self.device, self.stream)
        return self._workspace.regions

    @contextmanager
    def session(self) -> Iterator[None]:
        """The capture stream as the current one; caches are flushed once, at the end."""
        torch.cuda.synchronize(self.device)
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            yield
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()

    def begin_warm_up(self) -> None:
        """From here on the peak is that of the warm-up forward."""
        torch.cuda.reset_peak_memory_stats(self.device)

    def begin_entry(self, pool: GraphPool, allowed_bytes: int | None) -> None:
        """Compares what the warm-up forward took at its peak with what is allowed.

        The graph's own memory comes from a pool that is full of larger entries' as a rule, so that
        this bound is on the safe side.
        """
        if allowed_bytes is None:
            return
        peak = torch.cuda.max_memory_allocated(self.device) - torch.cuda.memory_allocated(self.device)
        needed = max(peak - pool.num_bytes, 0)
        if needed > allowed_bytes:
            raise MemoryBudgetError(f"needs up to {needed} bytes more, the budget leaves {allowed_bytes}")

    def recorder(self, pool: GraphPool) -> CudaRecorder:
        """A recorder into ``pool``."""
        if not isinstance(pool, CudaPool) or pool.device != self.device:
            raise CaptureError("the pool belongs to another device; share pools among managers of one device")
        return CudaRecorder(pool, self._worker)

    def used_bytes(self, pool: GraphPool) -> int:
        """The pool, and what the driver holds beyond PyTorch's allocator, graphs among it."""
        free, total = torch.cuda.mem_get_info(self.device)
        return pool.num_bytes + total - free - torch.cuda.memory_reserved(self.device)

    def detached(self, tree: Any, pool: GraphPool) -> Any:
        """Tensors of the pool as addresses: a graph keeps its pool, but not what lies where in it."""
        holds = pool.holds() if isinstance(pool, CudaPool) else lambda _: False
        return map_tensors(lambda tensor: _address_of(tensor) if holds(tensor) else tensor, tree)

    def memory_of(self, pool: GraphPool) -> tuple[torch.Tensor, ...]:
        """The segments of ``pool``."""
        own = segments(pool.handle, "pool") if isinstance(pool, CudaPool) else ()
        return tuple(
            tensor_at(each.start, each.num_bytes, torch.uint8, self.device, (each.num_bytes,), (1,))
            for each in own
        )

    def synchronize(self) -> None:
        """Waits for all streams of the device."""
        torch.cuda.synchronize(self.device)


def _address_of(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` without its hold on the memory that it lies in."""
    extent = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    num_bytes = extent * tensor.itemsize if tensor.numel() else 0
    return tensor_at(tensor.data_ptr(), num_bytes, tensor.dtype, tensor.device, tensor.shape, tensor.stride())
