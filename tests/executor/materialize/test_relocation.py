"""Addresses and numbers told apart by recording twice, and what speaks against rebuilding a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from executor.materialize.regions import AddressMap, Region
from executor.materialize.relocation import (
    ExchangedError,
    NotRestorableError,
    Places,
    Relocation,
    relocated,
)
from executor.materialize.words import KERNEL, MEMCPY
from tests.executor.materialize.drawings import SOME

STATIC = 0x7F00_0000_0000
POOL, TWIN = 0x7F10_0000_0000, 0x7F20_0000_0000
FOREIGN = 0x7F30_0000_0000
SIZE = 1 << 20
NAMES = ("gemm", "norm", "rope")


def kernel(*params: int, function: int = 0, grid: int = 1, attributes: Sequence[int] = ()) -> list[int]:
    """A kernel with a word for each parameter; ``attributes`` are a number and eight words each."""
    length = 7 + len(params) + len(attributes)
    head = [length << 32 | KERNEL, function, grid | 1 << 32, 1 | 1 << 32, 1 | 1 << 32]
    return [*head, len(attributes) // 9 << 32, 8 * len(params) | 1 << 32, *params, *attributes]


def copy(source: int, target: int, types: tuple[int, int] = (2, 2)) -> list[int]:
    body = [0] * 25
    body[4], body[6], body[15], body[17], body[22] = types[0], source, types[1], target, 64
    return [26 << 32 | MEMCPY, *body]


def graph(*nodes: list[int], edges: Sequence[int] = ()) -> torch.Tensor:
    words = [len(nodes), len(edges) // 2, *(word for node in nodes for word in node), *edges]
    return torch.tensor(words, dtype=torch.int64)


def places(asked: list[int] | None = None) -> Places:
    def owner_of(address: int) -> Region | None:
        if asked is not None:
            asked.append(address)
        known = Region("", FOREIGN + SIZE, SIZE)
        return known if known.start <= address < known.end else None

    static = (Region("weight", STATIC, SIZE), Region("cache", STATIC + SIZE, SIZE))
    return Places(
        first=AddressMap((*static, Region("pool:0", POOL, SIZE), Region("pool:1", POOL + 2 * SIZE, SIZE))),
        second=AddressMap((*static, Region("pool:0", TWIN, 4 * SIZE))),
        num_static=2,
        foreign=AddressMap((Region("allocator:0", FOREIGN, SIZE),)),
        owner_of=owner_of,
    )


def refusal(first: torch.Tensor, second: torch.Tensor) -> str:
    with pytest.raises(NotRestorableError) as error:
        relocated(first, second, places(), NAMES)
    return str(error.value)


def test_what_moves_with_the_memory_is_an_address_and_what_stays_is_a_number() -> None:
    one = graph(kernel(POOL + 64, 5, STATIC + 8), kernel(POOL + 2 * SIZE, -1, function=1))
    two = graph(kernel(TWIN + 128, 5, STATIC + 8), kernel(TWIN, -1, function=1))
    found = relocated(one, two, places(), NAMES)
    assert found.positions.tolist() == [9, 11, 19]
    assert found.regions.tolist() == [2, 0, 3]
    assert found.words[found.positions].tolist() == [64, 8, 0]


def test_an_address_of_the_pool_that_stays_when_the_pool_is_another_is_refused() -> None:
    one, two = graph(kernel(POOL + 64, POOL + 8)), graph(kernel(TWIN + 64, POOL + 8))
    assert "stayed in its place" in refusal(one, two)


@pytest.mark.parametrize("known", [STATIC, POOL, TWIN, FOREIGN])
@pytest.mark.parametrize("other", [0, FOREIGN + SIZE + 24])
def test_an_address_in_the_place_of_none_or_of_memory_of_others_is_refused(known: int, other: int) -> None:
    one, two = graph(kernel(known + 8)), graph(kernel(other))
    assert "was given another tensor" in refusal(one, two)
    assert "was given another tensor" in refusal(two, one)


@pytest.mark.parametrize("number", [5, -3, 0x7FFE_9037_1DEC])
def test_an_address_in_the_place_of_a_number_stands_in_a_gap(number: int) -> None:
    """What was on the host's stack: an address of a tensor at one time, one of the stack at another."""
    for words in ((STATIC + 8, number), (number, STATIC + 8), (POOL, number), (number, TWIN)):
        one, two = (graph(kernel(word)) for word in words)
        found = relocated(one, two, places(), NAMES)
        assert (found.positions.tolist(), found.volatile.tolist()) == ([], [9])


