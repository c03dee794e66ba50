"""NCCL on one GPU: a group of one rank, its all-reduces in every graph."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from executor.distributed.capture import CaptureLockStep
from executor.distributed.collectives import Collectives
from executor.distributed.ranks import Ranks
from executor.guide import CaptureOptions
from executor.manager import CudaGraphManager
from executor.verify import verify_entries
from planner.descriptors import BatchExecutionDescriptor
from planner.modes import CUDAGraphMode
from tests.executor.toys import Toy, sizes_plan

PROJECT = Path(__file__).resolve().parents[3]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU; tools/test_gpu runs it"),
]


def test_nccl_is_in_every_graph_and_every_step_is_that_of_one_process() -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    command = [sys.executable, *torchrun, "tools/run_distributed.py", "--device", "cuda"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = json.loads(done.stdout.splitlines()[-1])["ranks"]
    assert report["ok"]
    assert report["captured"] == report["entries"] == report["recorded"] == 9


@pytest.fixture
def collectives(tmp_path: Path) -> Iterator[Collectives]:
    """NCCL among one rank, and gloo beside it."""
    torch.cuda.set_device(0)
    torch.zeros(1, device="cuda")  # otherwise PyTorch warns that no device was chosen
    dist.init_process_group(
        "cpu:gloo,cuda:nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield Collectives(init_device_mesh("cuda", (1,), mesh_dim_names=("tensor",)))
    dist.destroy_process_group()


def test_an_entry_that_fails_behind_an_all_reduce_leaves_the_others_right(collectives: Collectives) -> None:
    toy = Toy(8, device="cuda")

    def create(desc: BatchExecutionDescriptor, warmup: bool) -> Any:
        def forward(cg_mode: CUDAGraphMode) -> torch.Tensor:  # noqa: ARG001
            total = collectives.add_up(toy.run(desc.num_tokens))
            if desc.num_tokens == 4 and not warmup:
                total.sum().item()
            return total

        return forward

    manager = CudaGraphManager(sizes_plan(8, 4, 2, 1), device="cuda")
    lock_step = CaptureLockStep(Ranks.of_job(timeout=30), collectives)
    report = manager.capture(create, options=CaptureOptions(lock_step=lock_step))
    assert [record.entry.num_tokens for record in report.captured] == [8, 2, 1]
    assert all(verdict.ok for verdict in verify_entries(manager, create))
    names = [manager.kernel_names(entry) for entry in manager.captured_entries]
    assert all(
        any("nccl" in name.lower() or "onerankreduce" in name.lower() for name in each or ())
        for each in names
    )
