"""Graphs that hypothesis draws, and some that tests name."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from executor.materialize.words import EMPTY, KERNEL, MEMCPY, MEMCPY_WORDS, MEMSET, MEMSET_WORDS
from tests.executor.materialize.fake_cuda import Drawing, Node

SOME = settings(
    max_examples=min(settings.default.max_examples, 100),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
"""For tests that draw whole graphs; the fake driver is the same for all examples of a test."""

LAYOUTS: tuple[tuple[tuple[int, int], ...], ...] = (
    (),
    ((0, 8), (8, 8), (16, 4)),
    ((0, 1), (8, 8), (16, 3), (24, 128)),
    ((0, 128),),
    ((0, 8), (64, 16)),
)
"""Offset and size of the parameters of each function: none, odd sizes, and gaps for alignment."""

UNSIGNED = st.integers(0, 2**32 - 1)
WORD = st.integers(0, 2**64 - 1)
HANDLES = (7, 12, 13)


def num_bytes(function: int) -> int:
    """Bytes of a function's parameters."""
    return sum(LAYOUTS[function][-1]) if LAYOUTS[function] else 0


def without_gaps(function: int, raw: bytes) -> bytes:
    """``raw`` with zeros where no parameter lies."""
    clean = bytearray(len(raw))
    for offset, size in LAYOUTS[function]:
        clean[offset : offset + size] = raw[offset : offset + size]
    return bytes(clean)


@st.composite
def kernels(draw: Any) -> Node:
    function = draw(st.integers(0, len(LAYOUTS) - 1))
    size = num_bytes(function)
    raw = draw(st.binary(min_size=size, max_size=size))
    packed = draw(st.booleans())
    values = st.lists(WORD, min_size=8, max_size=8).filter(any)
    ids = st.sampled_from([each for each in range(1, 15) if each not in HANDLES])
    return Node(
        KERNEL,
        draw(st.dictionaries(ids, values, max_size=3)),
        function,
        (*draw(st.tuples(*[UNSIGNED] * 6)), draw(st.integers(0, 1 << 16))),
        raw if packed else without_gaps(function, raw),
        packed,
        draw(st.booleans()),
    )


def bodies(kind: int, size: int) -> st.SearchStrategy[Node]:
    return st.lists(WORD, min_size=size, max_size=size).map(lambda words: Node(kind, words))


NODES = st.one_of(kernels(), bodies(MEMCPY, MEMCPY_WORDS), bodies(MEMSET, MEMSET_WORDS), st.just(Node(EMPTY)))


@st.composite
def drawings(draw: Any, max_nodes: int = 6) -> Drawing:
    nodes = draw(st.lists(NODES, max_size=max_nodes))
    pairs = [(source, target) for target in range(len(nodes)) for source in range(target)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return Drawing(nodes, [(*pair, draw(st.one_of(st.just(0), WORD))) for pair in chosen])


EVERYTHING = Drawing(
    [
        Node(
            KERNEL, {4: (2, 1, 1, 0, 0, 0, 0, 0), 9: (1,) * 8}, 1, (4, 1, 1, 128, 1, 1, 64), bytes(range(20))
        ),
        Node(KERNEL, {}, 3, (1, 2, 3, 4, 5, 6, 7), bytes(range(128)), packed=True),
        Node(MEMCPY, range(MEMCPY_WORDS)),
        Node(MEMSET, range(MEMSET_WORDS)),
        Node(EMPTY),
        Node(KERNEL, {}, 0),
    ],
    [(0, 1, 0), (1, 2, 1 << 40), (1, 3, 0), (2, 4, 0), (3, 4, 0), (4, 5, 0)],
)
"""A graph with a node of each kind."""
