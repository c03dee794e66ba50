"""The trade-off between graphs and padding, and why a plan stands where it does: as decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from attrs import frozen

from planner.describe import counted
from planner.documents.deployment import Json
from planner.documents.plan import Decision
from planner.policies.budgets import cost_of
from planner.policies.covering import maximum_decisions
from planner.policies.expected import Expected
from planner.policies.needs import alignment_decisions
from planner.policies.request import Outcome, PolicyRequest
from planner.policies.smoothing import EIGHTHS, Smoothing
from planner.rules.sizes import SIZES_FIELD
from planner.traffic.histogram import Histogram

POINTS = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Numbers of sizes at which the curve is recorded, beside the chosen one."""


@frozen(kw_only=True)
class Chosen:
    """How many sizes were chosen and why, what they capture, and what they were fitted to."""

    number: int
    because: str
    outcome: Outcome
    smoothing: Smoothing
    expected: Expected
    histogram: Histogram


def decisions_of(
    request: PolicyRequest, chosen: Chosen, numbers: range, outcome_of: Callable[[int], Outcome]
) -> Iterator[Decision]:
    """Why these sizes, how they were fitted, and what other numbers of sizes would have cost."""
    sizes = chosen.outcome.sizes
    because = f"{counted(len(sizes), 'size')}, {chosen.because}: {_padding(chosen, sizes)}"
    because += (
        f"; the engine's own {counted(len(request.engine.sizes), 'size')}: "
        f"{_padding(chosen, request.engine.sizes)}"
    )
    yield Decision(path=SIZES_FIELD, became=list(sizes), rule="traffic", because=because)
    beyond = "mixed batches are covered up to the largest counted, but no further than by the engine"
    yield from maximum_decisions(request, sizes[-1], beyond)
    yield Decision(
        path="capture.traffic",
        became=f"{chosen.smoothing.width}/{EIGHTHS}",
        rule="traffic-smoothing",
        because=_why_smoothed(chosen.smoothing),
    )
    points = {number for number in POINTS if number in numbers} | {chosen.number}
    yield Decision(
        path="capture.max_graphs",
        became=[_point(request, chosen, outcome_of(number)) for number in sorted(points)],
        rule="traffic-curve",
        because="what other numbers of sizes would cost: graphs, the padded share of the counted tokens, and "
        "memory and start-up by estimate",
    )
    yield from alignment_decisions(request.needs)


def _padding(chosen: Chosen, sizes: Sequence[int]) -> str:
    """What sizes do to the traffic that was counted."""
    text = f"{chosen.expected.padding(sizes, chosen.histogram):.1%} of the counted tokens are padding"
    uncovered = chosen.expected.uncovered(sizes, chosen.histogram)
    return f"{text}, {uncovered:.1%} of the steps have no graph" if uncovered else text


def _why_smoothed(smoothing: Smoothing) -> str:
    what = "each count is spread over batches of nearly its size, up to so much of it"
    if smoothing.padding is None:
        return f"{what}; the histogram tells no time spans to find the best width by"
    return (
        f"{what}; of nine widths, this one pads the least ({smoothing.padding:.1%}) where sizes fitted to "
        f"one of {smoothing.spans} time spans are tried on the others"
    )


def _point(request: PolicyRequest, chosen: Chosen, outcome: Outcome) -> dict[str, Json]:
    cost = cost_of(request.deployment, outcome.families)
    return {
        # By name: a table of a cache keeps no other order.
        "graphs": outcome.num_graphs,
        "memory_gib": round(cost.gib, 2),
        "padding": round(chosen.expected.padding(outcome.sizes, chosen.histogram), 4),
        "sizes": len(outcome.sizes),
        "startup_seconds": round(cost.seconds, 1),
    }
