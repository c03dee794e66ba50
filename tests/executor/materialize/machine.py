"""A machine for tests: a CPU that records ATen calls as kernels of the fake CUDA driver and really runs them.

As on a GPU, nothing is computed while a graph is recorded, kernels take addresses, shapes and numbers as
parameters, handles of kernels are this machine's own, and replays see memory only through addresses.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from attrs import define, field
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from executor.backends.base import GraphPool, Recorder, Recording
from executor.backends.cuda_memory import tensor_at
from executor.backends.tape import _UNWRITTEN, TapeBackend, TapePool
from executor.materialize.device import GraphDevice
from executor.materialize.driver import CudaDriver, GraphCode
from executor.materialize.regions import Region
from executor.materialize.words import KERNEL, MEMCPY, MEMSET
from executor.trees import map_tensors, tensors_of
from tests.executor.materialize.fake_cuda import FakeCuda, Node

CPU = torch.device("cpu")
STREAM = 0x5000
MOST_SHARED = 128 << 10
CLUSTER = {4: (2, 1, 1, 0, 0, 0, 0, 0)}
aten = torch.ops.aten


@define
class Params:
    """Parameters of a kernel: each tensor as its address, shape and strides, each number by itself."""

    words: list[int] = field(factory=list)
    layout: list[tuple[int, int]] = field(factory=list)

    def add(self, value: Any) -> Any:
        """What kind of value it is, which is part of the kernel; what differs is a parameter."""
        if isinstance(value, torch.Tensor):
            self._put(value.data_ptr(), *value.shape, *value.stride())
            return ("tensor", value.dtype, value.dim())
        if isinstance(value, list | tuple):
            return ("list", *(self.add(each) for each in value))
        if isinstance(value, int) and not isinstance(value, bool):
            self._put(value)
            return ("int",)
        if isinstance(value, float):
            self._put(struct.unpack("<q", struct.pack("<d", value))[0])
            return ("float",)
        return ("constant", value)

    def _put(self, *words: int) -> None:
        self.layout.append((8 * len(self.words), 8 * len(words)))
        self.words += words

    @property
    def raw(self) -> bytes:
        """The bytes that a launch is given."""
        return struct.pack(f"<{len(self.words)}q", *self.words)


def read_back(kind: Any, words: list[int]) -> Any:
    """What ``Params.add`` made of a value, from the words that are left."""
    name, *more = kind
    if name == "tensor":
        dtype, dim = more
        address, shape, strides = words[0], words[1 : 1 + dim], words[1 + dim : 1 + 2 * dim]
        del words[: 1 + 2 * dim]
        extent = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
        return tensor_at(address, extent * dtype.itemsize, dtype, CPU, shape, strides)
    if name == "list":
        return [read_back(each, words) for each in more]
    if name == "constant":
        return more[0]
    word = words.pop(0)
    return word if name == "int" else struct.unpack("<d", struct.pack("<q", word))[0]


class Machine:
    """One process on a machine: its kernels, its backend, and its device.

    ``registers`` changes the code of a kernel by its name, ``grids`` how it is launched, ``lost`` are
    kernels that cannot be launched at all. ``held`` is further memory of the allocator.
    """

    programs: ClassVar[dict[int, Callable[[bytes], None]]] = {}
    errors: ClassVar[list[Exception]] = []

    def __init__(self, fake: FakeCuda, code: GraphCode) -> None:
        self.fake = fake
        self.driver = CudaDriver(code, fake.library)
        self.backend = FakeBackend(self)
        self.device = FakeDevice(self)
        self.workspace = torch.zeros(64, dtype=torch.uint8)
        self.kernels: dict[str, int] = {}
        self.registers: dict[str, int] = {}
        self.grids: dict[str, int] = {}
        self.lost: set[str] = set()
        self.held: list[torch.Tensor] = []
        self.recorder: FakeRecorder | None = None

    @classmethod
    def run_kernel(cls, function: int, params: int, size: int) -> None:
        """What the fake driver calls for each kernel of a launch."""
        try:
            cls.programs[function](ctypes.string_at(params, size))
        except Exception as error:  # noqa: BLE001 - nothing can be raised through the fake
            cls.errors.append(error)

    def kernel(self, name: str, key: str, params: Params, program: Callable[[list[int]], None]) -> int:
        """The handle of a kernel of this machine, made at its first launch."""
        if key not in self.kernels:
            registers = self.registers.get(name, 32)
            handle = self.fake.function(name, params.layout, a0=1024, a4=registers, a5=90)
            self.kernels[key] = handle
            self.programs[handle] = lambda raw: program(list(struct.unpack(f"<{len(raw) // 8}q", raw)))
        return self.kernels[key]

    def launch(self, name: str, *tensors: torch.Tensor) -> None:
        """Launches a kernel that no ATen call launches: the last tensor becomes twice the first."""
        params = Params()
        kinds = [params.add(each) for each in tensors]

        def program(words: list[int]) -> None:
            first, *_, last = (read_back(kind, words) for kind in kinds)
            last.copy_(first * 2)

        handle = self.kernel(name, f"{name}{kinds}", params, program)
        if self.recorder is None:
            with _disable_current_modes():
                self.programs[handle](params.raw)
        else:
            self.recorder.add_kernel(name, handle, params)


class FakePool(TapePool):
    """The tape's arena; ``recordings`` are those that live in it."""

    recordings = 0

    def joined(self) -> None:
        """Counts one."""
        self.recordings += 1

    def left(self) -> None:
        """Uncounts one."""
        self.recordings -= 1


