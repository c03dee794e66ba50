from __future__ import annotations

import pytest

from executor.distributed.layout import DIMENSIONS, Layout
from executor.distributed.wording import listed_ranks, seconds
from executor.errors import RanksError
from planner import load_deployment


def test_tensor_parts_lie_next_to_each_other_and_data_parallel_ranks_far_apart() -> None:
    layout = Layout(data=2, pipeline=2, tensor=3)
    assert layout.world_size == 12
    assert layout.groups("tensor") == [(0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11)]
    assert layout.groups("pipeline") == [(0, 3), (1, 4), (2, 5), (6, 9), (7, 10), (8, 11)]
    assert layout.groups("data") == [(0, 6), (1, 7), (2, 8), (3, 9), (4, 10), (5, 11)]


def test_every_rank_is_in_one_group_of_each_dimension_at_its_place() -> None:
    layout = Layout(data=3, pipeline=2, tensor=2)
    for dimension in DIMENSIONS:
        groups = layout.groups(dimension)
        assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))
        for group in groups:
            assert [layout.place(rank, dimension) for rank in group] == list(range(len(group)))


def test_the_sizes_are_those_of_the_deployment_and_one_by_default() -> None:
    sections = {"apiVersion": "graphplan/v1", "kind": "Deployment"}
    sizes = {"data_parallel_size": 2, "pipeline_parallel_size": 3, "tensor_parallel_size": 4}
    assert Layout.of(load_deployment({**sections, "parallel": sizes})).sizes == (2, 3, 4)
    assert Layout.of(load_deployment(sections)).sizes == (1, 1, 1)


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(RanksError, match="tensor parallel size is 0"):
        Layout(tensor=0)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((3,), "rank 3"),
        ((1, 0), "ranks 0 and 1"),
        ((0, 2, 5), "ranks 0, 2 and 5"),
        (range(8), "ranks 0 to 7"),
    ],
)
def test_ranks_are_listed_in_few_words(ranks: tuple[int, ...], text: str) -> None:
    assert listed_ranks(tuple(ranks)) == text


@pytest.mark.parametrize(("duration", "text"), [(30.0, "30 s"), (0.5, "0.5 s"), (2.04, "2 s")])
def test_seconds_are_told_in_tenths(duration: float, text: str) -> None:
    assert seconds(duration) == text
