"""Recipes: which calls and which entries are needed to come by kernels again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from executor.calls import AtenCall
from executor.errors import CaptureError
from executor.materialize import recipes as module
from executor.materialize.recipes import (
    Bench,
    FromCall,
    FromEntry,
    recipes_from_calls,
    recipes_from_entries,
)
from tests.executor.materialize.drawings import SOME
from tests.executor.materialize.worlds import Make, World

GRAPHS = st.dictionaries(
    st.tuples(st.integers(0, 4), st.integers(0, 2)),
    st.lists(st.one_of(st.none(), st.integers(0, 8)), max_size=6),
    max_size=8,
)


@SOME
@given(st.sets(st.integers(0, 9)), GRAPHS)
def test_entries_have_the_kernels_that_they_are_named_for(
    wanted: set[int], graphs: dict[tuple[int, int], list[int | None]]
) -> None:
    found = recipes_from_entries(wanted, graphs)
    assert set(found) == wanted & {each for row in graphs.values() for each in row if each is not None}
    for function, recipe in found.items():
        assert graphs[recipe.entry, recipe.graph][recipe.node] == function


def test_few_entries_are_chosen() -> None:
    graphs = {(0, 0): [1], (1, 0): [2, None, 3], (1, 1): [1, 4], (2, 0): [5], (3, 0): [5, 2]}
    found = recipes_from_entries({1, 2, 3, 4, 5}, graphs)
    assert {recipe.entry for recipe in found.values()} == {1, 2}
    assert found[3] == FromEntry(1, 0, 2)
    assert found[4] == FromEntry(1, 1, 1)
    assert recipes_from_entries({9}, graphs) == {}
    assert recipes_from_entries(set(), graphs) == {}


def tensor(*shape: int) -> dict[str, Any]:
    return {"tensor": ["float32", list(shape), list(torch.empty(shape).stride()), True]}


RELU = AtenCall("relu", "default", [tensor(3)], {})
RELU_TOO = AtenCall("relu", "default", [tensor(5)], {})
ADD = AtenCall("add", "Tensor", [tensor(3), tensor(3)], {})
FAILING = AtenCall("mm", "default", [tensor(3, 3), tensor(2, 2)], {})
COPY = AtenCall("copy_", "default", [tensor(3), tensor(3)], {})
SPOILING = AtenCall("neg", "default", [tensor(3)], {})


def bench_of(world: World) -> Bench:
    return Bench(device=world.machine.device, pool=world.manager.pool, address=0x7F00_0000_0000)


def names(world: World, rows: Sequence[Sequence[int | None]]) -> list[list[str | None]]:
    driver = world.machine.driver
    return [[None if each is None else driver.identity(each).name for each in row] for row in rows]


def test_calls_are_recorded_on_memory_that_is_not_touched(world: Make) -> None:
    """The memory that the bench names is not there at all."""
    one = world()
    found = bench_of(one).functions_of([RELU, COPY, ADD])
    assert found is not None
    assert names(one, found) == [["aten.relu.default"], [None], ["aten.add.Tensor"]]


def test_a_call_that_cannot_be_made_gives_nothing_and_spoils_nothing(world: Make) -> None:
    one = world()
    found = bench_of(one).functions_of([FAILING, RELU, FAILING])
    assert found is not None
    assert names(one, found) == [[], ["aten.relu.default"], []]


def test_no_calls_have_no_functions(world: Make) -> None:
    assert bench_of(world()).functions_of([]) == []


def spoil(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes ``SPOILING`` a call that ends any recording that it is made in."""
    make = module.make

    def spoiled(call: AtenCall, scratch: Any) -> bool:
        if call is SPOILING:
            raise RuntimeError("operation not permitted when stream is capturing")
        return make(call, scratch)

    monkeypatch.setattr(module, "make", spoiled)


def test_where_one_call_spoils_a_recording_each_is_tried_alone(
    world: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world()
    spoil(monkeypatch)
    bench = bench_of(one)
    assert bench.functions_of([RELU, SPOILING]) is None
    found = bench.functions_of_each([RELU, SPOILING, ADD])
    assert names(one, found) == [["aten.relu.default"], [], ["aten.add.Tensor"]]
    assert one.machine.recorder is None


def test_many_calls_are_recorded_by_the_chunk(world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = world()
    monkeypatch.setattr(module, "CHUNK", 2)
    found = bench_of(one).functions_of_each([RELU, ADD, RELU_TOO])
    assert names(one, found) == [["aten.relu.default"], ["aten.add.Tensor"], ["aten.relu.default"]]


def test_only_calls_that_bring_a_kernel_of_their_own_are_kept(world: Make) -> None:
    one = world()
    bench = bench_of(one)
    ((relu,), (add,)) = bench.functions_of([RELU, ADD]) or []
    assert relu is not None
    assert add is not None
    kept, found = recipes_from_calls([relu, add, 0x1234], [FAILING, RELU, RELU_TOO, COPY, ADD], bench)
    assert kept == [RELU, ADD]
    assert found == {relu: FromCall(0, 0), add: FromCall(1, 0)}
    assert bench.functions_of(kept) == [[relu], [add]]


def test_a_driver_that_refuses_to_read_is_an_error_and_leaves_nothing(world: Make) -> None:
    one = world()
    one.fake.fail("cuGraphKernelNodeGetParams_v2", error=5)
    with pytest.raises(CaptureError, match="5"):
        bench_of(one).functions_of([RELU])
    assert one.manager.pool.recordings == 0  # type: ignore[attr-defined]
