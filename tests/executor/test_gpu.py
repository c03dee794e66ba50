"""Capture on a GPU: faults are unwound, memory is shared and given back, kernels are what eager runs."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from executor.guide import CaptureOptions
from executor.manager import CudaGraphManager
from executor.verify import verify_entries
from planner.descriptors import BatchExecutionDescriptor
from planner.modes import CUDAGraphMode
from tests.executor.toys import WIDTH, Toy, plan_of, sizes_plan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU; tools/test_gpu runs it"),
]

SIZES = (64, 32, 16, 8, 4, 2, 1)


def gpu_toy(spoil: Any = None) -> Toy:
    return Toy(64, device="cuda", spoil=spoil)


def check_all(manager: CudaGraphManager, toy: Toy, sizes: tuple[int, ...] = SIZES) -> None:
    for size in (*sizes, *reversed(sizes)):
        desc = manager.dispatch(num_reqs=size, num_tokens=size, uniform_token_count=1)  # type: ignore[call-arg]
        assert desc.cg_mode is CUDAGraphMode.FULL  # type: ignore[union-attr]
        toy.inputs.normal_()
        output = manager.run_fullgraph(desc)  # type: ignore[arg-type]
        torch.testing.assert_close(output, toy.run(desc.num_tokens))  # type: ignore[union-attr]


def spoil_with_item(desc: BatchExecutionDescriptor, inputs: torch.Tensor) -> None:
    if desc.num_tokens == 16:
        inputs.sum().item()


def spoil_with_memory(desc: BatchExecutionDescriptor, inputs: torch.Tensor) -> None:
    if desc.num_tokens == 16:
        free, _ = torch.cuda.mem_get_info()
        torch.empty(2 * free, dtype=torch.uint8, device=inputs.device)


def spoil_last_with_item(desc: BatchExecutionDescriptor, inputs: torch.Tensor) -> None:
    if desc.num_tokens == 1:
        inputs.sum().item()


@pytest.mark.parametrize("spoil", [spoil_with_item, spoil_with_memory, spoil_last_with_item])
def test_a_failed_entry_leaves_stream_pool_and_generators_usable(spoil: Any) -> None:
    manager, toy = CudaGraphManager(sizes_plan(*SIZES)), gpu_toy(spoil)
    report = manager.capture(toy.create_forward)
    (failed,) = report.failed
    assert failed.error
    rest = tuple(size for size in SIZES if size != failed.entry.num_tokens)
    check_all(manager, toy, rest)
    torch.randn(8, device="cuda")
    assert not torch.cuda.is_current_stream_capturing()
    toy.spoil = None
    report = manager.capture(toy.create_forward)
    assert not report.failed
    check_all(manager, toy)


def test_a_failure_does_not_route_ordinary_memory_into_the_pool() -> None:
    manager, toy = CudaGraphManager(sizes_plan(*SIZES)), gpu_toy(spoil_last_with_item)
    manager.capture(toy.create_forward)
    tensor = torch.empty(1 << 20, device="cuda")
    assert not manager.pool.holds()(tensor)  # type: ignore[attr-defined]


@pytest.mark.parametrize("spoil", [None, spoil_with_item, spoil_with_memory])
def test_released_graphs_give_their_memory_back(spoil: Any) -> None:
    class Wide(Toy):
        def run(self, num_tokens: int) -> torch.Tensor:
            return self.inputs[:num_tokens].repeat(1, 1 << 18).sum(1, keepdim=True)

    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    manager, toy = CudaGraphManager(sizes_plan(*SIZES)), Wide(64, device="cuda", spoil=spoil)
    report = manager.capture(toy.create_forward)
    assert torch.cuda.memory_reserved() - before >= 200 << 20
    assert report.num_bytes >= 200 << 20
    manager.release_graphs()
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before <= 32 << 20


def test_pieces_on_a_gpu_run_operations_between_them() -> None:
    plan = plan_of("mode: PIECEWISE, num_tokens: 64", "mode: PIECEWISE, num_tokens: 8")
    manager, toy = CudaGraphManager(plan), gpu_toy()
    report = manager.capture(toy.create_forward)
    assert [record.num_graphs for record in report.records] == [2, 2]
    for tokens in (64, 8, 64):
        toy.inputs.normal_()
        toy.extra.normal_()
        desc = manager.dispatch(num_reqs=3, num_tokens=tokens)  # type: ignore[call-arg]
        torch.testing.assert_close(manager.run_piecewise(desc), toy.run(tokens))  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_compiled_model_is_recorded_in_pieces() -> None:
    plan = plan_of("mode: PIECEWISE, num_tokens: 64")
    toy = gpu_toy()
    compiled = torch.compile(toy.run, dynamic=False)

    def create(desc: BatchExecutionDescriptor, warmup: bool) -> Any:  # noqa: ARG001
        return lambda cg_mode: compiled(desc.num_tokens)  # noqa: ARG005

    manager = CudaGraphManager(plan)
    assert not manager.capture(create).failed
    toy.inputs.normal_()
    desc = manager.dispatch(num_reqs=3, num_tokens=64)  # type: ignore[call-arg]
    torch.testing.assert_close(manager.run_piecewise(desc), toy.run(64))  # type: ignore[arg-type]


def test_every_entry_agrees_with_eager_and_with_itself() -> None:
    manager, toy = CudaGraphManager(sizes_plan(*SIZES)), gpu_toy()
    manager.capture(toy.create_forward)
    assert all(verdict.ok for verdict in verify_entries(manager, toy.create_forward))


def test_records_know_nodes_bytes_and_digest_of_a_graph() -> None:
    report = CudaGraphManager(sizes_plan(*SIZES)).capture(
        gpu_toy().create_forward, options=CaptureOptions(inspect=True)
    )
    again = CudaGraphManager(sizes_plan(*SIZES)).capture(
        gpu_toy().create_forward, options=CaptureOptions(inspect=True)
    )
    assert all(record.num_nodes and record.num_nodes >= 4 for record in report.records)
    assert [record.digests for record in report.records] == [record.digests for record in again.records]


def test_random_numbers_differ_from_replay_to_replay() -> None:
    class Noisy(Toy):
        def run(self, num_tokens: int) -> torch.Tensor:
            return torch.rand(num_tokens, WIDTH, device="cuda")

    manager = CudaGraphManager(sizes_plan(4))
    manager.capture(Noisy(4, device="cuda").create_forward)
    desc = manager.dispatch(num_reqs=4, num_tokens=4, uniform_token_count=1)  # type: ignore[call-arg]
    first = manager.run_fullgraph(desc).clone()  # type: ignore[arg-type]
    assert not torch.equal(first, manager.run_fullgraph(desc))  # type: ignore[arg-type]


def test_two_managers_share_a_pool_and_keep_their_outputs() -> None:
    one, first = CudaGraphManager(sizes_plan(64)), gpu_toy()
    one.capture(first.create_forward)
    two, second = CudaGraphManager(sizes_plan(64), pool=one.pool), gpu_toy()
    two.capture(second.create_forward)
    desc = one.dispatch(num_reqs=64, num_tokens=64, uniform_token_count=1)  # type: ignore[call-arg]
    kept = one.run_fullgraph(desc)  # type: ignore[arg-type]
    expected = kept.clone()
    second.inputs.normal_()
    two.run_fullgraph(desc)  # type: ignore[arg-type]
    torch.cuda.synchronize()
    assert torch.equal(kept, expected)
    one.release_graphs()
    torch.testing.assert_close(two.run_fullgraph(desc), second.run(64))  # type: ignore[arg-type]


def test_a_memory_budget_is_kept() -> None:
    class Wide(Toy):
        def run(self, num_tokens: int) -> torch.Tensor:
            return self.inputs[:num_tokens].repeat(1, 1 << 18).sum(1, keepdim=True)

    manager = CudaGraphManager(sizes_plan(*SIZES), memory_budget=150 << 20)
    report = manager.capture(Wide(64, device="cuda").create_forward)
    assert [record.entry.num_tokens for record in report.failed] == [64]
    assert report.num_bytes <= 150 << 20
