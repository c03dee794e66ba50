"""The collectives of a forward: where tensor-parallel ranks add up their parts of a result."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import torch.distributed as dist
from attrs import define, field
from torch.distributed.device_mesh import DeviceMesh


@define(eq=False)
class Collectives:
    """All-reduces among the ranks of ``mesh``, of one dimension, by PyTorch's own process group.

    They become part of a graph as any other operation does. Ranks that replay it have to have recorded
    the same ones in the same order, which ``taken`` tells.
    """

    mesh: DeviceMesh
    _count: int = field(default=0, init=False)
    _digest: Any = field(factory=hashlib.sha256, init=False)
    _operation: dist.ReduceOp.RedOpType = field(init=False)

    def __attrs_post_init__(self) -> None:
        # The mean of one rank is its sum. NCCL launches a kernel for it, so that also a graph of one
        # rank holds what it holds on many; a sum in place of one rank is left out.
        single = self.mesh.size() == 1 and self.mesh.device_type == "cuda"
        self._operation = dist.ReduceOp.AVG if single else dist.ReduceOp.SUM

    @property
    def size(self) -> int:
        """Ranks."""
        return self.mesh.size()

    def add_up(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of every rank's ``part``, in its place."""
        self._count += 1
        self._digest.update(f"all_reduce {part.dtype} {tuple(part.shape)}\n".encode())
        dist.all_reduce(part, self._operation, group=self.mesh.get_group())
        return part

    def taken(self) -> tuple[int, str]:
        """How many the model's Python ran since the last call, and a digest of which in what order."""
        taken = self._count, self._digest.hexdigest()[:16]
        self._count, self._digest = 0, hashlib.sha256()
        return taken
