"""Small plans and forwards that tests of capture share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import define, field

from executor.breaks import graph_break
from executor.capture_loop import Forward
from planner import Plan, load_plan
from planner.descriptors import BatchExecutionDescriptor
from planner.modes import CUDAGraphMode

WIDTH = 4


def plan_of(*entries: str) -> Plan:
    """A hand-written plan with these entries of ``target``, each as YAML."""
    lines = "\n".join(f"  - {{{entry}}}" for entry in entries)
    return load_plan(f"apiVersion: graphplan/v1\nkind: Plan\ngraphs:\n  target:\n{lines}\n")


def sizes_plan(*sizes: int) -> Plan:
    """FULL decode entries of one token a request."""
    return plan_of(*(f"mode: FULL, num_tokens: {n}, num_reqs: {n}, uniform_token_count: 1" for n in sizes))


def v1_plan() -> Plan:
    """A hand-written plan of the V1 runner: decode graphs of 1, 2 and 4 requests."""
    return load_plan(
        """
apiVersion: graphplan/v1
kind: Plan
resolved:
  target:
    {runner: v1, cudagraph_mode: FULL_DECODE_ONLY, cudagraph_capture_sizes: [1, 2, 4], max_num_seqs: 4}
graphs:
  target:
  - {mode: FULL, num_tokens: 4, num_reqs: 4, uniform_token_count: 1}
  - {mode: FULL, num_tokens: 2, num_reqs: 2, uniform_token_count: 1}
  - {mode: FULL, num_tokens: 1, num_reqs: 1, uniform_token_count: 1}
"""
    )


@graph_break
def add_in_place(total: torch.Tensor, term: torch.Tensor) -> None:
    """A marked operation that writes into its first argument."""
    total.add_(term)


@define
class Toy:
    """A model of two matrix products over static inputs, with a marked operation between them."""

    max_tokens: int
    device: str = "cpu"
    calls: int = 0
    inputs: torch.Tensor = field(init=False)
    extra: torch.Tensor = field(init=False)
    weight: torch.Tensor = field(init=False)
    spoil: Callable[[BatchExecutionDescriptor, torch.Tensor], Any] | None = None

    def __attrs_post_init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.weight = torch.randn(WIDTH, WIDTH, generator=generator).to(self.device)
        self.inputs = torch.randn(self.max_tokens, WIDTH, generator=generator).to(self.device)
        self.extra = torch.randn(self.max_tokens, WIDTH, generator=generator).to(self.device)

    def create_forward(self, desc: BatchExecutionDescriptor, warmup: bool) -> Forward:
        """The factory that managers are given."""

        def forward(cg_mode: CUDAGraphMode) -> torch.Tensor:  # noqa: ARG001
            self.calls += 1
            if self.spoil is not None and not warmup:
                self.spoil(desc, self.inputs)
            return self.run(desc.num_tokens)

        return forward

    def run(self, num_tokens: int) -> torch.Tensor:
        """The forward itself."""
        hidden = self.inputs[:num_tokens] @ self.weight
        add_in_place(hidden, self.extra[:num_tokens])
        return torch.relu(hidden) @ self.weight + 1
