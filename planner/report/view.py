"""What a page says, apart from how it is written: one plan, or two beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from planner.describe import counted
from planner.descriptors import MAX_GRAPH_TOKENS
from planner.diff import diff
from planner.documents.plan import TARGET, Plan, Severity
from planner.report.costs import amount_text, cost_charts, cost_tables, estimate_of
from planner.report.coverage import family_map, panel_title, surveyed
from planner.report.coverage_chart import coverage_chart
from planner.report.curves import Curve, padding_chart, tradeoff_chart
from planner.report.padding import TrafficPadding, clamped, decode_ranges, default_plan, traffic_padding
from planner.report.svg import Drawing
from planner.report.tables import (
    CURVE_RULE,
    Line,
    Table,
    capture_table,
    change_tables,
    decisions_table,
    facts,
    findings_table,
)
from planner.traffic.histogram import Histogram

THIS, OTHER, DEFAULT = "this plan", "other plan", "engine default"
"""What the page calls the plans; their own names are for its head, since they may be equal, or anything."""

MOST_PANELS = 8
"""Maps of one family that are drawn."""


@frozen(kw_only=True)
class Source:
    """A plan and the name of where it comes from."""

    plan: Plan
    name: str


@frozen(kw_only=True)
class FamilySection:
    """The maps of one family, each under its title, and its graphs. ``notes`` stand below the maps."""

    family: str
    maps: tuple[tuple[str, Drawing], ...]
    graphs: Table
    notes: tuple[str, ...] = ()


@frozen(kw_only=True)
class Side:
    """One plan: ``label`` is what the page calls it, ``key`` begins the ids of its parts."""

    label: str
    key: str
    name: str
    source: str
    tiles: tuple[tuple[str, str], ...]
    facts: tuple[tuple[str, str], ...]
    families: tuple[FamilySection, ...]
    decisions: Table
    findings: Table


@frozen(kw_only=True)
class Charts:
    """Drawings with the tables that have their figures, and remarks on them."""

    drawings: tuple[Drawing, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()


@frozen(kw_only=True)
class View:
    """A whole page. ``changes`` are from the other plan to this one, ``None`` where there is no other."""

    sides: tuple[Side, ...]
    padding: Charts
    costs: Charts
    changes: tuple[Table, ...] | None = None


def view_of(this: Source, other: Source | None = None, histogram: Histogram | None = None) -> View:
    """The page of ``this`` plan, beside the ``other`` one where that is given.

    ``histogram`` is the traffic that the padding is weighed by.

    Raises:
        MachineError: the packages of the extra ``report`` are not installed.
    """
    plans = [(THIS, this.plan), *([(OTHER, other.plan)] if other is not None else [])]
    costs = [(label, estimate_of(plan)) for label, plan in plans]
    sides = [_side(this, THIS, "a"), *([_side(other, OTHER, "b")] if other is not None else [])]
    return View(
        sides=tuple(sides),
        padding=_padding(plans, histogram),
        costs=Charts(drawings=tuple(cost_charts(costs)), tables=tuple(cost_tables(costs))),
        changes=None if other is None else tuple(change_tables(diff(other.plan, this.plan))),
    )


def _side(source: Source, label: str, key: str) -> Side:
    plan = source.plan
    return Side(
        label=label,
        key=key,
        name=plan.name or source.name,
        source=source.name,
        tiles=tuple(_tiles(plan)),
        facts=tuple(facts(plan)),
        families=tuple(_family(plan, family, f"{key}{number}") for number, family in enumerate(plan.graphs)),
        decisions=decisions_table(plan.decisions),
        findings=findings_table(plan.findings),
    )


def _tiles(plan: Plan) -> Iterator[tuple[str, str]]:
    """The figures that a reader looks for first, each under its name."""
    estimate = estimate_of(plan)
    yield "graphs", str(sum(map(len, plan.graphs.values())))
    yield "memory", f"{amount_text(estimate.memory_gib.expected)} GiB"
    yield "capture", f"{amount_text(estimate.seconds.expected)} s"
    for severity in (Severity.ERROR, Severity.WARNING):
        number = sum(finding.severity == severity for finding in plan.findings)
        yield severity if number == 1 else f"{severity}s", str(number)


def _family(plan: Plan, family: str, key: str) -> FamilySection:
    found = family_map(plan, family)
    notes = [found.because] if found.because else []
    if (more := len(found.panels) - MOST_PANELS) > 0:
        notes.append(f"{counted(more, 'more map')} of other LoRA cases and lengths are not drawn.")
    panels = found.panels[:MOST_PANELS]
    return FamilySection(
        family=family,
        maps=tuple(
            (panel_title(panel), coverage_chart(panel, name=f"map-{key}-{number}"))
            for number, panel in enumerate(panels)
        ),
        graphs=capture_table(family, plan.graphs[family], found.serves),
        notes=tuple(notes),
    )


def _padding(plans: Sequence[tuple[str, Plan]], histogram: Histogram | None) -> Charts:
    """The padding of each plan and of the engine's default for the first, and what traffic makes of it."""
    compared = list(plans)
    notes = []
    default = default_plan(plans[0][1])
    if default is None:
        notes.append("The plan does not say which server it is for, so there is no default to compare with.")
    elif default.graphs == plans[0][1].graphs:
        notes.append("This plan has the very graphs that the engine makes by default.")
    else:
        compared.append((DEFAULT, default))
    drawings = list(_padding_charts(compared, histogram))
    drawings.extend(_tradeoff(plans[0][1]))
    if histogram is None:
        notes.append("No traffic was given: --traffic FILE weighs the padding by what a server serves.")
        return Charts(drawings=tuple(drawings), notes=tuple(notes))
    notes.append(f"Traffic: {' '.join(histogram.source.split())}")
    used = plans[0][1].deployment.capture.traffic_sha256
    if used not in (None, histogram.digest):
        notes.append("The plan was made for other traffic than this.")
    found = [(label, traffic_padding(plan, histogram)) for label, plan in compared]
    return Charts(drawings=tuple(drawings), tables=(_traffic_table(found),), notes=tuple(notes))


