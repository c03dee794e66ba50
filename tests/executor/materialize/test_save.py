"""Saving: what comes into the file, and what keeps an entry out of it."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from executor.errors import CaptureError
from executor.materialize import save as module
from executor.materialize.driver import CudaDriver
from executor.materialize.gaps import MarkedGaps
from executor.materialize.recipes import FromCall, FromEntry
from executor.materialize.relocation import ExchangedError
from executor.materialize.saved import unpacked
from executor.materialize.words import MEMCPY
from tests.executor.materialize.fake_cuda import Node
from tests.executor.materialize.worlds import Make, World, doubled, refused, saved_by, specially
from tests.executor.toys import plan_of, sizes_plan


def test_nothing_captured_is_nothing_to_save(world: Make) -> None:
    with pytest.raises(CaptureError, match="no graphs to save"):
        world().save()


def test_saving_leaves_graphs_and_memory_as_they_were(world: Make) -> None:
    one = world()
    one.capture()
    before = one.fake.alive, one.manager.pool.recordings  # type: ignore[attr-defined]
    one.save()
    assert (one.fake.alive, one.manager.pool.recordings) == before  # type: ignore[attr-defined]
    one.check()


def test_the_file_has_no_address_and_no_handle_of_its_process(world: Make) -> None:
    """Two processes that capture the same write the same."""
    one, two = world(more=doubled), world(more=doubled)
    contents = []
    for each in (one, two):
        contents.append(saved_by(each)[0])
        each.ballast.append(torch.empty(10_007))
    assert contents[0] == contents[1]


def test_every_kernel_has_a_call_or_an_entry(world: Make) -> None:
    one = world(more=doubled)
    header = unpacked(saved_by(one)[0]).header
    recipes = {kernel.identity.name: kernel.call or kernel.entry for kernel in header.kernels}
    assert isinstance(recipes.pop("triton_double"), FromEntry)
    assert len(recipes) > 3
    assert all(isinstance(recipe, FromCall) for recipe in recipes.values())
    assert len(header.calls) == len(
        {kernel.call.call for kernel in header.kernels if kernel.call is not None}
    )
    assert [region.name for region in header.regions[: header.num_static]] == [
        "net.weight",
        "net.inputs",
        "net.extra",
        "output.0",
        "output.1",
        "output.2",
        "workspace:0",
    ]
    assert header.num_static == 7


@pytest.mark.parametrize("is_held", [False, True])
def test_memory_that_is_not_registered_keeps_its_entry_out_of_the_file(world: Make, is_held: bool) -> None:
    one, special = world(), torch.full((4,), 2.0)
    one.more = specially(special)
    if is_held:
        one.machine.held.append(special)
    else:
        one.fake.fake_range(ctypes.c_uint64(special.data_ptr()), ctypes.c_uint64(16))
    assert not one.capture().failed
    saving = one.save()
    where = f"{special.data_ptr():#x} to {special.data_ptr() + 16:#x}"
    reason = saving.obstacles[one.entries[3]]
    assert set(saving.obstacles) == {one.entries[3]}
    assert f"(aten.mul.Tensor) uses memory at {where}" in reason
    two = world(more=specially(special))
    assert refused(two.restore(saving.content, one.manager.output_buffers)) == {two.entries[3]: reason}
    two.check()


def test_an_entry_whose_outputs_lie_in_a_shorter_buffer_is_saved_with_the_longer_one(world: Make) -> None:
    one = world(plan=sizes_plan(2, 4))
    content, outputs = saved_by(one)
    two = world(plan=sizes_plan(2, 4))
    assert not refused(two.restore(content, outputs))
    assert two.manager.graphs_of(two.entries[0]).outputs["logits"].data_ptr() == (
        two.manager.output_buffers[0].data_ptr()
    )
    two.check()


def test_what_was_restored_is_recorded_to_be_saved_again(world: Make) -> None:
    one = world()
    content, outputs = saved_by(one)
    two = world()
    two.restore(content, outputs)
    saving = two.save()
    assert not saving.obstacles
    three = world()
    assert not refused(three.restore(saving.content, outputs))
    three.check()


def test_an_entry_that_cannot_be_recorded_once_more_is_not_saved(world: Make) -> None:
    one = world()
    one.capture()
    relu = torch.relu
    one.more = lambda _, size, hidden: relu(hidden[:, :3] @ hidden) if size == 2 else hidden
    obstacles = one.save(calls=()).obstacles
    assert list(obstacles) == [one.entries[3]]
    assert obstacles[one.entries[3]].startswith("it could not be recorded once more: ")
    assert "\n" not in obstacles[one.entries[3]]


def test_no_memory_to_record_once_more_ends_the_saving(world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = world()
    one.capture()
    record, left = one.manager.record_twin, [3]

    def limited(*arguments: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise torch.OutOfMemoryError("no memory")
        return record(*arguments)

    monkeypatch.setattr(one.manager, "record_twin", limited)
    with pytest.raises(torch.OutOfMemoryError):
        one.save()
    one.check()


def test_a_copy_from_the_host_keeps_its_entry_out_of_the_file(world: Make) -> None:
    def copying(own: World, num_tokens: int, hidden: torch.Tensor) -> torch.Tensor:
        if num_tokens == 2 and own.machine.recorder is not None:
            body = [0] * 25
            body[4], body[15] = 1, 2
            own.machine.recorder.add(Node(MEMCPY, body))
        return hidden

    one = world(more=copying)
    one.capture()
    assert one.save().obstacles == {one.entries[3]: "the graph copies from or to the host"}


def test_a_forward_that_is_recorded_otherwise_each_time_is_not_saved(world: Make) -> None:
    count = 0

    def counting(_: World, num_tokens: int, hidden: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += num_tokens == 2
        for _ in range(count if num_tokens == 2 else 0):
            hidden = hidden + 1
        return hidden

    one = world(more=counting)
    one.capture()
    obstacles = one.save().obstacles
    assert list(obstacles) == [one.entries[3]]
    assert "recorded twice" in obstacles[one.entries[3]]


def test_gaps_with_addresses_are_marked_and_recorded_again(
    world: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, marks, compare, seen = world(), [], module.relocated, []

    def once_with_a_gap(first: torch.Tensor, *others: Any) -> Any:
        seen.append(len(marks))
        if len(seen) == 1:
            raise ExchangedError("an address in a gap", torch.ones(len(first), dtype=torch.bool))
        return compare(first, *others)

    monkeypatch.setattr(module, "relocated", once_with_a_gap)
    monkeypatch.setattr(CudaDriver, "mark_stack", lambda _: marks.append(1))
    content, outputs = saved_by(one)
    assert seen[0] == 0
    assert seen[1] > 1, "calls of both recordings are marked"
    assert set(seen[1:]) == {len(marks)}, "and no others"
    two = world()
    assert not refused(two.restore(content, outputs))
    two.check()


def test_a_forward_that_launches_other_kernels_under_marks_is_not_saved(
    world: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def modal(_: World, num_tokens: int, hidden: torch.Tensor) -> torch.Tensor:
        is_marked = any(isinstance(each, MarkedGaps) for each in _get_current_dispatch_mode_stack())
        return hidden + 1 if is_marked and num_tokens == 2 else hidden

    one, compare = world(more=modal), module.relocated
    one.capture()

    def with_a_gap(first: torch.Tensor, *others: Any) -> Any:
        if others[-1] is None:  # no suspects: the first time
            raise ExchangedError("an address in a gap", torch.ones(len(first), dtype=torch.bool))
        return compare(first, *others)

    monkeypatch.setattr(module, "relocated", with_a_gap)
    assert one.save().obstacles == {one.entries[3]: "an address in a gap"}


def test_an_operation_between_pieces_on_memory_of_its_own_is_not_saved(world: Make) -> None:
    one = world()
    one.capture()
    static = {name: each for name, each in one.static().items() if name != "net.extra"}
    obstacles = one.save(static).obstacles
    reason = "tests.executor.toys.add_in_place is given a tensor of no region"
    assert {entry: obstacles[entry] for entry in one.entries[:2]} == dict.fromkeys(one.entries[:2], reason)


def test_outputs_that_json_cannot_keep_are_not_saved(world: Make) -> None:
    class Odd(World):
        def run(self, num_tokens: int) -> Any:
            return {num_tokens: super().run(num_tokens)["logits"]}

    one = world(kind=Odd)
    one.capture()
    assert set(one.save().obstacles.values()) == {"a dict"}


def test_numbers_in_outputs_are_kept(world: Make) -> None:
    class Numbered(World):
        def run(self, num_tokens: int) -> Any:
            return [super().run(num_tokens)["logits"], num_tokens, "name", None, True, 0.5]

    one = world(kind=Numbered)
    content, outputs = saved_by(one)
    two = world(kind=Numbered)
    assert not refused(two.restore(content, outputs))
    assert two.replay(two.entries[0])[1:] == [8, "name", None, True, 0.5]


def test_the_pool_of_the_file_is_that_of_the_capture(world: Make) -> None:
    one = world(plan=plan_of("mode: FULL, num_tokens: 70000"))
    one.net = type(one.net)(rows=70_000)
    saved = unpacked(saved_by(one)[0])
    assert len(saved.pool_sizes) > 1
    two = world(plan=one.plan)
    two.net = type(one.net)(rows=70_000)
    report = two.restore(saved_content(saved), one.manager.output_buffers)
    assert not refused(report)
    assert two.manager.pool.num_bytes <= one.manager.pool.num_bytes
    two.check()


def saved_content(saved: Any) -> bytes:
    return bytes(saved.content)
