"""``estimate``: what all graphs of a plan take, by measurement where there is one, else by formula."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define, evolve, field

from planner.documents.estimates import FORMULA, Estimate, Quantity
from planner.documents.plan import Plan
from planner.estimate import ranges
from planner.estimate.calibration import Calibration, calibration
from planner.estimate.fit import device_fit
from planner.estimate.formula import (
    BLOCK_SIZE,
    FamilyCost,
    FamilyRequest,
    family_cost,
    first_bytes,
    first_seconds,
)
from planner.estimate.measured import Measurement, of_plan
from planner.estimate.nearest import Scale, nearest
from planner.estimate.ranges import Range
from planner.estimate.shape import family_shape
from planner.modes import CUDAGraphMode

GIB = 2**30
STATIC, POOL, GRAPHS, FIRST = "static", "pool", "graphs", "first"


def estimate(
    plan: Plan,
    *,
    measurements: Sequence[Measurement] = (),
    gathered_tokens: int | None = None,
    constants: Calibration | None = None,
) -> Estimate:
    """What the graphs of one rank of ``plan`` take.

    ``measurements`` replace the formulas: those of the plan's own graphs as they are, otherwise the nearest
    one of each family scaled. ``gathered_tokens`` estimates a capture with the project's reference models
    instead of an engine's server, with so many tokens of each request. ``constants`` are those of
    ``calibration()`` unless others are given.
    """
    constants = constants or calibration()
    sums = _Sums(plan, tuple(measurements), gathered_tokens, constants)
    for family in plan.graphs:
        sums.add(family)
    found = sums.result()
    return evolve(found, device=device_fit(plan, found.memory_gib.expected))


def family_request(plan: Plan, family: str, gathered_tokens: int | None = None) -> FamilyRequest:
    """The entries of ``family`` with what their cost depends on."""
    return FamilyRequest(
        entries=plan.graphs[family],
        shape=family_shape(plan.deployment, family),
        resolved=plan.resolved.get(family),
        block_size=plan.deployment.model.block_size or BLOCK_SIZE,
        gathered_tokens=gathered_tokens,
    )


@define
class _Total:
    """A quantity that is summed up part by part."""

    parts: dict[str, float] = field(factory=dict)
    low: float = 0.0
    high: float = 0.0

    def add(self, part: str, amount: float, within: Range) -> None:
        self.parts[part] = self.parts.get(part, 0.0) + amount
        self.low += amount * within.low
        self.high += amount * within.high

    def quantity(self, source: str, digits: int) -> Quantity:
        """The sum, rounded; never 0 where there is anything."""
        return Quantity(
            expected=_rounded(sum(self.parts.values()), digits),
            low=_rounded(self.low, digits),
            high=_rounded(self.high, digits),
            source=source,
            parts={part: _rounded(amount, digits) for part, amount in self.parts.items()},
        )


@define
class _Sums:
    """The families of a plan, added up in capture order: later ones find the pool of earlier ones."""

    plan: Plan
    measurements: tuple[Measurement, ...]
    gathered_tokens: int | None
    constants: Calibration
    memory: _Total = field(factory=_Total)
    seconds: _Total = field(factory=_Total)
    num_graphs: int = 0
    pool: float = 0.0
    sizes: set[int] = field(factory=set)
    sources: dict[str, list[str]] = field(factory=dict)

    def add(self, family: str) -> None:
        request = family_request(self.plan, family, self.gathered_tokens)
        if not request.entries:
            return
        cost = family_cost(request, self.constants)
        gpu = self.plan.deployment.device.name
        measured = of_plan(self.measurements, family, request.entries, gpu)
        self.num_graphs += cost.num_graphs
        if measured is not None:
            self._add_measured(family, measured, cost)
        else:
            scale = nearest(self.measurements, family, request, gpu, self.constants)
            self._add_formula(family, cost, scale, is_assumed=request.shape.is_assumed)
        self.sizes |= cost.sizes

    def _add_measured(self, family: str, measured: Measurement, cost: FamilyCost) -> None:
        within = ranges.MEASURED_BYTES
        grown = min(max(measured.pool_bytes - self.pool, 0), measured.num_bytes)
        self.pool = max(self.pool, measured.pool_bytes)
        self.memory.add(STATIC, (measured.static_bytes or cost.static_bytes) / GIB, within)
        self.memory.add(POOL, grown / GIB, within)
        self.memory.add(GRAPHS, (measured.num_bytes - grown) / GIB, within)
        share = measured.seconds / sum(cost.seconds.values())
        self._add_seconds(family, cost.seconds, share, ranges.MEASURED_SECONDS)
        self.sources.setdefault(measured.source, []).append(family)

    def _add_formula(self, family: str, cost: FamilyCost, scale: Scale | None, *, is_assumed: bool) -> None:
        within = ranges.FORMULA if self.gathered_tokens is None else ranges.CALIBRATED
        within = within.wider(ranges.UNKNOWN_MODEL) if is_assumed else within
        within = within if scale is None else scale.range
        by_pool, by_graphs, by_seconds = (1.0,) * 3
        if scale is not None:
            by_pool, by_graphs, by_seconds = scale.pool, scale.graphs, scale.seconds
        new = cost.sizes - self.sizes
        begun = bool(self.sizes)
        once = first_bytes(new, self.constants) - begun * self.constants.first_bytes
        pool = by_pool * cost.pool_bytes
        self.memory.add(STATIC, cost.static_bytes / GIB, ranges.MEASURED_BYTES)
        self.memory.add(POOL, max(pool - self.pool, 0) / GIB, within)
        self.memory.add(GRAPHS, by_graphs * (cost.graph_bytes + once) / GIB, within)
        self.pool = max(self.pool, pool)
        first = first_seconds(new, len(cost.seconds), self.constants) - begun * self.constants.first_seconds
        self.seconds.add(FIRST, by_seconds * first, within)
        self._add_seconds(family, cost.seconds, by_seconds, within)
        self.sources.setdefault(FORMULA if scale is None else scale.source, []).append(family)

    def _add_seconds(
        self, family: str, seconds: Mapping[CUDAGraphMode, float], factor: float, within: Range
    ) -> None:
        for mode, amount in seconds.items():
            self.seconds.add(f"{family} {mode}", factor * amount, within)

    def result(self) -> Estimate:
        source = self._source()
        return Estimate(
            num_graphs=self.num_graphs,
            memory_gib=self.memory.quantity(source, 3),
            seconds=self.seconds.quantity(source, 2),
        )

    def _source(self) -> str:
        """One source for all families, or each with the families that go by it, measurements first."""
        if len(self.sources) < 2:
            return next(iter(self.sources), FORMULA)
        ordered = sorted(self.sources.items(), key=lambda item: item[0] == FORMULA)
        return "; ".join(f"{source} for {', '.join(families)}" for source, families in ordered)


def _rounded(amount: float, digits: int) -> float:
    return max(round(amount, digits), 1 / 10**digits) if amount > 0 else 0.0