def _padding_charts(plans: Sequence[tuple[str, Plan]], histogram: Histogram | None) -> Iterator[Drawing]:
    roles = {THIS: "first", OTHER: "second", DEFAULT: "default"}
    curves = []
    for label, plan in plans:
        survey = surveyed(plan, TARGET) if TARGET in plan.graphs else None
        if survey is not None and (ranges := decode_ranges(survey)):
            curves.append(Curve(label=label, role=roles[label], ranges=ranges, dashed=label == DEFAULT))
    if curves:
        steps = clamped(histogram, max(curve.most for curve in curves)) if histogram is not None else {}
        yield padding_chart(curves, steps, name="padding")


def _tradeoff(plan: Plan) -> Iterator[Drawing]:
    """The trade-off that the sizes were chosen from, where the plan has it."""
    target = plan.resolved.get(TARGET)
    for decision in plan.decisions:
        if decision.rule == CURVE_RULE and target is not None and isinstance(decision.became, list):
            points = [
                (one.get("sizes"), one.get("padding")) for one in decision.became if isinstance(one, dict)
            ]
            known = [
                (size, share)
                for size, share in points
                if isinstance(size, int)
                and 0 < size <= MAX_GRAPH_TOKENS
                and isinstance(share, int | float)
                and 0 <= share <= 1
            ]
            if known:
                yield tradeoff_chart(known, len(target.cudagraph_capture_sizes), name="tradeoff")
            return


def _traffic_table(found: Sequence[tuple[str, TrafficPadding]]) -> Table:
    return Table(
        caption="What the traffic costs",
        columns=("", "Decode: padded", "Decode: without a graph", "Other steps: padded", "Other: without"),
        lines=tuple(
            Line((label, *map(_share, (one.decode, one.decode_eager, one.other, one.other_eager))))
            for label, one in found
        ),
        numbers=frozenset({1, 2, 3, 4}),
    )


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.1%}"
