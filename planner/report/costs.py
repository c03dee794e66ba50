"""Memory and start-up time: what a plan's estimate says, as bars and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.documents.estimates import Estimate, Quantity
from planner.documents.plan import Plan
from planner.report.curves import LARGEST_AMOUNT, MOST_PARTS, bars_chart
from planner.report.svg import Drawing
from planner.report.tables import Line, Table

GIB, SECONDS = "GiB", "seconds"

Costs = Sequence[tuple[str, Estimate]]
"""Estimates, each under the name that the page gives its plan."""


def estimate_of(plan: Plan) -> Estimate:
    """The estimate that ``plan`` holds; one that holds none is estimated now."""
    if plan.estimates is not None:
        return plan.estimates
    from planner.estimate import estimate

    return estimate(plan)


def cost_charts(costs: Costs) -> Iterator[Drawing]:
    """Bars of memory and of seconds."""
    for name, unit, title, quantities in (
        ("memory", GIB, "Device memory of all graphs of one rank", _memories(costs)),
        ("seconds", SECONDS, "Start-up time that the capture takes", _seconds(costs)),
    ):
        yield bars_chart(quantities, unit=unit, title=title, parts=parts_of(quantities), name=name)


def parts_of(quantities: Sequence[tuple[str, Quantity]]) -> tuple[str, ...]:
    """The parts of any of the quantities, in the order in which they are stacked."""
    return tuple(dict.fromkeys(part for _, quantity in quantities for part in quantity.parts))


def cost_tables(costs: Costs) -> Iterator[Table]:
    """The figures behind the bars, part by part."""
    yield _table("Memory, GiB", _memories(costs))
    yield _table("Start-up, seconds", _seconds(costs))
    if any(estimate.device is not None for _, estimate in costs):
        yield _device_table(costs)


def _memories(costs: Costs) -> list[tuple[str, Quantity]]:
    return [(label, estimate.memory_gib) for label, estimate in costs]


def _seconds(costs: Costs) -> list[tuple[str, Quantity]]:
    return [(label, estimate.seconds) for label, estimate in costs]


def _table(caption: str, quantities: Sequence[tuple[str, Quantity]]) -> Table:
    """A row of each part, with the style of its colour, then the sum, its range and its source."""
    lines = []
    for place, part in enumerate(parts_of(quantities), start=1):
        amounts = (_amount(quantity.parts.get(part)) for _, quantity in quantities)
        lines.append(Line((part, *amounts), f"part-{min(place, MOST_PARTS)}"))
    lines.append(Line(("together", *(_amount(quantity.expected) for _, quantity in quantities)), "total"))
    ranges = (f"{_amount(quantity.low)} to {_amount(quantity.high)}" for _, quantity in quantities)
    lines.append(Line(("range", *ranges)))
    lines.append(Line(("source", *(quantity.source for _, quantity in quantities))))
    return _by_plan(caption, [label for label, _ in quantities], lines)


def _device_table(costs: Costs) -> Table:
    devices = [estimate.device for _, estimate in costs]
    rows = {
        "device memory, GiB": [_amount(device.memory_gib) if device else "" for device in devices],
        "share of the graphs": [f"{device.share:.1%}" if device else "" for device in devices],
        "usable by the engine, GiB": [_amount(device.usable_gib) if device else "" for device in devices],
        "weights, GiB": [_amount(device.weights_gib) if device else "" for device in devices],
        "KV cache, GiB": [_amount(device.kv_cache_gib) if device else "" for device in devices],
        "KV cache, tokens": [_tokens(device.kv_cache_tokens) if device else "" for device in devices],
    }
    lines = [Line((term, *cells)) for term, cells in rows.items() if any(cells)]
    return _by_plan("On the device", [label for label, _ in costs], lines)


def _by_plan(caption: str, labels: Sequence[str], lines: Sequence[Line]) -> Table:
    return Table(
        caption=caption,
        columns=("", *labels),
        lines=tuple(lines),
        numbers=frozenset(range(1, len(labels) + 1)),
    )


def _amount(value: float | None) -> str:
    return "" if value is None else amount_text(value)


def amount_text(value: float) -> str:
    """An amount to two places, as long as it is one that a machine can have."""
    return f"{value:.2f}" if value < LARGEST_AMOUNT else f"{value:.3g}"


def _tokens(value: int | None) -> str:
    return "" if value is None else str(value)
