"""What rebuilding graphs needs of the CUDA driver, and the real driver behind it."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from attrs import frozen

from executor.backends.cuda_driver import library
from executor.errors import CaptureError, ReplayError
from executor.materialize.regions import Region
from executor.materialize.relocation import Relocation

MAX_FUNCTIONS = 1 << 16
"""Most kernels that the graphs of one file use; a kernel compiled once a layer counts once a layer."""

MAX_DYNAMIC_SHARED = 8
"""``CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES``."""

IDENTIFYING = (0, 1, 2, 3, 4, 5, 6)
"""Attributes of a function that its code decides: threads, shared, constant and local bytes, registers and
the versions of its instructions."""

_RANGE_START, _RANGE_SIZE = 11, 12
"""``CU_POINTER_ATTRIBUTE_RANGE_START_ADDR`` and ``_RANGE_SIZE``."""


@frozen
class KernelIdentity:
    """What two kernels have in common that may stand for each other.

    ``params`` are offset and size of each parameter, ``attributes`` the values of ``IDENTIFYING``.
    """

    name: str
    params: tuple[tuple[int, int], ...]
    attributes: tuple[int, ...]


class GraphDriver(ABC):
    """Graphs and kernels by their handles. ``functions`` are those that were read so far, by number."""

    @property
    @abstractmethod
    def functions(self) -> Sequence[int]:
        """Handles of the functions of all graphs that were read."""

    @abstractmethod
    def read(self, graph: int) -> torch.Tensor:
        """The words of a graph, int64.

        Raises:
            CaptureError: the driver refuses.
        """

    @abstractmethod
    def mark_stack(self) -> None:
        """Leaves one number all over the free part of this thread's stack, where that can be done."""

    @abstractmethod
    def placed(self, graph: Relocation, starts: torch.Tensor) -> torch.Tensor:
        """The words of ``graph`` for regions that begin at ``starts``, int64.

        Raises:
            CaptureError: it has addresses beyond its words or regions.
        """

    @abstractmethod
    def build(self, words: torch.Tensor, functions: Sequence[int]) -> int:
        """An executable graph of ``words`` with these functions.

        Raises:
            CaptureError: the words are damaged, or the driver refuses.
        """

    @property
    @abstractmethod
    def seconds(self) -> tuple[float, float]:
        """What building took so far, and instantiating."""

    @abstractmethod
    def launch(self, executable: int, stream: int) -> None:
        """Launches a graph on a stream.

        Raises:
            ReplayError: the driver refuses.
        """

    @abstractmethod
    def destroy(self, executable: int) -> None:
        """Gives an executable graph back."""

    @abstractmethod
    def identity(self, function: int) -> KernelIdentity:
        """Name, parameters and attributes of a kernel."""

    @abstractmethod
    def dynamic_shared(self, function: int) -> int:
        """Bytes of dynamic shared memory that a kernel may be launched with."""

    @abstractmethod
    def allow_shared(self, function: int, num_bytes: int) -> None:
        """Lets a kernel be launched with that much dynamic shared memory."""

    @abstractmethod
    def num_captured(self, stream: int) -> int:
        """Nodes of the graph that ``stream`` is recording."""

    @abstractmethod
    def owner_of(self, address: int) -> Region | None:
        """The allocation that an address lies in, of any allocator; None where it is no address."""


class GraphCode(Protocol):
    """What turns graphs into words and back: compiled C, or Python."""

    @property
    def seconds(self) -> tuple[float, float]:
        """What building took so far, and instantiating."""

    def read(self, graph: int, functions: list[int]) -> torch.Tensor:
        """The words of a graph; functions that are new are added."""

    def mark_stack(self) -> None:
        """Leaves one number all over the free part of this thread's stack."""

    def placed(self, graph: Relocation, starts: torch.Tensor) -> torch.Tensor:
        """The words of a graph for regions that begin at ``starts``."""

    def build(self, words: torch.Tensor, functions: Sequence[int]) -> int:
        """An executable graph."""


