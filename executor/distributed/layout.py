"""Which rank of a job does what: data-parallel groups outermost, then pipeline stages, then tensor parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from attrs import frozen

from executor.errors import RanksError
from planner.documents.deployment import Deployment

Dimension: TypeAlias = Literal["data", "pipeline", "tensor"]

DIMENSIONS: tuple[Dimension, ...] = ("data", "pipeline", "tensor")


@frozen
class Layout:
    """How many ranks share a job, in each dimension. Source of the order: vLLM 0.33.

    Raises:
        RanksError: a size below 1.
    """

    data: int = 1
    pipeline: int = 1
    tensor: int = 1

    def __attrs_post_init__(self) -> None:
        for name in DIMENSIONS:
            if getattr(self, name) < 1:
                raise RanksError(f"{name} parallel size is {getattr(self, name)}; give 1 or more")

    @classmethod
    def of(cls, deployment: Deployment) -> Layout:
        """That of a deployment."""
        parallel = deployment.parallel
        return cls(
            parallel.data_parallel_size or 1,
            parallel.pipeline_parallel_size or 1,
            parallel.tensor_parallel_size or 1,
        )

    @property
    def sizes(self) -> tuple[int, int, int]:
        """In the order of ``DIMENSIONS``."""
        return self.data, self.pipeline, self.tensor

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.data * self.pipeline * self.tensor

    def require(self, world_size: int) -> None:
        """Refuses a job of another number of ranks.

        Raises:
            RanksError: it has one.
        """
        if world_size != self.world_size:
            raise RanksError(
                f"the job has {world_size} ranks, but data {self.data} x pipeline {self.pipeline} x "
                f"tensor {self.tensor} is {self.world_size}; start that many, or change the sizes"
            )

    def place(self, rank: int, dimension: Dimension) -> int:
        """Where ``rank`` is along ``dimension``."""
        _, stages, parts = self.sizes
        return {"data": rank // (stages * parts), "pipeline": rank // parts % stages, "tensor": rank % parts}[
            dimension
        ]

    def groups(self, dimension: Dimension) -> Sequence[tuple[int, ...]]:
        """The ranks that differ in nothing but their place along ``dimension``, group by group."""
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.world_size):
            others = tuple(self.place(rank, name) for name in DIMENSIONS if name != dimension)
            found.setdefault(others, []).append(rank)
        return [tuple(ranks) for ranks in found.values()]
