"""A CUDA graph as 64-bit words: what ``native.c`` writes and reads.

    graph      number of nodes, number of edges, then the nodes, then the edges
    node       kind and number of words of the node (low and high half), then its body
    kernel     function, grid x and y, grid z and block x, block y and z, dynamic shared memory and number
               of attributes, bytes of parameters and whether they were packed; the parameters; for each
               attribute its number and eight words
    memcpy     ``CUDA_MEMCPY3D``, 25 words
    memset     ``CUDA_MEMSET_NODE_PARAMS``, 5 words
    empty      nothing
    edge       source and target node, then the data of the edge as it was recorded; it is built without

A function is a number in a table that the graphs of one file share.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from attrs import frozen

KERNEL, MEMCPY, MEMSET, EMPTY = 0, 1, 2, 5

GRAPH_HEAD, NODE_HEAD, KERNEL_HEAD = 2, 1, 7
MEMCPY_WORDS, MEMSET_WORDS, ATTRIBUTE_WORDS, EDGE_WORDS = 25, 5, 9, 2

KINDS = {
    3: "a call of the host",
    4: "a graph inside the graph",
    6: "a wait for an event",
    7: "an event",
    8: "a signal to a semaphore",
    9: "a wait for a semaphore",
    10: "an allocation",
    11: "a release of memory",
    12: "operations on words of memory",
    13: "a conditional node",
}
"""Nodes that are not rebuilt, by ``CUgraphNodeType``."""

HANDLES = {7: "an event to launch on", 12: "an event at the launch's end", 13: "a handle for updates"}
"""Attributes, by ``CUlaunchAttributeID``, that name something of this process."""

HOST, DEVICE, ARRAY = 1, 2, 3
_MEMORY_TYPES = (4, 15)
"""Words of a memcpy's body with the type of its source's and its target's memory."""

_BODY_WORDS = {MEMCPY: MEMCPY_WORDS, MEMSET: MEMSET_WORDS, EMPTY: 0}


@frozen
class NodeWords:
    """Where one node stands: ``start`` is its first word, ``payload`` the ranges that may hold addresses."""

    kind: int
    start: int
    length: int
    payload: tuple[tuple[int, int], ...]
    function: int | None = None
    attributes: tuple[int, ...] = ()

    @property
    def obstacle(self) -> str | None:
        """Why a node of this kind cannot be rebuilt."""
        if self.kind in KINDS:
            return f"has {KINDS[self.kind]}"
        if self.kind not in (KERNEL, MEMCPY, MEMSET, EMPTY):
            return f"has a node of the unknown kind {self.kind}"
        named = [HANDLES[attribute] for attribute in self.attributes if attribute in HANDLES]
        return f"has a kernel with {named[0]}" if named else None


def nodes_of(words: torch.Tensor) -> Iterator[NodeWords]:
    """The nodes of a graph, in order.

    Raises:
        ValueError: these are not the words of a graph.
    """
    values = words.tolist()
    if len(values) < GRAPH_HEAD:
        raise ValueError("no graph")
    at = GRAPH_HEAD
    if values[0] < 0:
        raise ValueError("a number of nodes that cannot be")
    for _ in range(values[0]):
        length = values[at] >> 32 if at < len(values) else 0
        if length < NODE_HEAD or at + length > len(values):
            raise ValueError("a node beyond the end")
        yield _node(values, at, length)
        at += length
    if len(values) - at != EDGE_WORDS * values[1]:
        raise ValueError("edges that do not end where the words do")


def _node(values: list[int], at: int, length: int) -> NodeWords:
    kind = values[at] & 0xFFFFFFFF
    if length - NODE_HEAD != _BODY_WORDS.get(kind, length - NODE_HEAD):
        raise ValueError("a node of another length than its kind has")
    if kind != KERNEL:
        return NodeWords(kind, at, length, ((at + NODE_HEAD, at + length),))
    if length < KERNEL_HEAD:
        raise ValueError("a kernel without its launch")
    num_attributes = values[at + 5] >> 32
    first = at + KERNEL_HEAD + ((values[at + 6] & 0xFFFFFFFF) + 7) // 8
    if num_attributes < 0 or first + num_attributes * ATTRIBUTE_WORDS != at + length:
        raise ValueError("a kernel whose parameters do not end where its attributes begin")
    starts = range(first, at + length, ATTRIBUTE_WORDS)
    payload = ((at + KERNEL_HEAD, first), *((start + 1, start + ATTRIBUTE_WORDS) for start in starts))
    attributes = tuple(values[start] for start in starts)
    return NodeWords(kind, at, length, payload, values[at + 1], attributes)


def uses_host_memory(words: torch.Tensor, node: NodeWords) -> bool:
    """Whether a memcpy node reads or writes memory that is not the device's."""
    body = node.start + NODE_HEAD
    return node.kind == MEMCPY and any(
        (int(words[body + offset]) & 0xFFFFFFFF) in (HOST, ARRAY) for offset in _MEMORY_TYPES
    )


def payload_mask(words: torch.Tensor, nodes: list[NodeWords]) -> torch.Tensor:
    """True for each word that may hold an address."""
    mask = torch.zeros(len(words), dtype=torch.bool)
    for node in nodes:
        for start, end in node.payload:
            mask[start:end] = True
    return mask
