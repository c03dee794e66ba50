"""Building beside the search for kernels: each graph is handed out once, and none is left over."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
import torch

from executor.errors import CaptureError
from executor.materialize import kernels as kernels_module
from executor.materialize.building import GraphBuilder, RefusedError
from executor.materialize.relocation import Relocation
from executor.materialize.saved import unpacked
from tests.executor.materialize.worlds import Make, World, refused, saved_by

EMPTY_GRAPH = Relocation(torch.tensor([0, 0]), *[torch.empty(0, dtype=torch.int64)] * 3)


def done(graph: Relocation) -> Future[Relocation]:
    future: Future[Relocation] = Future()
    future.set_result(graph)
    return future


def builder_of(one: World, *graphs: Relocation, absent: dict[int, str] | None = None) -> GraphBuilder:
    return GraphBuilder(
        device=one.machine.device,
        graphs=[done(graph) for graph in graphs],
        starts=torch.tensor([64]),
        absent=absent or {},
    )


def test_what_was_built_is_handed_out_once(world: Make) -> None:
    one = world()
    with builder_of(one, EMPTY_GRAPH) as builder:
        builder.submit(0, ())
        executable = builder.take(0)
        with pytest.raises(RefusedError, match="another entry's"):
            builder.take(0)
    one.machine.driver.destroy(executable)


def test_what_nobody_took_is_destroyed(world: Make) -> None:
    one = world()
    before = one.fake.alive
    with builder_of(one, EMPTY_GRAPH, EMPTY_GRAPH) as builder:
        builder.submit(0, ())
        builder.submit(1, ())
    assert one.fake.alive == before


def test_what_was_not_submitted_is_refused(world: Make) -> None:
    with builder_of(world(), EMPTY_GRAPH) as builder, pytest.raises(RefusedError, match="not there"):
        builder.take(0)


def test_a_graph_with_a_region_that_is_absent_is_refused_with_the_reason(world: Make) -> None:
    graph = Relocation(
        torch.tensor([0, 0]), torch.tensor([1]), torch.tensor([0]), torch.empty(0, dtype=torch.int64)
    )
    with builder_of(world(), graph, absent={0: "weight is not there"}) as builder:
        builder.submit(0, ())
        with pytest.raises(RefusedError, match="weight is not there"):
            builder.take(0)


def test_damage_that_shows_on_the_thread_is_an_error_where_the_graph_is_taken(world: Make) -> None:
    one = world()
    before = one.fake.alive
    damaged = Relocation(torch.tensor([7, 0]), *[torch.empty(0, dtype=torch.int64)] * 3)
    with builder_of(one, damaged, damaged) as builder:
        builder.submit(0, ())
        builder.submit(1, ())
        with pytest.raises(CaptureError, match="damaged"):
            builder.take(0)
    assert one.fake.alive == before


@pytest.mark.parametrize("at_once", [1, 2, 1000])
def test_kernels_are_looked_for_in_any_number_of_steps(
    world: Make, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    content, outputs = saved_by(world())
    monkeypatch.setattr(kernels_module, "CALLS_AT_ONCE", at_once)
    two = world()
    assert not refused(two.restore(unpacked(content), outputs))
    assert two.forwards == []
    two.check()