class FakeBackend(TapeBackend):
    """Records into graphs of the fake driver."""

    name = "fake"

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def new_pool(self) -> FakePool:
        """An empty arena."""
        return FakePool()

    def recorder(self, pool: GraphPool) -> FakeRecorder:  # type: ignore[override]
        """A recorder whose results lie in ``pool``."""
        assert isinstance(pool, FakePool)
        return FakeRecorder(self.machine, pool)

    def memory_of(self, pool: GraphPool) -> tuple[torch.Tensor, ...]:
        """The arena's chunks."""
        assert isinstance(pool, FakePool)
        return tuple(pool._chunks)


@define(eq=False)
class FakeRecording(Recording):
    """A graph of the fake driver, and the executable one of it."""

    graph: int | None
    executable: int
    pool: FakePool
    machine: Machine

    @property
    def num_nodes(self) -> int | None:
        """Not known."""
        return None

    def replay(self) -> None:
        """Launches it."""
        self.machine.driver.launch(self.executable, STREAM)

    def launcher(self) -> Callable[[], None]:
        """The same."""
        return self.replay

    def digests(self) -> None:
        """Not known."""

    def release(self) -> None:
        """Gives both graphs back."""
        if self.graph is not None:
            self.machine.fake.destroy(self.graph)
            self.machine.driver.destroy(self.executable)
            self.graph = None
            self.pool.left()


