"""Comparing a graph that was captured here with the saved one: what may differ, and what may not."""

from __future__ import annotations

import pytest
import torch

from executor.materialize.kernels import difference_of, item
from executor.materialize.relocation import Relocation

NUM_STATIC = 1
STARTS = torch.tensor([0x7000, 0x9000])


def kernel(function: int, *params: int, grid: int = 1) -> list[int]:
    return [(7 + len(params)) << 32, function, grid, 1, 1, 0, 8 * len(params), *params]


def graph(*nodes: list[int]) -> torch.Tensor:
    return torch.tensor([len(nodes), 0, *(word for node in nodes for word in node)])


SAVED = Relocation(
    graph(kernel(0, 0x10, 5), kernel(1, 0x20, 6), kernel(0, 7, 0)),
    torch.tensor([9, 18]),
    torch.tensor([0, 1]),
    torch.tensor([28]),
)


def fresh(
    *,
    static: int = 0x7010,
    pool: int = 0xABC0,
    number: int = 7,
    left: int = 99,
    grid: int = 1,
    order: str = "aba",
) -> torch.Tensor:
    numbers = {"a": 40, "b": 41, "c": 42}
    one, two, three = (numbers[each] for each in order)
    return graph(kernel(one, static, 5), kernel(two, pool, 6, grid=grid), kernel(three, number, left))


def test_functions_pool_addresses_and_gaps_may_differ() -> None:
    assert difference_of(SAVED, fresh(), STARTS, NUM_STATIC, ()) is None


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (fresh(static=0x7018), "launched with other numbers"),
        (fresh(number=8), "launched with other numbers"),
        (fresh(grid=2), "launched with other numbers"),
        (fresh(order="abc"), "recorded with other kernels"),
        (fresh(order="aaa"), "recorded with other kernels"),
        (fresh(order="baa"), "recorded with other kernels"),
        (torch.cat([fresh(), torch.tensor([0, 0])]), "recorded with other nodes"),
        (fresh()[:2] * 0, "recorded with other nodes"),
    ],
)
def test_everything_else_is_a_difference(other: torch.Tensor, difference: str) -> None:
    found = difference_of(SAVED, other, STARTS, NUM_STATIC, ())
    assert found is not None
    assert difference in found


def test_an_item_that_is_not_there_is_none() -> None:
    assert [item([1, 2], number) for number in (-1, 0, 1, 2)] == [None, 1, 2, None]
    assert item(None, 0) is None