def test_numbers_in_the_heads_are_never_addresses() -> None:
    one = graph(kernel(1, function=0, grid=7), edges=[0, 0])
    one[2 + 2] = STATIC + 8  # the grid, as it were
    found = relocated(one, one.clone(), places(), NAMES)
    assert not len(found.positions)


def test_addresses_stand_in_attributes_and_copies_as_well() -> None:
    window = [1, STATIC + 16, 0, 0, 0, 0, 0, 0, 0]
    one = graph(kernel(attributes=window), copy(POOL + 8, STATIC))
    two = graph(kernel(attributes=window), copy(TWIN + 8, STATIC))
    found = relocated(one, two, places(), NAMES)
    assert found.regions.tolist() == [0, 2, 0]


def test_the_last_byte_of_a_region_is_in_it_and_the_next_is_not() -> None:
    last = POOL + 3 * SIZE
    found = relocated(graph(kernel(last - 1)), graph(kernel(TWIN + 5)), places(), NAMES)
    assert found.words[9] == SIZE - 1
    beyond = relocated(graph(kernel(last)), graph(kernel(TWIN + 5)), places(), NAMES)
    assert (len(beyond.positions), beyond.volatile.tolist()) == (0, [9])


@SOME
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from([0, 1, 2, 3]), st.integers(0, SIZE - 1)),
            st.integers(-(1 << 31), 1 << 31),
        ),
        max_size=12,
    ),
    st.lists(st.integers(1, 1 << 40), min_size=4, max_size=4),
)
def test_a_relocated_graph_is_that_of_its_regions_wherever_they_lie(
    params: list[Any], moved: list[int]
) -> None:
    def at(starts: Sequence[int]) -> torch.Tensor:
        return graph(
            kernel(*(starts[each[0]] + each[1] if isinstance(each, tuple) else each for each in params))
        )

    here = places()
    starts = here.first.starts().tolist()
    found = relocated(at(starts), at([*starts[:2], TWIN, TWIN + SIZE]), here, NAMES)
    assert torch.equal(found.at(here.first.starts()), at(starts))
    assert torch.equal(found.at(torch.tensor(moved)), at(moved))
    assert torch.equal(found.at(here.first.starts()), at(starts)), "putting in addresses changes nothing"


@pytest.mark.parametrize("address", [FOREIGN + 24, FOREIGN + SIZE + 24])
def test_memory_that_is_not_registered_is_named_with_the_kernel_that_uses_it(address: int) -> None:
    """The allocator's by its own range, any other's by what the driver says."""
    one, two = (graph(kernel(start, 3), kernel(4, address, function=1)) for start in (POOL, TWIN))
    start = address - 24
    assert refusal(one, two) == (
        f"node 1 (norm) uses memory at {start:#x} to {start + SIZE:#x}, "
        "which is neither a registered static tensor nor the pool's"
    )


