"""Scaling: what the nearest capture that was measured says about graphs that never were."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve, frozen

from planner.estimate.calibration import Calibration
from planner.estimate.formula import FamilyCost, FamilyRequest, family_cost, first_bytes, first_seconds
from planner.estimate.measured import Measurement, is_on
from planner.estimate.ranges import OTHER_MODEL, SCALED, Range
from planner.estimate.shape import Shape, family_shape

OTHER_DEVICE = 4.0
"""How much further away a capture on another device counts."""


@frozen(kw_only=True)
class Scale:
    """What formulas are multiplied with so that they give what was measured of other graphs."""

    measurement: Measurement
    seconds: float
    pool: float
    graphs: float
    range: Range

    @property
    def source(self) -> str:
        """Where it was measured, and of how many entries."""
        return f"{self.measurement.source}, scaled from {len(self.measurement.entries)} entries"


def nearest(
    measurements: Iterable[Measurement],
    family: str,
    request: FamilyRequest,
    gpu: str | None,
    constants: Calibration,
) -> Scale | None:
    """The scale of the capture of ``family`` whose cost by formula is the nearest to that of ``request``."""
    wanted = _total(family_cost(request, constants), constants)
    best: tuple[float, float, Measurement, FamilyRequest] | None = None
    for one in measurements:
        if one.family != family or not one.entries or one.seconds <= 0:
            continue
        other = evolve(request, entries=one.entries, shape=_shape_of(one, family, request.shape))
        ratio = _total(family_cost(other, constants), constants) / wanted
        distance = max(ratio, 1 / ratio) * (1 if gpu is None or is_on(one, gpu) else OTHER_DEVICE)
        if best is None or (distance, -one.created) < best[:2]:
            best = distance, -one.created, one, other
    return None if best is None else _scale(best[2], best[3], request, gpu, constants)


def _shape_of(measurement: Measurement, family: str, otherwise: Shape) -> Shape:
    return otherwise if measurement.deployment is None else family_shape(measurement.deployment, family)


def _total(cost: FamilyCost, constants: Calibration) -> float:
    """Seconds of a family by formula, with what is set up first."""
    return sum(cost.seconds.values()) + first_seconds(cost.sizes, len(cost.seconds), constants)


def _scale(
    measurement: Measurement,
    other: FamilyRequest,
    request: FamilyRequest,
    gpu: str | None,
    constants: Calibration,
) -> Scale:
    cost = family_cost(other, constants)
    pool = min(measurement.pool_bytes, measurement.num_bytes)
    graphs = cost.graph_bytes + first_bytes(cost.sizes, constants)
    is_same = measurement.deployment is not None and other.shape == request.shape
    is_same = is_same and (gpu is None or is_on(measurement, gpu))
    return Scale(
        measurement=measurement,
        seconds=measurement.seconds / _total(cost, constants),
        pool=pool / cost.pool_bytes if pool else 1.0,
        graphs=(measurement.num_bytes - pool) / graphs,
        range=SCALED if is_same else SCALED.wider(OTHER_MODEL),
    )