class FakeRecorder(Recorder):
    """Adds a node for each call that computes, in one chain."""

    def __init__(self, machine: Machine, pool: FakePool) -> None:
        self.machine = machine
        self.pool = pool
        self.mode = _Mode(self)
        self.graph = 0
        self.last: int | None = None

    def begin(self) -> None:
        """Begins a graph on the one stream."""
        self.graph = self.machine.fake.new_graph()
        self._capture(self.graph)
        self.machine.recorder = self
        self.mode.__enter__()

    def end(self) -> FakeRecording:
        """The graph."""
        self._stop()
        self.pool.joined()
        executable = self.machine.fake.instantiated(self.graph)
        graph, self.graph = self.graph, 0
        return FakeRecording(graph, executable, self.pool, self.machine)

    def abort(self) -> None:
        """Drops the graph."""
        if self.graph:
            self._stop()
            self.machine.fake.destroy(self.graph)
            self.graph = 0

    def _stop(self) -> None:
        self.mode.__exit__(None, None, None)
        self.machine.recorder = None
        self._capture(None)

    def _capture(self, graph: int | None) -> None:
        self.machine.fake.fake_capture(ctypes.c_void_p(STREAM), ctypes.c_void_p(graph))

    def add(self, node: Node, handles: Sequence[int] = ()) -> None:
        """Adds a node behind the last."""
        made = self.machine.fake.add(self.graph, node, handles)
        if self.last is not None:
            self.machine.fake.add_edge(self.graph, self.last, made)
        self.last = made

    def add_kernel(self, name: str, handle: int, params: Params, shared: int = 0) -> None:
        """Adds a kernel; products take their parameters packed, and clusters."""
        machine = self.machine
        if name in machine.lost:
            raise RuntimeError(f"{name} is lost")
        if shared > machine.driver.dynamic_shared(handle):
            machine.driver.allow_shared(handle, shared)
        is_product = ".mm." in name
        grid = machine.grids.get(name, 1)
        node = Node(
            KERNEL, CLUSTER if is_product else {}, 0, (grid, *(1,) * 5, shared), params.raw, is_product
        )
        self.add(node, [handle])

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Records an ATen call, and returns what it returns, without contents."""
        if func.is_view or func.overloadpacket is aten.set_:
            return func(*args, **kwargs)
        real: dict[int, torch.Tensor] = {}

        def shape_only(tensor: torch.Tensor) -> torch.Tensor:
            with _disable_current_modes():
                made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
            real[id(made)] = tensor
            return made

        shaped = map_tensors(shape_only, (tuple(args), dict(kwargs)))
        named = {name: "meta" if name == "device" else value for name, value in shaped[1].items()}
        output = func(*shaped[0], **named)
        results: list[torch.Tensor | None] = []

        def placed(tensor: torch.Tensor) -> torch.Tensor:
            known = real.get(id(tensor))
            made = known if known is not None else self._take(tensor)
            results.append(None if known is not None else made)
            return made

        returned = map_tensors(placed, output)
        if func not in _UNWRITTEN and any(each.numel() for each in tensors_of((args, kwargs, returned))):
            self._record(func, tuple(args), dict(kwargs), results)
        return returned

    def _take(self, like: torch.Tensor) -> torch.Tensor:
        with _disable_current_modes():
            return self.pool.take(like) if like.numel() else torch.empty(like.shape, dtype=like.dtype)

    def _record(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: list[torch.Tensor | None]
    ) -> None:
        if func is aten.copy_.default and _is_plain_copy(*args[:2]):
            self.add(Node(MEMCPY, _copy(args[1].data_ptr(), args[0].data_ptr(), args[0].nbytes)))
            return
        if func is aten.zero_.default and args[0].is_contiguous():
            self.add(Node(MEMSET, [args[0].data_ptr(), 0, 1 << 32, args[0].nbytes, 1]))
            return
        params = Params()
        kinds = [params.add(each) for each in (args, list(kwargs.values()), results)]
        workspace = self.machine.workspace if func is aten.mm.default else None
        kinds.append(params.add(workspace))
        names = list(kwargs)

        def program(words: list[int]) -> None:
            own, named, places, scratch = (read_back(kind, words) for kind in kinds)
            assert scratch is None or scratch.data_ptr() == self.machine.workspace.data_ptr()
            output = func(*own, **dict(zip(names, named, strict=True)))
            for place, found in zip(places, output if isinstance(output, tuple) else [output], strict=False):
                if place is not None:
                    place.copy_(found)

        handle = self.machine.kernel(str(func), f"{func}{names}{kinds}", params, program)
        shared = min(1024 * args[0].shape[0], MOST_SHARED) if workspace is not None else 0
        self.add_kernel(str(func), handle, params, shared)


def _is_plain_copy(to: torch.Tensor, source: torch.Tensor) -> bool:
    return (
        to.dtype == source.dtype
        and to.shape == source.shape
        and to.is_contiguous()
        and source.is_contiguous()
    )


def _copy(source: int, target: int, num_bytes: int) -> list[int]:
    body = [0] * 25
    body[4], body[6], body[15], body[17] = 2, source, 2, target
    body[22:] = num_bytes, 1, 1
    return body


class _Mode(TorchDispatchMode):
    def __init__(self, recorder: FakeRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.recorder.call(func, args, kwargs or {})


class FakeDevice(GraphDevice):
    """The machine's memory."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.backend = machine.backend
        self.driver = machine.driver

    @property
    def stream(self) -> int:
        """The only stream."""
        return STREAM

    def current_stream(self) -> Callable[[], int]:
        """The only stream."""
        return lambda: STREAM

    def workspaces(self) -> tuple[Region, ...]:
        """That of matrix products."""
        return (_region("workspace:0", self.machine.workspace),)

    def pool_regions(self, pool: GraphPool) -> tuple[Region, ...]:
        """Chunks of the arena."""
        assert isinstance(pool, FakePool)
        return tuple(_region(f"pool:{number}", chunk) for number, chunk in enumerate(pool._chunks))

    def held_regions(self) -> tuple[Region, ...]:
        """All that is known to be held."""
        return tuple(_region(f"allocator:{number}", each) for number, each in enumerate(self.machine.held))

    def claim(self, pool: GraphPool, sizes: Sequence[int]) -> tuple[Region, ...]:
        """New chunks ahead of the others."""
        assert isinstance(pool, FakePool)
        chunks = [torch.full((size,), 255, dtype=torch.uint8) for size in sizes]
        pool._chunks[:0] = chunks
        return tuple(_region(f"pool:{number}", chunk) for number, chunk in enumerate(chunks))

    def graph_of(self, recording: Recording) -> int | None:
        """The handle of a graph that was recorded here."""
        return recording.graph if isinstance(recording, FakeRecording) else None


def _region(name: str, tensor: torch.Tensor) -> Region:
    storage = tensor.untyped_storage()
    return Region(name, storage.data_ptr(), storage.nbytes())