class CudaDriver(GraphDriver):
    """The driver behind ``driver``, by default this machine's; ``code`` reads and builds."""

    def __init__(self, code: GraphCode, driver: ctypes.CDLL | None = None) -> None:
        self._code = code
        self._library = driver or library()
        self._functions: list[int] = []
        self._launch = self._library.cuGraphLaunch
        self._launch.argtypes = (ctypes.c_void_p, ctypes.c_void_p)

    @property
    def functions(self) -> Sequence[int]:
        """Handles of the functions of all graphs that were read."""
        return self._functions

    def read(self, graph: int) -> torch.Tensor:
        """The words of a graph."""
        return self._code.read(graph, self._functions)

    def mark_stack(self) -> None:
        """Leaves one number all over the free part of this thread's stack."""
        self._code.mark_stack()

    def placed(self, graph: Relocation, starts: torch.Tensor) -> torch.Tensor:
        """The words of ``graph`` for regions that begin at ``starts``."""
        return self._code.placed(graph, starts)

    def build(self, words: torch.Tensor, functions: Sequence[int]) -> int:
        """An executable graph of ``words``."""
        return self._code.build(words, functions)

    @property
    def seconds(self) -> tuple[float, float]:
        """What building took so far, and instantiating."""
        return self._code.seconds

    def launch(self, executable: int, stream: int) -> None:
        """Launches a graph on a stream."""
        error = self._launch(executable, stream)
        if error:
            raise ReplayError(f"the CUDA driver answers {error} to the launch of a restored graph")

    def destroy(self, executable: int) -> None:
        """Gives an executable graph back."""
        self._library.cuGraphExecDestroy(ctypes.c_void_p(executable))

    def identity(self, function: int) -> KernelIdentity:
        """Name, parameters and attributes of a kernel."""
        name = ctypes.c_char_p()
        self._call("cuFuncGetName", ctypes.byref(name), ctypes.c_void_p(function))
        values = tuple(self._attribute(function, number) for number in IDENTIFYING)
        return KernelIdentity((name.value or b"?").decode(errors="replace"), self._params(function), values)

    def dynamic_shared(self, function: int) -> int:
        """Bytes of dynamic shared memory that a kernel may be launched with."""
        return self._attribute(function, MAX_DYNAMIC_SHARED)

    def allow_shared(self, function: int, num_bytes: int) -> None:
        """Lets a kernel be launched with that much dynamic shared memory."""
        self._call("cuFuncSetAttribute", ctypes.c_void_p(function), MAX_DYNAMIC_SHARED, num_bytes)

    def num_captured(self, stream: int) -> int:
        """Nodes of the graph that ``stream`` is recording."""
        status, graph, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_size_t()
        self._call(
            "cuStreamGetCaptureInfo_v2",
            ctypes.c_void_p(stream),
            ctypes.byref(status),
            None,
            ctypes.byref(graph),
            None,
            None,
        )
        if not graph.value:
            return 0
        self._call("cuGraphGetNodes", graph, None, ctypes.byref(count))
        return count.value

    def owner_of(self, address: int) -> Region | None:
        """The allocation that an address lies in."""
        start, size = ctypes.c_void_p(), ctypes.c_size_t()
        for attribute, into in ((_RANGE_START, start), (_RANGE_SIZE, size)):
            pointer = ctypes.c_uint64(address)
            if self._library.cuPointerGetAttribute(ctypes.byref(into), attribute, pointer):
                return None
        return Region("", start.value or 0, size.value) if size.value else None

    def _params(self, function: int) -> tuple[tuple[int, int], ...]:
        found: list[tuple[int, int]] = []
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        while not self._library.cuFuncGetParamInfo(
            ctypes.c_void_p(function),
            ctypes.c_size_t(len(found)),
            ctypes.byref(offset),
            ctypes.byref(size),
        ):
            found.append((offset.value, size.value))
        return tuple(found)

    def _attribute(self, function: int, number: int) -> int:
        value = ctypes.c_int()
        self._call("cuFuncGetAttribute", ctypes.byref(value), number, ctypes.c_void_p(function))
        return value.value

    def _call(self, name: str, *arguments: Any) -> None:
        error = getattr(self._library, name)(*arguments)
        if error:
            raise CaptureError(f"the CUDA driver answers {error} to {name}")
