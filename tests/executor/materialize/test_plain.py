"""Reading and building graphs, in either half; the Python half refuses what the compiled one refuses."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from executor.errors import CaptureError
from executor.materialize import plain as module
from executor.materialize.driver import GraphCode
from executor.materialize.native import NativeCode
from executor.materialize.plain import PlainCode
from executor.materialize.relocation import Relocation
from executor.materialize.words import KERNEL, nodes_of
from tests.executor.materialize.drawings import EVERYTHING, SOME, drawings
from tests.executor.materialize.fake_cuda import Drawing, FakeCuda, Node

READING = (
    "cuGraphGetNodes",
    "cuGraphNodeGetType",
    "cuGraphGetEdges_v2",
    "cuGraphKernelNodeGetParams_v2",
    "cuKernelGetFunction",
    "cuGraphMemcpyNodeGetParams",
    "cuGraphMemsetNodeGetParams",
)
BUILDING = (
    "cuCtxGetCurrent",
    "cuGraphCreate",
    "cuGraphAddKernelNode_v2",
    "cuGraphKernelNodeSetAttribute",
    "cuGraphAddMemcpyNode",
    "cuGraphAddMemsetNode",
    "cuGraphAddEmptyNode",
    "cuGraphAddDependencies_v2",
    "cuGraphInstantiateWithFlags",
)


def as_built(words: torch.Tensor) -> torch.Tensor:
    """The words as builders give them: all parameters packed, all edges full."""
    words = words.clone()
    if num_edges := int(words[1]):
        words[-2 * num_edges :][1::2] = 0
    for node in nodes_of(words):
        if node.kind == KERNEL:
            size = int(words[node.start + 6]) & 0xFFFFFFFF
            words[node.start + 6] = size | bool(size) << 32
    return words


@SOME
@given(drawing=drawings())
def test_a_graph_that_is_built_of_words_reads_as_these_words(
    fake: FakeCuda, code: GraphCode, functions: list[int], drawing: Drawing
) -> None:
    known: list[int] = []
    with fake.drawn(drawing, functions) as graph:
        words = code.read(graph, known)
    # Functions of another process have other numbers.
    twins = [fake.function("twin", fake.layout(each), a8=1 << 16) for each in known]
    made = code.build(words, twins)
    again: list[int] = []
    assert torch.equal(code.read(made, again), as_built(words))
    assert again == twins
    fake.cuGraphExecDestroy(ctypes.c_void_p(made))


def test_parameters_that_are_given_one_by_one_lie_where_the_kernel_expects_them(
    fake: FakeCuda, code: GraphCode, functions: list[int]
) -> None:
    raw = bytes(range(152))
    drawing = Drawing([Node(KERNEL, {}, 2, params=raw), Node(KERNEL, {}, 2, params=raw, packed=True)])
    with fake.drawn(drawing, functions) as graph:
        words = code.read(graph, [])
    single, packed = (words[node.start + 7 : node.start + node.length] for node in nodes_of(words))
    found = single.numpy().tobytes()
    assert found[:1] == raw[:1]
    assert found[1:8] == bytes(7)
    assert found[8:19] == raw[8:19]
    assert found[24:152] == raw[24:152]
    assert packed.numpy().tobytes() == raw


@pytest.mark.parametrize("name", READING)
@pytest.mark.parametrize("before", [0, 1])
def test_reading_says_what_the_driver_answers(
    fake: FakeCuda, code: GraphCode, functions: list[int], name: str, before: int
) -> None:
    by_kernel = [Node(KERNEL, {}, 0, by_kernel=True)] * 2
    twice = Drawing([*EVERYTHING.nodes, *EVERYTHING.nodes, *by_kernel], EVERYTHING.edges)
    with fake.drawn(twice, functions) as graph:
        fake.fail(name, before, error=7)
        with pytest.raises(CaptureError, match="7"):
            code.read(graph, [])
        assert len(code.read(graph, [])) > 2


@pytest.mark.parametrize("name", BUILDING)
def test_building_says_what_the_driver_answers_and_gives_everything_back(
    fake: FakeCuda, code: GraphCode, functions: list[int], name: str
) -> None:
    known: list[int] = []
    with fake.drawn(EVERYTHING, functions) as graph:
        words = code.read(graph, known)
    fake.fail(name, error=7)
    with pytest.raises(CaptureError, match="answers 7"):
        code.build(words, known)


@SOME
@given(
    words=st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=2, max_size=20),
    places=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 2)), max_size=5),
    starts=st.lists(st.integers(0, 1 << 48), min_size=3, max_size=3),
)
def test_either_half_puts_addresses_in_the_place_of_offsets(
    native: NativeCode, plain: PlainCode, words: list[int], places: list[tuple[int, int]], starts: list[int]
) -> None:
    at = {place % len(words): region for place, region in places}
    graph = relocation(words, list(at), list(at.values()))
    for half in (native, plain):
        placed = half.placed(graph, torch.tensor(starts)).tolist()
        expected = [word + (starts[at[n]] if n in at else 0) for n, word in enumerate(words)]
        assert all((one - other) % (1 << 64) == 0 for one, other in zip(placed, expected, strict=True))
    assert graph.words.tolist() == words


@pytest.mark.parametrize(("position", "region"), [(2, 0), (0, 1)])
def test_addresses_that_lead_nowhere_are_refused(code: GraphCode, position: int, region: int) -> None:
    with pytest.raises(CaptureError, match="addresses are damaged"):
        code.placed(relocation([0, 0], [position], [region]), torch.tensor([64]))


def relocation(words: list[int], positions: list[int], regions: list[int]) -> Relocation:
    numbers = (torch.tensor(each, dtype=torch.int64) for each in (positions, regions, []))
    return Relocation(torch.tensor(words), *numbers)


def test_an_empty_graph_is_read_and_built(fake: FakeCuda, code: GraphCode) -> None:
    with fake.drawn(Drawing([]), []) as graph:
        words = code.read(graph, [])
    assert words.tolist() == [0, 0]
    fake.cuGraphExecDestroy(ctypes.c_void_p(code.build(words, [])))


def test_too_many_kernels_are_refused(
    fake: FakeCuda, plain: PlainCode, functions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_FUNCTIONS", 2)
    with fake.drawn(EVERYTHING, functions) as graph, pytest.raises(CaptureError, match="more kernels"):
        plain.read(graph, [functions[1]])


def words_of(fake: FakeCuda, functions: list[int]) -> torch.Tensor:
    known: list[int] = []
    with fake.drawn(EVERYTHING, functions) as graph:
        return PlainCode(fake.library).read(graph, known)


def used(functions: list[int]) -> list[int]:
    """The functions by the numbers that they have in the words of ``EVERYTHING``."""
    return [functions[1], functions[3], functions[0]]


KERNEL_AT = 2
MEMCPY_AT = 2 + 28 + 23


def replaced(at: int, word: int) -> Any:
    def damage(words: torch.Tensor) -> torch.Tensor:
        words[at] = word - (1 << 64) if word >= 1 << 63 else word
        return words

    return damage


DAMAGES: dict[str, Any] = {
    "nothing": lambda words: words[:0],
    "one word": lambda words: words[:1],
    "a head alone": lambda words: words[:2],
    "cut in a node": lambda words: words[:20],
    "cut in the edges": lambda words: words[:-1],
    "a word too many": lambda words: torch.cat([words, words[:1]]),
    "more nodes": replaced(0, 100),
    "more nodes than can be counted": replaced(0, 1 << 63),
    "fewer nodes": replaced(0, 1),
    "more edges": replaced(1, 100),
    "more edges than can be counted": replaced(1, (1 << 64) - 1),
    "a node of no length": replaced(KERNEL_AT, 0),
    "a node of endless length": replaced(KERNEL_AT, 0xFFFFFFFF << 32),
    "a kernel shorter than its head": replaced(KERNEL_AT, 6 << 32),
    "a kernel that is a memcpy": replaced(KERNEL_AT, 1 | 28 << 32),
    "a kernel that is a memset": replaced(KERNEL_AT, 2 | 28 << 32),
    "a kernel that is empty": replaced(KERNEL_AT, 5 | 28 << 32),
    "a kernel that is a call of the host": replaced(KERNEL_AT, 3 | 28 << 32),
    "a node of an unknown kind": replaced(KERNEL_AT, 99 | 28 << 32),
    "a memcpy that is a memset": replaced(MEMCPY_AT, 2 | 26 << 32),
    "a function that there is not": replaced(KERNEL_AT + 1, 3),
    "a function below none": replaced(KERNEL_AT + 1, (1 << 64) - 1),
    "endless parameters": replaced(KERNEL_AT + 6, 0xFFFFFFFF),
    "endless attributes": replaced(KERNEL_AT + 5, 0xFFFFFFFF << 32),
    "fewer than no attributes": replaced(KERNEL_AT + 5, (1 << 64) - (2 << 32)),
    "fewer than no attributes behind parameters to match": lambda words: replaced(KERNEL_AT + 6, 39 * 8)(
        replaced(KERNEL_AT + 5, (1 << 64) - (2 << 32))(words)
    ),
    "an attribute of no number": replaced(KERNEL_AT + 10, 0),
    "an attribute beyond those known": replaced(KERNEL_AT + 10, 1 << 32 | 4),
    "an edge from no node": replaced(-12, 6),
    "an edge to no node": replaced(-12, 6 << 32),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_words_are_refused(
    fake: FakeCuda, code: GraphCode, functions: list[int], damage: Any
) -> None:
    words = damage(words_of(fake, functions)).clone()
    with pytest.raises(CaptureError, match=r"damaged|not in the file"):
        code.build(words, used(functions))


@pytest.mark.parametrize("edge", [(0, 0), (5, 1)])
def test_edges_that_lead_in_a_circle_are_refused_by_the_driver(
    fake: FakeCuda, code: GraphCode, functions: list[int], edge: tuple[int, int]
) -> None:
    words = words_of(fake, functions)
    words[-12] = edge[0] | edge[1] << 32
    with pytest.raises(CaptureError, match="answers 1"):
        code.build(words, used(functions))


@SOME
@given(
    place=st.integers(0), word=st.one_of(st.integers(0, 40), st.integers(0, 2**64 - 1)), cut=st.integers(0, 3)
)
def test_the_python_half_takes_what_the_compiled_half_takes(
    fake: FakeCuda,
    native: NativeCode,
    plain: PlainCode,
    functions: list[int],
    place: int,
    word: int,
    cut: int,
) -> None:
    """The compiled half on all kinds of damage at all: ``test_native`` does that in another process."""
    words = words_of(fake, functions)
    words = replaced(place % len(words), word)(words)[: len(words) - cut].clone()
    outcomes = []
    for half in (native, plain):
        try:
            made = half.build(words, used(functions))
        except CaptureError:
            outcomes.append(None)
        else:
            outcomes.append(half.read(made, []).tolist())
            fake.cuGraphExecDestroy(ctypes.c_void_p(made))
    assert outcomes[0] == outcomes[1]
