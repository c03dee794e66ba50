"""Reading and building graphs in Python alone, where there is no compiler; twenty times slower than C.

The layout of the words is that of ``words``; ``native.c`` does the same.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any

import torch

from executor.errors import CaptureError
from executor.materialize.driver import MAX_FUNCTIONS
from executor.materialize.relocation import Relocation
from executor.materialize.words import (
    ATTRIBUTE_WORDS,
    EDGE_WORDS,
    EMPTY,
    KERNEL,
    KERNEL_HEAD,
    MEMCPY,
    MEMCPY_WORDS,
    MEMSET,
    MEMSET_WORDS,
    NODE_HEAD,
    NodeWords,
    nodes_of,
)

ATTRIBUTES = range(1, 15)
_END, _BUFFER, _BUFFER_SIZE = 0, 1, 2
_LOW = 0xFFFFFFFF
_SIGN = 1 << 63


class KernelParams(ctypes.Structure):
    """``CUDA_KERNEL_NODE_PARAMS_v2``."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("params", ctypes.POINTER(ctypes.c_void_p)),
        ("extra", ctypes.POINTER(ctypes.c_void_p)),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


class PlainCode:
    """Reads and builds graphs through ctypes."""

    def __init__(self, driver: ctypes.CDLL) -> None:
        self._driver = driver
        self._seconds = [0.0, 0.0]

    @property
    def seconds(self) -> tuple[float, float]:
        """What building took so far, and instantiating."""
        return self._seconds[0], self._seconds[1]

    def read(self, graph: int, functions: list[int]) -> torch.Tensor:
        """The words of a graph; functions that are new are added.

        Raises:
            CaptureError: the driver refuses, or there are too many functions.
        """
        handle, count = ctypes.c_void_p(graph), ctypes.c_size_t()
        self._call("cuGraphGetNodes", handle, None, ctypes.byref(count))
        nodes = (ctypes.c_void_p * max(count.value, 1))()
        if count.value:
            self._call("cuGraphGetNodes", handle, nodes, ctypes.byref(count))
        edges = self._edges(handle, {node: number for number, node in enumerate(nodes[: count.value])})
        words = [count.value, len(edges) // EDGE_WORDS]
        for node in nodes[: count.value]:
            words += self._node(ctypes.c_void_p(node), functions)
        return torch.tensor([_signed(word) for word in (*words, *edges)], dtype=torch.int64)

    def _node(self, node: ctypes.c_void_p, functions: list[int]) -> list[int]:
        kind = ctypes.c_int()
        self._call("cuGraphNodeGetType", node, ctypes.byref(kind))
        body: list[int] = []
        if kind.value == KERNEL:
            body = self._kernel(node, functions)
        elif kind.value in (MEMCPY, MEMSET):
            name, size = (
                ("cuGraphMemcpyNodeGetParams", MEMCPY_WORDS)
                if kind.value == MEMCPY
                else ("cuGraphMemsetNodeGetParams", MEMSET_WORDS)
            )
            raw = (ctypes.c_uint64 * size)()
            self._call(name, node, raw)
            body = list(raw)
        return [_pair(kind.value, NODE_HEAD + len(body)), *body]

    def _kernel(self, node: ctypes.c_void_p, functions: list[int]) -> list[int]:
        params = KernelParams()
        self._call("cuGraphKernelNodeGetParams_v2", node, ctypes.byref(params))
        if not params.function:
            function = ctypes.c_void_p()
            self._call("cuKernelGetFunction", ctypes.byref(function), ctypes.c_void_p(params.kernel))
            params.function = function.value
        packed = _packed(params)
        raw = packed if packed is not None else self._unpacked(params)
        if params.function not in functions:
            if len(functions) >= MAX_FUNCTIONS:
                raise CaptureError("reading a graph: more kernels than can be kept")
            functions.append(params.function)
        attributes = self._attributes(node)
        return [
            functions.index(params.function),
            _pair(params.grid[0], params.grid[1]),
            _pair(params.grid[2], params.block[0]),
            _pair(params.block[1], params.block[2]),
            _pair(params.shared, len(attributes) // ATTRIBUTE_WORDS),
            _pair(len(raw), packed is not None),
            *_words(raw),
            *attributes,
        ]

    def _unpacked(self, params: KernelParams) -> bytes:
        """Parameters that the node keeps one by one, as they lie one behind the other."""
        raw, offset, size, number = bytearray(), ctypes.c_size_t(), ctypes.c_size_t(), 0
        function = ctypes.c_void_p(params.function)
        while params.params and not self._driver.cuFuncGetParamInfo(
            function, ctypes.c_size_t(number), ctypes.byref(offset), ctypes.byref(size)
        ):
            raw += bytes(offset.value - len(raw))
            raw += ctypes.string_at(params.params[number], size.value)
            number += 1
        return bytes(raw)

    def _attributes(self, node: ctypes.c_void_p) -> list[int]:
        found: list[int] = []
        for number in ATTRIBUTES:
            value = (ctypes.c_uint64 * (ATTRIBUTE_WORDS - 1))()
            if not self._driver.cuGraphKernelNodeGetAttribute(node, number, value) and any(value):
                found += [number, *value]
        return found

    def _edges(self, graph: ctypes.c_void_p, numbers: dict[int | None, int]) -> list[int]:
        count = ctypes.c_size_t()
        self._call("cuGraphGetEdges_v2", graph, None, None, None, ctypes.byref(count))
        if not count.value:
            return []
        ends = [(ctypes.c_void_p * count.value)() for _ in range(2)]
        data = (ctypes.c_uint64 * count.value)()
        self._call("cuGraphGetEdges_v2", graph, *ends, data, ctypes.byref(count))
        rows = zip(*ends, data, strict=True)
        return [
            word for source, target, more in rows for word in (_pair(numbers[source], numbers[target]), more)
        ]

    def mark_stack(self) -> None:
        """Nothing: Python does not choose what lies on the stack."""

    def placed(self, graph: Relocation, starts: torch.Tensor) -> torch.Tensor:
        """The words of ``graph`` for regions that begin at ``starts``, int64.

        Raises:
            CaptureError: it has addresses beyond its words or regions.
        """
        try:
            return graph.at(starts)
        except IndexError:
            raise CaptureError("building a graph: its addresses are damaged") from None

    def build(self, words: torch.Tensor, functions: Sequence[int]) -> int:
        """An executable graph of ``words``.

        Raises:
            CaptureError: the words are damaged, or the driver refuses.
        """
        began = time.perf_counter()
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        nodes = _checked(words)
        values = [word & (2 * _SIGN - 1) for word in words.tolist()]
        self._call("cuGraphCreate", ctypes.byref(graph), 0)
        try:
            handles = [self._add(graph, values, node, functions) for node in nodes]
            self._add_edges(graph, values[len(values) - EDGE_WORDS * values[1] :], handles)
            is_built = time.perf_counter()
            self._call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        finally:
            self._driver.cuGraphDestroy(graph)
        self._seconds[0] += is_built - began
        self._seconds[1] += time.perf_counter() - is_built
        return executable.value or 0

    def _add(
        self, graph: ctypes.c_void_p, values: list[int], node: NodeWords, functions: Sequence[int]
    ) -> int | None:
        handle, context = ctypes.c_void_p(), ctypes.c_void_p()
        own = values[node.start + NODE_HEAD : node.start + node.length]
        raw = (ctypes.c_uint64 * max(len(own), 1))(*own)
        place = (ctypes.byref(handle), graph, None, ctypes.c_size_t(0))
        if node.kind == KERNEL:
            self._add_kernel(place, own, node, functions)
        elif node.kind == EMPTY:
            self._call("cuGraphAddEmptyNode", *place)
        else:
            name = "cuGraphAddMemcpyNode" if node.kind == MEMCPY else "cuGraphAddMemsetNode"
            self._call("cuCtxGetCurrent", ctypes.byref(context))
            self._call(name, *place, raw, context)
        if node.kind == KERNEL:
            for number, (start, end) in zip(node.attributes, node.payload[1:], strict=True):
                value = (ctypes.c_uint64 * (end - start))(*values[start:end])
                self._call("cuGraphKernelNodeSetAttribute", handle, number, value)
        return handle.value

    def _add_kernel(self, place: Any, own: list[int], node: NodeWords, functions: Sequence[int]) -> None:
        if node.function is None or not 0 <= node.function < len(functions) or not functions[node.function]:
            raise CaptureError("building a graph: a kernel that is not in the file")
        first, last = node.payload[0]
        raw = (ctypes.c_uint64 * max(last - first, 1))(*own[KERNEL_HEAD - NODE_HEAD :][: last - first])
        size = ctypes.c_size_t(own[5] & _LOW)
        extra = (ctypes.c_void_p * 5)(
            _BUFFER, ctypes.addressof(raw), _BUFFER_SIZE, ctypes.addressof(size), _END
        )
        params = KernelParams(
            function=functions[node.function],
            grid=(own[1] & _LOW, own[1] >> 32, own[2] & _LOW),
            block=(own[2] >> 32, own[3] & _LOW, own[3] >> 32),
            shared=own[4] & _LOW,
        )
        if size.value:
            params.extra = ctypes.cast(extra, ctypes.POINTER(ctypes.c_void_p))
        self._call("cuGraphAddKernelNode_v2", *place, ctypes.byref(params))

    def _add_edges(self, graph: ctypes.c_void_p, edges: list[int], nodes: list[int | None]) -> None:
        """Full edges, whatever their data allow: ``native.c`` says why."""
        count = len(edges) // EDGE_WORDS
        if not count:
            return
        pairs = [(word & _LOW, word >> 32) for word in edges[::EDGE_WORDS]]
        if any(number >= len(nodes) for pair in pairs for number in pair):
            raise CaptureError("building a graph: the graph's words are damaged: an edge to no node")
        ends = [(ctypes.c_void_p * count)(*(nodes[pair[side]] for pair in pairs)) for side in (0, 1)]
        self._call("cuGraphAddDependencies_v2", graph, *ends, None, ctypes.c_size_t(count))

    def _call(self, name: str, *arguments: Any) -> None:
        error = getattr(self._driver, name)(*arguments)
        if error:
            raise CaptureError(f"the CUDA driver answers {error} to {name}")


def _checked(words: torch.Tensor) -> list[NodeWords]:
    """The nodes of words that a graph can be built from."""
    try:
        nodes = list(nodes_of(words))
    except ValueError as error:
        raise CaptureError(f"building a graph: the graph's words are damaged: {error}") from None
    for node in nodes:
        if node.kind not in (KERNEL, MEMCPY, MEMSET, EMPTY) or any(
            number not in ATTRIBUTES for number in node.attributes
        ):
            raise CaptureError("building a graph: the graph's words are damaged: a node of an unknown kind")
    return nodes


def _packed(params: KernelParams) -> bytes | None:
    """The buffer of parameters that were packed."""
    if not params.extra:
        return None
    fields, index = {}, 0
    while key := params.extra[index]:
        fields[key] = params.extra[index + 1]
        index += 2
    if not fields.get(_BUFFER):
        return None
    size = ctypes.cast(fields[_BUFFER_SIZE], ctypes.POINTER(ctypes.c_size_t))[0]
    return ctypes.string_at(fields[_BUFFER], size)


def _words(raw: bytes) -> list[int]:
    padded = raw + bytes(-len(raw) % 8)
    return [int.from_bytes(padded[at : at + 8], "little") for at in range(0, len(padded), 8)]


def _pair(low: int, high: int) -> int:
    return low & _LOW | high << 32


def _signed(word: int) -> int:
    return word - 2 * _SIGN if word >= _SIGN else word
