"""Words of graphs: where nodes stand, what may hold addresses, and what cannot be rebuilt."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from executor.materialize.plain import PlainCode
from executor.materialize.words import (
    EMPTY,
    HANDLES,
    KERNEL,
    KINDS,
    MEMCPY,
    MEMCPY_WORDS,
    MEMSET,
    nodes_of,
    payload_mask,
    uses_host_memory,
)
from tests.executor.materialize.drawings import EVERYTHING, LAYOUTS, SOME, drawings, num_bytes
from tests.executor.materialize.fake_cuda import Drawing, FakeCuda, Node


@SOME
@given(drawing=drawings())
def test_nodes_are_those_of_the_graph(
    fake: FakeCuda, plain: PlainCode, functions: list[int], drawing: Drawing
) -> None:
    known: list[int] = []
    with fake.drawn(drawing, functions) as graph:
        words = plain.read(graph, known)
    nodes = list(nodes_of(words))
    assert [node.kind for node in nodes] == [node.kind for node in drawing.nodes]
    at = 2
    for node, own in zip(nodes, drawing.nodes, strict=True):
        assert node.start == at
        at += node.length
        assert node.obstacle is None
        if own.kind == KERNEL:
            assert node.function is not None
            assert known[node.function] == functions[own.function]
            assert list(node.attributes) == sorted(own.words)
    assert at + 2 * len(drawing.edges) == len(words)


def test_addresses_may_stand_in_parameters_attributes_and_bodies_only(
    fake: FakeCuda, plain: PlainCode, functions: list[int]
) -> None:
    with fake.drawn(EVERYTHING, functions) as graph:
        words = plain.read(graph, [])
    nodes = list(nodes_of(words))
    mask = payload_mask(words, nodes)
    counts = [int(mask[node.start : node.start + node.length].sum()) for node in nodes]
    assert counts == [3 + 2 * 8, 16, 25, 5, 0, 0]
    assert not mask[:2].any()
    assert not mask[nodes[-1].start :].any()
    assert not mask[[node.start for node in nodes]].any()
    assert num_bytes(1) == LAYOUTS[1][-1][0] + 4


@pytest.mark.parametrize("kind", [*KINDS, 77])
def test_nodes_of_other_kinds_are_obstacles(
    fake: FakeCuda, plain: PlainCode, functions: list[int], kind: int
) -> None:
    with fake.drawn(Drawing([Node(EMPTY), Node(kind)]), functions) as graph:
        empty, other = nodes_of(plain.read(graph, []))
    assert empty.obstacle is None
    assert other.obstacle is not None
    assert KINDS.get(kind, "unknown kind 77") in other.obstacle


@pytest.mark.parametrize("attribute", [*HANDLES])
def test_attributes_that_name_things_of_this_process_are_obstacles(
    fake: FakeCuda, plain: PlainCode, functions: list[int], attribute: int
) -> None:
    values = {4: (1,) * 8, attribute: (1,) * 8}
    with fake.drawn(Drawing([Node(KERNEL, values)]), functions) as graph:
        (node,) = nodes_of(plain.read(graph, []))
    assert node.obstacle == f"has a kernel with {HANDLES[attribute]}"


@pytest.mark.parametrize("word", [4, 15])
@pytest.mark.parametrize(("memory", "is_hosts"), [(1, True), (2, False), (3, True), (4, False)])
def test_copies_from_and_to_the_host_are_noticed(
    fake: FakeCuda, plain: PlainCode, word: int, memory: int, is_hosts: bool
) -> None:
    body = [2 if each in (4, 15) else 1 for each in range(MEMCPY_WORDS)]
    body[word] = memory | 0xABCD << 32  # what lies beside the type says nothing
    with fake.drawn(Drawing([Node(MEMCPY, body), Node(MEMSET, [1] * 5)]), []) as graph:
        words = plain.read(graph, [])
    copy, fill = nodes_of(words)
    assert uses_host_memory(words, copy) is is_hosts
    assert not uses_host_memory(words, fill)


@given(st.lists(st.one_of(st.integers(-3, 40), st.integers(-(2**63), 2**63 - 1)), max_size=40))
def test_words_of_no_graph_are_told(values: list[int]) -> None:
    words = torch.tensor(values, dtype=torch.int64)
    try:
        nodes = list(nodes_of(words))
    except ValueError:
        return
    assert len(nodes) == values[0]
    assert len(values) == 2 + sum(node.length for node in nodes) + 2 * values[1]
    assert len(payload_mask(words, nodes)) == len(values)
