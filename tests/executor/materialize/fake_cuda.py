"""The fake CUDA driver of ``fake_cuda.c`` as tests use it: functions, graphs of drawn nodes, failures."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from executor.materialize.native import COMPILERS
from executor.materialize.plain import KernelParams
from executor.materialize.words import EMPTY, KERNEL, MEMCPY, MEMSET

HERE = Path(__file__).parent
SOURCE = HERE / "fake_cuda.c"

Launch = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


@frozen
class Node:
    """A node as tests describe it; ``words`` are the attributes, or the body of a memcpy or memset."""

    kind: int
    words: Sequence[int] | Mapping[int, Sequence[int]] = ()
    function: int = 0
    numbers: tuple[int, ...] = (1,) * 7
    params: bytes = b""
    packed: bool = False
    by_kernel: bool = False


@frozen
class Drawing:
    """A graph as tests describe it; an edge is source, target and data."""

    nodes: Sequence[Node]
    edges: Sequence[tuple[int, int, int]] = ()


def compiler() -> str:
    """A C compiler; tests that need one are skipped without."""
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    if found is None:
        pytest.skip(f"no C compiler ({', '.join(COMPILERS)})")
    return found


def compiled(target: Path, *arguments: str) -> Path:
    """A shared library of the fake's source."""
    command = [compiler(), "-O1", "-shared", "-fPIC", "-o", str(target), *arguments, str(SOURCE)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return target


class FakeCuda:
    """The fake as a library of ctypes, with what makes graphs for it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = ctypes.CDLL(str(path))
        for name in ("fake_function", "fake_kernel", "fake_other_node"):
            getattr(self.library, name).restype = ctypes.c_void_p
        for name in ("fake_live_graphs", "fake_live_executables"):
            getattr(self.library, name).restype = ctypes.c_long

    def __getattr__(self, name: str) -> Any:
        return getattr(self.library, name)

    def function(self, name: str, params: Sequence[tuple[int, int]] = (), **attributes: int) -> int:
        """A handle of a new function; ``attributes`` are ``a0``, ``a1``, …"""
        columns = [(ctypes.c_size_t * len(params))(*column) for column in zip(*params, strict=True)]
        columns = columns or [(ctypes.c_size_t * 0)()] * 2
        handle: int = self.fake_function(name.encode(), ctypes.c_size_t(len(params)), *columns)
        for attribute, value in attributes.items():
            self.fake_set_function(ctypes.c_void_p(handle), int(attribute[1:]), value)
        return handle

    def called(self, name: str, *arguments: Any) -> None:
        """Calls the driver, which must not fail."""
        error = getattr(self.library, name)(*arguments)
        assert not error, f"{name}: {error}"

    def new_graph(self) -> int:
        """An empty graph."""
        graph = ctypes.c_void_p()
        self.called("cuGraphCreate", ctypes.byref(graph), 0)
        return graph.value or 0

    def destroy(self, graph: int) -> None:
        """Gives a graph back."""
        self.called("cuGraphDestroy", ctypes.c_void_p(graph))

    def instantiated(self, graph: int) -> int:
        """An executable graph."""
        made = ctypes.c_void_p()
        self.called(
            "cuGraphInstantiateWithFlags", ctypes.byref(made), ctypes.c_void_p(graph), ctypes.c_ulonglong(0)
        )
        return made.value or 0

    @property
    def alive(self) -> tuple[int, int]:
        """Graphs and executable graphs that were not given back."""
        return self.fake_live_graphs(), self.fake_live_executables()

    @contextmanager
    def drawn(self, drawing: Drawing, functions: Sequence[int]) -> Iterator[int]:
        """The graph of a drawing."""
        graph = self.new_graph()
        nodes = [self.add(graph, node, functions) for node in drawing.nodes]
        for source, target, data in drawing.edges:
            self.add_edge(graph, nodes[source], nodes[target], data)
        try:
            yield graph
        finally:
            self.destroy(graph)

    def add_edge(self, graph: int, source: int, target: int, data: int = 0) -> None:
        """Adds an edge."""
        ends = [(ctypes.c_void_p * 1)(node) for node in (source, target)]
        more = (ctypes.c_uint64 * 1)(data)
        self.called("cuGraphAddDependencies_v2", ctypes.c_void_p(graph), *ends, more, ctypes.c_size_t(1))

    def add(self, graph: int, node: Node, functions: Sequence[int]) -> int:
        """Adds a node."""
        handle, context = ctypes.c_void_p(), ctypes.c_void_p(1)
        place = (ctypes.byref(handle), ctypes.c_void_p(graph), None, ctypes.c_size_t(0))
        if node.kind == KERNEL:
            self._add_kernel(place, node, functions)
            for number, value in dict(node.words).items():  # type: ignore[call-overload]
                raw = (ctypes.c_uint64 * 8)(*value)
                self.called("cuGraphKernelNodeSetAttribute", handle, number, raw)
        elif node.kind == EMPTY:
            self.called("cuGraphAddEmptyNode", *place)
        elif node.kind in (MEMCPY, MEMSET):
            name = "cuGraphAddMemcpyNode" if node.kind == MEMCPY else "cuGraphAddMemsetNode"
            self.called(name, *place, (ctypes.c_uint64 * len(node.words))(*node.words), context)
        else:
            handle.value = self.fake_other_node(ctypes.c_void_p(graph), node.kind)
        return handle.value or 0

    def _add_kernel(self, place: Any, node: Node, functions: Sequence[int]) -> None:
        function = functions[node.function]
        params = KernelParams(grid=node.numbers[:3], block=node.numbers[3:6], shared=node.numbers[6])
        if node.by_kernel:
            params.kernel = self.fake_kernel(ctypes.c_void_p(function))
        else:
            params.function = function
        raw = ctypes.create_string_buffer(node.params, len(node.params) + 1)
        size = ctypes.c_size_t(len(node.params))
        layout = self.layout(function)
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(raw), 2, ctypes.addressof(size), 0)
        single = (ctypes.c_void_p * (len(layout) + 1))(*(ctypes.addressof(raw) + at for at, _ in layout))
        pointers = ctypes.POINTER(ctypes.c_void_p)
        if node.packed:
            params.extra = ctypes.cast(extra, pointers)
        elif layout:
            params.params = ctypes.cast(single, pointers)
        self.called("cuGraphAddKernelNode_v2", *place, ctypes.byref(params))

    def layout(self, function: int) -> list[tuple[int, int]]:
        """Offset and size of each parameter."""
        found: list[tuple[int, int]] = []
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        place = ctypes.byref(offset), ctypes.byref(size)
        while not self.cuFuncGetParamInfo(ctypes.c_void_p(function), ctypes.c_size_t(len(found)), *place):
            found.append((offset.value, size.value))
        return found

    def fail(self, name: str, before: int = 0, error: int = 2) -> None:
        """Makes one call of the driver fail."""
        self.fake_fail(name.encode(), before, error)

    def on_launch(self, call: Any) -> Any:
        """Sets what kernels do; the returned value has to be kept as long as it may be called."""
        kept = Launch(call)
        self.fake_on_launch(kept)
        return kept
