"""Dispatch below autograd: the same results, on tensors like any others."""

from __future__ import annotations

import torch

from executor.below_autograd import below_autograd
from executor.guide import CaptureOptions
from executor.manager import CudaGraphManager
from tests.executor.toys import Toy, sizes_plan


def test_tensors_made_below_autograd_can_be_updated_and_differentiated_outside() -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    with torch.no_grad(), below_autograd():
        made = torch.zeros(4)
        made[1:3].add_(2)
    made.add_(1)
    (weight * made).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [1, 3, 3, 1]


def test_autograd_is_back_after_the_block() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    with below_autograd():
        assert not (weight * 2).requires_grad
    assert (weight * 2).requires_grad


def test_a_capture_below_autograd_replays_what_eager_gives() -> None:
    manager, toy = CudaGraphManager(sizes_plan(4, 2), device="cpu"), Toy(4)
    assert not manager.capture(toy.create_forward, options=CaptureOptions(below_autograd=True)).failed
    for size in (4, 2):
        toy.inputs.normal_()
        desc = manager.dispatch(num_reqs=size, num_tokens=size, uniform_token_count=1)  # type: ignore[call-arg]
        assert torch.equal(manager.run_fullgraph(desc), toy.run(size))  # type: ignore[arg-type]
