"""Curves and bars: padding by requests, the trade-off that a plan was chosen from, memory and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import frozen

from planner.describe import counted
from planner.documents.estimates import Quantity
from planner.report.coverage_chart import set_binary_axis
from planner.report.padding import DecodeRange
from planner.report.svg import Drawing, color, drawn, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PADDING_HEIGHT, TRAFFIC_HEIGHT, TRADEOFF_HEIGHT = 280, 110, 230
BAR_HEIGHT, BARS_MARGIN = 34, 60

POINTS_OF_RANGE = 48
"""Points of a curve within one graph, where more requests than that run in it."""

MOST_RANGES = 2_000
"""Ranges of requests that one curve shows."""

LEAST_SHARE = 5
"""Percent of padding that the axis reaches at least."""

LANE = 0.07
"""Height of the lanes below 0 in which eager batches are marked, as a part of the axis."""

LARGEST_AMOUNT = 1e9
"""GiB or seconds that a bar shows at most; only a plan written by hand has such."""

MOST_PARTS = 4
"""Parts of a bar that have a colour of their own; the last is for all that follow."""


@frozen(kw_only=True)
class Curve:
    """The padding of one plan. ``role`` is its colour; a ``dashed`` one is for comparison."""

    label: str
    role: str
    ranges: tuple[DecodeRange, ...]
    dashed: bool = False

    @property
    def most(self) -> int:
        """The most requests."""
        return self.ranges[-1].last if self.ranges else 0


def padding_chart(curves: Sequence[Curve], steps: Mapping[int, int], *, name: str) -> Drawing:
    """The padded share of uniform decode by requests; ``steps`` of a traffic, if any, below it."""
    most = max((curve.most for curve in curves), default=1)
    from matplotlib.ticker import MaxNLocator

    with figure(PADDING_HEIGHT + (TRAFFIC_HEIGHT if steps else 0), name=name) as drawing:
        if steps:
            above, below = drawing.subplots(2, 1, height_ratios=(3, 1))
            _draw_steps(below, steps)
            set_binary_axis(below, "x", most)
            below.set_xlabel("requests of a decode batch")
        else:
            above = drawing.add_subplot()
            above.set_xlabel("requests of a decode batch")
        top = (
            max(LEAST_SHARE, *(100 * one.padding(one.first) for curve in curves for one in curve.ranges))
            * 1.2
        )
        for place, curve in enumerate(curves, start=1):
            _draw_curve(above, curve, lane=-LANE * place * top)
        above.set_ylabel("padding, % of the graph")
        has_eager = any(one.size is None for curve in curves for one in curve.ranges)
        above.set_ylim(-LANE * (len(curves) + 1 if has_eager else 0.5) * top, top)
        above.set_yticks([share for share in MaxNLocator(5).tick_values(0, top) if 0 <= share <= top])
        set_binary_axis(above, "x", most)
        above.legend(loc="upper right")
        return drawn(
            drawing,
            name=name,
            title="Padding of uniform decode by number of requests",
            description=" ".join(_curve_words(curve) for curve in curves),
        )


def _draw_curve(axes: Axes, curve: Curve, *, lane: float) -> None:
    """The curve, interrupted where batches run eagerly; those are marked in the ``lane`` below 0."""
    numbers: list[float] = []
    shares: list[float] = []
    shown = curve.ranges[:MOST_RANGES]
    for one in shown:
        if one.size is None:
            numbers.append(one.first)
            shares.append(float("nan"))
            continue
        points = _points(one.first, one.last)
        numbers.extend(points)
        shares.extend(100 * one.padding(number) for number in points)
    eager = [one for one in shown if one.size is None]
    ends = [(one.first - 0.5, one.last + 0.5) for one in eager]
    axes.hlines(
        [lane] * len(ends), [low for low, _ in ends], [high for _, high in ends], color("eager"), linewidth=4
    )
    if eager:
        axes.annotate("eager", (eager[-1].last, lane), xytext=(5, 0), textcoords="offset points", va="center")
    axes.plot(
        numbers,
        shares,
        color=color(curve.role),
        linewidth=1.4 if curve.dashed else 2,
        linestyle=(0, (3, 2)) if curve.dashed else "-",
        label=curve.label,
        zorder=4 if curve.dashed else 3,
    )


def _points(first: int, last: int) -> list[int]:
    if last - first < POINTS_OF_RANGE:
        return list(range(first, last + 1))
    return [first + (last - first) * place // POINTS_OF_RANGE for place in range(POINTS_OF_RANGE + 1)]


def _draw_steps(axes: Axes, steps: Mapping[int, int]) -> None:
    total = sum(steps.values())
    numbers = sorted(steps)
    shares = [100 * steps[number] / total for number in numbers]
    axes.vlines(numbers, 0, shares, color=color("traffic"), linewidth=2)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("steps, %")


def _curve_words(curve: Curve) -> str:
    """A curve in one sentence."""
    covered = [one for one in curve.ranges if one.size is not None]
    if not covered:
        return f"{curve.label}: no decode batch runs in a graph."
    worst = max(covered, key=lambda one: one.padding(one.first))
    eager = sum(one.last - one.first + 1 for one in curve.ranges if one.size is None)
    at = counted(worst.first, "request")
    text = f"{curve.label}: at most {worst.padding(worst.first):.0%} padding, at {at} in {worst.size} tokens"
    return f"{text}; {eager} of {curve.most} numbers of requests have no graph." if eager else f"{text}."


def tradeoff_chart(points: Sequence[tuple[int, float]], chosen: int, *, name: str) -> Drawing:
    """The padded share that other numbers of sizes would leave; the ``chosen`` number is marked."""
    with figure(TRADEOFF_HEIGHT, name=name) as drawing:
        axes = drawing.add_subplot()
        sizes, shares = [size for size, _ in points], [100 * share for _, share in points]
        axes.plot(sizes, shares, color=color("first"), linewidth=2, marker="o", markersize=5)
        for size, share in ((size, 100 * share) for size, share in points if size == chosen):
            axes.plot(size, share, color=color("first"), marker="o", markersize=12, markerfacecolor="none")
            words = f"chosen: {size} sizes, {share:.1f} %"
            axes.text(0.98, 0.95, words, ha="right", va="top", transform=axes.transAxes)
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.set_xlabel("capture sizes")
        axes.set_ylabel("padding of the traffic, %")
        told = ", ".join(f"{share:.1%} with {size} sizes" for size, share in points)
        return drawn(
            drawing,
            name=name,
            title="Padding of the traffic by number of capture sizes",
            description=f"Padded tokens: {told}.",
        )


def bars_chart(
    quantities: Sequence[tuple[str, Quantity]], *, unit: str, title: str, parts: Sequence[str], name: str
) -> Drawing:
    """A bar of each quantity, stacked from its ``parts``, with its range from low to high."""
    with figure(BARS_MARGIN + BAR_HEIGHT * len(quantities), name=name) as drawing:
        axes = drawing.add_subplot()
        for place, (_, quantity) in enumerate(quantities):
            start = 0.0
            for number, value in enumerate(_stacked(quantity, parts), start=1):
                axes.barh(place, value, left=start, height=0.6, color=color(f"part-{number}"))
                start += value
            expected, low, high = map(_bounded, (quantity.expected, quantity.low, quantity.high))
            below, above = max(expected - low, 0), max(high - expected, 0)
            axes.errorbar(
                expected, place, xerr=[[below], [above]], color=color("ink"), capsize=4, linewidth=1.2
            )
        axes.set_yticks(range(len(quantities)), [text for text, _ in quantities])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlim(left=0)
        axes.set_xlabel(unit)
        words = (
            f"{text}: {quantity.expected:.3g} {unit}, between {quantity.low:.3g} and {quantity.high:.3g}."
            for text, quantity in quantities
        )
        return drawn(drawing, name=name, title=title, description=" ".join(words))


def _stacked(quantity: Quantity, parts: Sequence[str]) -> list[float]:
    """The values of ``parts``, those beyond the last colour together; the whole where there are none."""
    if not quantity.parts:
        return [_bounded(quantity.expected)]
    values = [_bounded(quantity.parts.get(part, 0.0)) for part in parts]
    return [*values[: MOST_PARTS - 1], sum(values[MOST_PARTS - 1 :])]


def _bounded(amount: float) -> float:
    return min(max(amount, 0.0), LARGEST_AMOUNT)
