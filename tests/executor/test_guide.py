"""What an earlier capture teaches the next: order, an early end, entries not tried, warm-ups left out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from executor.errors import ReplayError
from executor.guide import CaptureGuide, CaptureOptions
from executor.manager import CudaGraphManager
from planner.descriptors import BatchExecutionDescriptor
from tests.executor.toys import Toy, sizes_plan


def manager_of(*sizes: int) -> CudaGraphManager:
    return CudaGraphManager(sizes_plan(*sizes), device="cpu")


def served_size(manager: CudaGraphManager, num_reqs: int) -> int | None:
    desc: Any = manager.dispatch(num_reqs=num_reqs, num_tokens=num_reqs, uniform_token_count=1)  # type: ignore[call-arg]
    return desc.num_tokens if desc.cg_mode else None


def guided(**guide: Any) -> CaptureOptions:
    return CaptureOptions(guide=CaptureGuide(**guide))


def test_hot_entries_are_captured_first_and_the_others_in_the_plans_order() -> None:
    manager = manager_of(8, 4, 2, 1)
    eight, four, two, one = manager.entries
    report = manager.capture(Toy(8).create_forward, options=guided(order=(two, one)))
    assert [record.entry for record in report.records] == [two, one, eight, four]
    assert manager.captured_entries == manager.entries


def test_serving_may_begin_before_all_entries_are_there() -> None:
    manager, toy = manager_of(8, 4, 2), Toy(8)
    two = manager.entries[2]
    first = manager.capture(toy.create_forward, options=guided(order=(two,), ready=1))
    assert (len(first.records), first.num_remaining) == (1, 2)
    assert [served_size(manager, size) for size in (1, 2, 3, 8)] == [2, 2, None, None]
    assert manager.capture_more().num_remaining == 1
    assert [served_size(manager, size) for size in (2, 3, 8)] == [2, 8, 8]
    last = manager.capture_more(5)
    assert (len(last.captured), last.num_remaining, manager.num_remaining) == (3, 0, 0)
    assert [served_size(manager, size) for size in (2, 3, 8)] == [2, 4, 8]
    for size in (2, 4, 8):
        desc: Any = manager.dispatch(num_reqs=size, num_tokens=size, uniform_token_count=1)  # type: ignore[call-arg]
        assert torch.equal(manager.run_fullgraph(desc), toy.run(size))


def test_going_on_without_a_capture_is_refused() -> None:
    manager = manager_of(2)
    with pytest.raises(ReplayError, match="call capture first"):
        manager.capture_more()
    manager.capture(Toy(2).create_forward)
    manager.release_graphs()
    with pytest.raises(ReplayError, match="call capture first"):
        manager.capture_more()


def test_an_entry_that_is_known_to_fail_is_not_tried() -> None:
    asked: list[int] = []
    toy = Toy(4)

    def create(desc: BatchExecutionDescriptor, warmup: bool) -> Any:
        asked.append(desc.num_tokens)
        return toy.create_forward(desc, warmup)

    manager = manager_of(4, 2)
    four = manager.entries[0]
    report = manager.capture(create, options=guided(known_errors={four: "out of memory"}))
    assert 4 not in asked
    assert [(record.entry, record.error) for record in report.failed] == [(four, "out of memory")]
    assert served_size(manager, 2) == 2


def test_only_entries_that_the_record_names_are_warmed_up() -> None:
    asked: list[tuple[int, bool]] = []
    toy = Toy(8)

    def create(desc: BatchExecutionDescriptor, warmup: bool) -> Any:
        asked.append((desc.num_tokens, warmup))
        return toy.create_forward(desc, warmup)

    manager = manager_of(8, 4, 2)
    four = manager.entries[1]
    manager.capture(toy.create_forward)
    outputs = {size: toy.run(size).clone() for size in (8, 4, 2)}
    guide = guided(warmed_by_record=True, warm_ups={four, manager.entries[0]})
    report = manager.capture(create, options=guide)
    assert not report.failed
    assert asked == [(8, True), (8, False), (4, True), (4, False), (2, False)]
    assert [record.num_warmups for record in report.records] == [1, 1, 0]
    for size, expected in outputs.items():
        desc: Any = manager.dispatch(num_reqs=size, num_tokens=size, uniform_token_count=1)  # type: ignore[call-arg]
        assert torch.equal(manager.run_fullgraph(desc), expected)


def test_replays_are_counted_by_entry() -> None:
    manager, toy = manager_of(4, 2), Toy(4)
    manager.capture(toy.create_forward)
    for size in (4, 2, 2):
        desc: Any = manager.dispatch(num_reqs=size, num_tokens=size, uniform_token_count=1)  # type: ignore[call-arg]
        manager.run_fullgraph(desc)
    manager.count_eager()
    assert manager.usage_counts == [1, 2, 1]
