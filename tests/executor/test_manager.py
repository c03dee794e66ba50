"""The manager on the CPU: exactly the plan's entries, and what happens when one cannot be had."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from attrs import evolve

from executor.backends.tape import TapePool
from executor.errors import CaptureError, ReplayError
from executor.guide import CaptureOptions
from executor.manager import CudaGraphManager
from executor.records import CaptureRecord
from planner.descriptors import BatchExecutionDescriptor
from planner.errors import FamilyError
from planner.modes import CUDAGraphMode
from tests.executor.toys import Toy, plan_of, sizes_plan, v1_plan

PIECES = "mode: PIECEWISE, num_tokens: 8"
FULL = "mode: FULL, num_tokens: 4, num_reqs: 4, uniform_token_count: 1"


def manager_of(*sizes: int, **options: Any) -> CudaGraphManager:
    return CudaGraphManager(sizes_plan(*sizes), device="cpu", **options)


def batch(manager: CudaGraphManager, num_reqs: int) -> BatchExecutionDescriptor:
    return manager.dispatch(num_reqs=num_reqs, num_tokens=num_reqs, uniform_token_count=1)  # type: ignore[call-arg, return-value]


def test_every_entry_of_the_plan_is_captured_and_no_other() -> None:
    plan = plan_of(PIECES, FULL)
    manager, toy = CudaGraphManager(plan, device="cpu"), Toy(8)
    report = manager.capture(toy.create_forward)
    assert [record.entry for record in report.captured] == list(plan.entries("target"))
    assert manager.captured_entries == plan.entries("target")
    assert not report.failed


def test_replay_gives_what_eager_gives_and_the_models_python_does_not_run() -> None:
    manager, toy = manager_of(8, 4, 2, 1), Toy(8)
    manager.capture(toy.create_forward)
    calls = toy.calls
    for num_reqs in (8, 3, 1, 2, 7):
        desc = batch(manager, num_reqs)
        toy.inputs.normal_()
        output = manager.run_fullgraph(desc)
        assert output.shape[0] == desc.num_tokens >= num_reqs
        assert toy.calls == calls
        assert torch.equal(output, toy.run(desc.num_tokens))


def test_the_factory_is_asked_to_warm_up_once_in_mode_none_and_then_afresh() -> None:
    asked: list[tuple[int, bool, CUDAGraphMode]] = []
    toy = Toy(8)

    def create(desc: BatchExecutionDescriptor, warmup: bool) -> Any:
        forward = toy.create_forward(desc, warmup)

        def noted(cg_mode: CUDAGraphMode) -> Any:
            asked.append((desc.num_tokens, warmup, cg_mode))
            return forward(cg_mode)

        return noted

    CudaGraphManager(plan_of(PIECES, FULL), device="cpu").capture(create)
    none, pieces = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE
    assert asked == [(8, True, none), (8, False, pieces), (4, True, none), (4, False, none)]


def test_pieces_run_marked_operations_eagerly_between_them() -> None:
    manager, toy = CudaGraphManager(plan_of(PIECES), device="cpu"), Toy(8)
    report = manager.capture(toy.create_forward)
    assert report.records[0].num_graphs == 2
    toy.inputs.normal_()
    toy.extra.normal_()
    desc = manager.dispatch(num_reqs=3, num_tokens=8)  # type: ignore[call-arg]
    assert desc.cg_mode is CUDAGraphMode.PIECEWISE  # type: ignore[union-attr]
    assert torch.equal(manager.run_piecewise(desc), toy.run(8))  # type: ignore[arg-type]


def test_a_value_that_was_baked_in_goes_stale_as_on_a_gpu() -> None:
    class Counting(Toy):
        def run(self, num_tokens: int) -> torch.Tensor:
            return self.inputs[:num_tokens] * float(self.calls)

    manager, toy = manager_of(2), Counting(2)
    manager.capture(toy.create_forward)
    captured_with = toy.calls
    toy.calls = 100
    assert torch.equal(manager.run_fullgraph(batch(manager, 2)), toy.inputs * float(captured_with))


def test_outputs_outlive_replays_of_other_entries() -> None:
    manager, toy = manager_of(8, 4), Toy(8)
    manager.capture(toy.create_forward)
    kept = manager.run_fullgraph(batch(manager, 4))[:0]
    output = manager.run_fullgraph(batch(manager, 8))
    assert torch.equal(output, toy.run(8))
    assert kept.shape == (0, 4)


def test_two_families_share_a_pool_and_keep_their_outputs() -> None:
    one, other = manager_of(8), Toy(8)
    one.capture(other.create_forward)
    second, toy = manager_of(8, pool=one.pool), Toy(8)
    second.capture(toy.create_forward)
    assert second.pool is one.pool
    first_output = one.run_fullgraph(batch(one, 8))
    expected = first_output.clone()
    toy.inputs.normal_()
    second.run_fullgraph(batch(second, 8))
    assert torch.equal(first_output, expected)


def test_an_entry_that_reads_a_value_back_is_left_out_and_its_batches_go_on() -> None:
    def spoil(desc: BatchExecutionDescriptor, inputs: torch.Tensor) -> None:
        if desc.num_tokens == 4:
            inputs.sum().item()

    manager, toy = manager_of(8, 4, 2), Toy(8, spoil=spoil)
    report = manager.capture(toy.create_forward)
    (failed,) = report.failed
    assert failed.entry.num_tokens == 4
    assert "reads a value back to the host" in str(failed.error)
    assert failed.fix
    for num_reqs, size in ((3, 8), (4, 8), (2, 2), (8, 8)):
        desc = batch(manager, num_reqs)
        assert desc.num_tokens == size
        assert torch.equal(manager.run_fullgraph(desc), toy.run(size))


def test_batches_beyond_the_largest_captured_entry_run_eagerly() -> None:
    def spoil(desc: BatchExecutionDescriptor, _: torch.Tensor) -> None:
        if desc.num_tokens == 8:
            raise torch.OutOfMemoryError("CUDA out of memory")

    manager, toy = manager_of(8, 4), Toy(8, spoil=spoil)
    report = manager.capture(toy.create_forward)
    assert batch(manager, 5).cg_mode is CUDAGraphMode.NONE
    (failed,) = report.failed
    assert str(failed.error).startswith("out of memory")
    assert failed.fix == "max_cudagraph_capture_size: 4, which fitted; or leave the graphs more memory"


@pytest.mark.parametrize("failing", ["warm-up", "recording"])
def test_running_out_of_memory_costs_one_entry(failing: str) -> None:
    toy = Toy(8)

    def create(desc: BatchExecutionDescriptor, warmup: bool) -> Any:
        forward = toy.create_forward(desc, warmup)

        def failing_once(cg_mode: CUDAGraphMode) -> Any:
            if desc.num_tokens == 8 and warmup == (failing == "warm-up"):
                raise torch.OutOfMemoryError("tried to allocate 2 GiB")
            return forward(cg_mode)

        return failing_once

    report = manager_of(8, 4).capture(create)
    assert [record.entry.num_tokens for record in report.captured] == [4]
    assert report.failed[0].error == "out of memory: tried to allocate 2 GiB"


def test_a_fault_of_the_model_itself_is_raised_not_reported() -> None:
    def create(desc: BatchExecutionDescriptor, warmup: bool) -> Any:  # noqa: ARG001
        def broken(cg_mode: CUDAGraphMode) -> Any:  # noqa: ARG001
            raise KeyError("layer")

        return broken

    manager = manager_of(4)
    with pytest.raises(KeyError):
        manager.capture(create)
    assert gc.isenabled()


def test_a_memory_budget_is_not_exceeded() -> None:
    class Wide(Toy):
        def run(self, num_tokens: int) -> torch.Tensor:
            wide = self.inputs[:num_tokens].repeat(1, 1 << 18)
            return wide.sum(1, keepdim=True)

    pool = TapePool()
    manager, toy = manager_of(8, 4, 1, pool=pool, memory_budget=20 << 20), Wide(8)
    report = manager.capture(toy.create_forward)
    assert pool.num_bytes <= 20 << 20
    assert [record.entry.num_tokens for record in report.failed] == [8]
    assert "the budget leaves" in str(report.failed[0].error)
    assert torch.equal(manager.run_fullgraph(batch(manager, 4)), toy.run(4))


def test_an_arena_at_its_limit_is_out_of_memory() -> None:
    class Wide(Toy):
        def run(self, num_tokens: int) -> torch.Tensor:
            return self.inputs[:num_tokens].repeat(1, 1 << 18).sum(1, keepdim=True)

    manager = manager_of(8, 1, pool=TapePool(limit_bytes=8 << 20))
    report = manager.capture(Wide(8).create_forward)
    assert report.failed[0].error == "out of memory: the arena is limited to 8388608 bytes"
    assert [record.entry.num_tokens for record in report.captured] == [1]


def test_capturing_twice_and_releasing_and_capturing_again_works() -> None:
    manager, toy = manager_of(4, 2), Toy(4)
    for _ in range(2):
        manager.capture(toy.create_forward)
        assert torch.equal(manager.run_fullgraph(batch(manager, 4)), toy.run(4))
    desc = batch(manager, 4)
    manager.release_graphs()
    assert batch(manager, 4).cg_mode is CUDAGraphMode.NONE
    with pytest.raises(ReplayError, match="no graphs are captured; call capture first"):
        manager.run_fullgraph(desc)
    manager.capture(toy.create_forward)
    assert torch.equal(manager.run_fullgraph(batch(manager, 4)), toy.run(4))


def test_a_descriptor_of_an_earlier_capture_and_an_equal_one_find_the_graph_of_today() -> None:
    manager, toy = manager_of(4, 2), Toy(4)
    manager.capture(toy.create_forward)
    old = batch(manager, 4)
    for desc in (old, evolve(old), old):
        assert torch.equal(manager.run_fullgraph(desc), toy.run(4))
    manager.capture(toy.create_forward)
    toy.inputs += 1
    assert torch.equal(manager.run_fullgraph(old), toy.run(4))
    for _ in range(50):
        assert torch.equal(manager.run_fullgraph(evolve(old)), toy.run(4))
    manager.discard(manager.captured_entries)
    with pytest.raises(ReplayError, match="no graphs are captured"):
        manager.run_fullgraph(old)


def test_a_graph_that_does_not_exist_is_named() -> None:
    manager = manager_of(4)
    manager.capture(Toy(4).create_forward)
    wrong = BatchExecutionDescriptor(CUDAGraphMode.FULL, 3, 3, 1)
    with pytest.raises(ReplayError, match="no graph of BatchExecutionDescriptor"):
        manager.run_fullgraph(wrong)


def test_progress_is_told_after_each_entry() -> None:
    seen: list[tuple[str, int, int, int]] = []

    def progress(desc: str, done: int, total: int, record: CaptureRecord) -> None:
        seen.append((desc, done, total, record.entry.num_tokens))

    manager_of(4, 2).capture(Toy(4).create_forward, "Capturing", options=CaptureOptions(progress=progress))
    assert seen == [("Capturing", 1, 2, 4), ("Capturing", 2, 2, 2)]


def test_records_tell_time_bytes_nodes_and_digest() -> None:
    report = manager_of(4, 2).capture(Toy(4).create_forward, options=CaptureOptions(inspect=True))
    first, second = report.records
    assert first.num_bytes > 0
    assert first.num_nodes == second.num_nodes == 6
    assert first.seconds > 0
    assert first.warmup_seconds > 0
    assert first.digests != second.digests
    again = manager_of(4, 2).capture(Toy(4).create_forward, options=CaptureOptions(inspect=True))
    assert [record.digests for record in again.records] == [first.digests, second.digests]
    assert report.as_json()["entries"][0]["num_tokens"] == 4


def test_the_collector_of_garbage_is_as_before() -> None:
    gc.disable()
    try:
        manager_of(2).capture(Toy(2).create_forward)
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert gc.get_freeze_count() == 0


def test_entries_of_another_order_are_captured_in_the_order_of_the_file() -> None:
    manager, toy = manager_of(2, 8), Toy(8)
    report = manager.capture(toy.create_forward)
    assert [record.entry.num_tokens for record in report.records] == [2, 8]
    assert torch.equal(manager.run_fullgraph(batch(manager, 2)), toy.run(2))
    assert torch.equal(manager.run_fullgraph(batch(manager, 8)), toy.run(8))


def test_outputs_that_change_their_width_are_refused() -> None:
    class Odd(Toy):
        def run(self, num_tokens: int) -> torch.Tensor:
            return self.inputs[:num_tokens, : num_tokens // 2 + 1].clone()

    with pytest.raises(CaptureError, match="only the first dimension may differ"):
        manager_of(4, 2).capture(Odd(4).create_forward)


def test_a_forward_without_outputs_is_fine() -> None:
    toy = Toy(4)
    result = torch.zeros(4, 4)

    def create(desc: BatchExecutionDescriptor, warmup: bool) -> Any:  # noqa: ARG001
        def forward(cg_mode: CUDAGraphMode) -> None:  # noqa: ARG001
            result[: desc.num_tokens] = toy.inputs[: desc.num_tokens] + 1

        return forward

    manager = manager_of(4)
    manager.capture(create)
    toy.inputs.fill_(3)
    assert manager.run_fullgraph(batch(manager, 4)) is None
    assert result.eq(4).all()


def test_a_family_that_the_plan_lacks_is_named() -> None:
    with pytest.raises(FamilyError):
        CudaGraphManager(sizes_plan(1), "draft", device="cpu")


@pytest.mark.parametrize(("device", "message"), [("meta", "cuda and cpu only"), ("cuda", "no GPU here")])
def test_a_device_without_graphs_is_refused(device: str, message: str) -> None:
    if device == "cuda" and torch.cuda.is_available():
        message = ""
        CudaGraphManager(sizes_plan(1), device=device)
        return
    with pytest.raises(CaptureError, match=message):
        CudaGraphManager(sizes_plan(1), device=device)


def test_a_v1_plan_is_captured_and_found_by_mode_and_descriptor() -> None:

    def spoil(desc: BatchExecutionDescriptor, inputs: torch.Tensor) -> None:
        if desc.num_tokens == 2:
            inputs.sum().item()

    manager, toy = CudaGraphManager(v1_plan(), device="cpu"), Toy(4, spoil=spoil)
    manager.capture(toy.create_forward)
    for num_tokens, size in ((1, 1), (2, 4), (3, 4)):
        key = manager.dispatch(num_tokens=num_tokens, uniform_decode=True)  # type: ignore[call-arg]
        assert key[1].num_tokens == size  # type: ignore[index]
        assert torch.equal(manager.run_fullgraph(key), toy.run(size))  # type: ignore[arg-type]


def test_warming_up_the_first_entry_of_a_mode_only_gives_the_same_graphs() -> None:
    asked: list[tuple[int, bool]] = []
    toy = Toy(8)

    def create(desc: BatchExecutionDescriptor, warmup: bool) -> Any:
        asked.append((desc.num_tokens, warmup))
        return toy.create_forward(desc, warmup)

    manager = manager_of(8, 4, 2)
    assert not manager.capture(create, options=CaptureOptions(warm_up="first")).failed
    assert asked == [(8, True), (8, False), (4, False), (2, False)]
    for size in (8, 4, 2):
        assert torch.equal(manager.run_fullgraph(batch(manager, size)), toy.run(size))


def test_an_entry_that_needs_its_warm_up_gets_it() -> None:
    class Lazy(Toy):
        ready: set[int]

        def run(self, num_tokens: int) -> torch.Tensor:
            if num_tokens not in self.ready:
                self.ready.add(num_tokens)
                self.inputs.sum().item()
            return super().run(num_tokens)

    toy = Lazy(8)
    toy.ready = set()
    manager = manager_of(2, 8)  # the second entry also needs longer outputs
    assert not manager.capture(toy.create_forward, options=CaptureOptions(warm_up="first")).failed
    assert torch.equal(manager.run_fullgraph(batch(manager, 8)), toy.run(8))
