"""What was measured: records of earlier captures in the terms of an estimate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen

from planner.descriptors import PlanEntry
from planner.documents.deployment import Deployment
from planner.documents.estimates import MEASURED


@frozen(kw_only=True)
class Measurement:
    """The capture of one family on one rank.

    ``is_of_plan`` says that these are the graphs of the plan that is estimated, in its deployment;
    otherwise ``deployment`` is the one that was captured, ``None`` where it is not known. ``num_bytes`` is
    what pool and graphs took, ``pool_bytes`` what the pool held afterwards, that of earlier families
    included. ``static_bytes`` are buffers, 0 where they were not measured. ``created`` is in seconds since
    1970.
    """

    family: str
    entries: tuple[PlanEntry, ...]
    seconds: float
    num_bytes: int
    pool_bytes: int = 0
    static_bytes: int = 0
    gpu: str
    torch: str
    is_of_plan: bool = False
    deployment: Deployment | None = None
    created: float = 0.0

    @property
    def source(self) -> str:
        """Where it was measured, as a quantity names it."""
        return f"{MEASURED} {self.gpu} (torch {self.torch})"


def of_plan(
    measurements: Iterable[Measurement], family: str, entries: Sequence[PlanEntry], gpu: str | None
) -> Measurement | None:
    """The measurement of these very graphs: rather on the deployment's own device, rather a later one."""
    found = [
        one
        for one in measurements
        if one.is_of_plan and one.family == family and frozenset(one.entries) == frozenset(entries)
    ]
    return max(found, key=lambda one: (is_on(one, gpu), one.created), default=None)


def is_on(measurement: Measurement, gpu: str | None) -> bool:
    """Whether it was measured on a device that is called so."""
    return gpu is not None and _bare(gpu) in _bare(measurement.gpu)


def _bare(name: str) -> str:
    return "".join(character for character in name.upper() if character.isalnum()).removeprefix("NVIDIA")