def test_the_driver_is_asked_once_for_each_number_that_may_be_an_address() -> None:
    asked: list[int] = []
    words = graph(kernel(7, 1 << 40, 1 << 40, (1 << 32) - 1, -1), kernel(1 << 40, 1 << 41))
    relocated(words, words.clone(), places(asked), NAMES)
    assert asked == [1 << 40, 1 << 41]


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ([1 << 32 | 3], "a call of the host"),
        ([1 << 32 | 4], "a graph inside the graph"),
        ([1 << 32 | 10], "an allocation"),
        ([1 << 32 | 13], "a conditional node"),
        ([1 << 32 | 99], "unknown kind 99"),
        (copy(POOL, STATIC, (1, 2)), "from or to the host"),
        (copy(STATIC, POOL, (2, 1)), "from or to the host"),
        (kernel(attributes=[7, *[1] * 8]), "an event to launch on"),
        (kernel(attributes=[4, *[1] * 8, 13, *[1] * 8]), "a handle for updates"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused_with_its_reason(node: list[int], reason: str) -> None:
    words = graph(kernel(1), node)
    assert reason in refusal(words, words.clone())


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (graph(kernel(1, 2), kernel(3, function=1)), "recorded twice, the graph was not the same"),
        (graph(kernel(1), kernel(3, function=2)), "node 1 (norm) is launched otherwise"),
        (graph(kernel(1, grid=2), kernel(3, function=1)), "node 0 (gemm) is launched otherwise"),
    ],
)
def test_a_graph_that_differs_when_it_is_recorded_again_is_refused(other: torch.Tensor, reason: str) -> None:
    assert refusal(graph(kernel(1), kernel(3, function=1)), other).startswith(reason)


def test_what_differs_at_each_recording_and_is_no_address_is_left_out() -> None:
    """Gaps between parameters hold whatever lay there before."""
    one, two = graph(kernel(POOL, 0x1122_0017, 5)), graph(kernel(TWIN, 0x1122_0018, 5))
    found = relocated(one, two, places(), NAMES)
    assert found.volatile.tolist() == [10]
    assert found.positions.tolist() == [9]
    assert found.words.tolist()[9:] == [0, 0x1122_0000, 5]


@pytest.mark.parametrize("other", [STATIC + SIZE, STATIC + 8, TWIN])
def test_another_tensor_at_the_second_recording_is_refused(other: int) -> None:
    assert refusal(graph(kernel(STATIC)), graph(kernel(other))) == (
        "node 0 (gemm) was given another tensor when it was recorded again"
    )


def test_what_was_exchanged_only_once_of_several_times_is_a_gap() -> None:
    first = graph(kernel(STATIC, POOL, 5))
    with pytest.raises(ExchangedError) as error:
        relocated(first, graph(kernel(STATIC + SIZE, TWIN, 5)), places(), NAMES)
    assert error.value.words.nonzero().flatten().tolist() == [9]
    found = relocated(first, graph(kernel(STATIC, STATIC, 5)), places(), NAMES, error.value.words)
    assert (found.positions.tolist(), found.volatile.tolist()) == ([9], [10])


def test_what_is_exchanged_every_time_is_refused() -> None:
    first, second = graph(kernel(STATIC, POOL, 5)), graph(kernel(STATIC + SIZE, TWIN, 5))
    suspects = None
    for _ in range(3):
        with pytest.raises(ExchangedError) as error:
            relocated(first, second, places(), NAMES, suspects)
        suspects = error.value.words


def test_memory_of_the_allocator_that_moves_without_the_pool_is_refused() -> None:
    message = refusal(graph(kernel(FOREIGN)), graph(kernel(FOREIGN + 512)))
    assert "neither a registered static tensor nor the pool's" in message


def test_edges_that_differ_are_refused() -> None:
    nodes = kernel(1), kernel(2), kernel(3)
    one, two = graph(*nodes, edges=[1 << 32, 0]), graph(*nodes, edges=[2 << 32, 0])
    assert "an edge is launched otherwise" in refusal(one, two)


def test_copies_with_other_memory_types_beside_are_taken() -> None:
    words = graph(copy(STATIC, STATIC + SIZE, (4, 2)))
    assert relocated(words, words.clone(), places(), NAMES).regions.tolist() == [0, 1]


def test_a_graph_without_addresses_stays_as_it_is() -> None:
    words = torch.tensor([0, 0])
    empty = torch.empty(0, dtype=torch.int64)
    assert torch.equal(Relocation(words, empty, empty, empty).at(torch.empty(0, dtype=torch.int64)), words)
