"""The coverage map: batches over tokens and requests, in the colour of the graph that they run in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from attrs import frozen

from planner.describe import counted, label
from planner.modes import CUDAGraphMode
from planner.report.coverage import Panel, panel_title
from planner.report.svg import Drawing, color, drawn, figure
from planner.verify.coverage import Coverage, Gap, Served
from planner.verify.domain import BatchClass
from planner.verify.wording import span_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEIGHT = 330
MOST_DRAWN = 3_000
"""Ranges that one map shows; a real plan's are a few hundred."""

LABELLED = 6
"""Lines of uniform decode that are labelled."""

EAGER = "eager"
_TINTS = {CUDAGraphMode.FULL: ("full", "full-2"), CUDAGraphMode.PIECEWISE: ("pieces", "pieces-2")}
_HALF = 0.5


@frozen
class _Range:
    """Batches of one kind that run in one graph, or in none."""

    batches: BatchClass
    gap: Gap
    role: str

    @property
    def words(self) -> str:
        """What shows over the range."""
        where = f"in {label(self.gap.entry)}" if isinstance(self.gap, Served) else "eagerly, without a graph"
        return f"{_batches_text(self.batches, self.gap)}: {where}"


def coverage_chart(panel: Panel, *, name: str) -> Drawing:
    """The map of ``panel``."""
    lines = [one for coverage in panel.uniform for one in _ranges(coverage)]
    areas = list(_ranges(panel.ranged)) if panel.ranged is not None else []
    if panel.ranged is not None and panel.ranged.batches.longest == 1:
        # As many tokens as requests: what would be an area has no width.
        areas, lines = [], [*lines, *areas]
    left_out = max(len(areas) - MOST_DRAWN, 0) + max(len(lines) - MOST_DRAWN, 0)
    areas, lines = areas[:MOST_DRAWN], lines[:MOST_DRAWN]
    hints: dict[str, str] = {}
    with figure(HEIGHT, name=name) as drawing:
        axes = drawing.add_subplot()
        for number, one in enumerate(areas):
            _draw_area(axes, one, f"area{number}")
            hints[f"area{number}"] = one.words
        for number, one in enumerate(lines):
            _draw_line(axes, one, f"line{number}")
            hints[f"line{number}"] = one.words
        _label_lines(axes, panel.uniform)
        _set_axes(axes, (*areas, *lines))
        return drawn(
            drawing,
            name=name,
            title=f"Coverage map: {panel_title(panel)}",
            description=_description((*panel.uniform, *filter(None, [panel.ranged])), left_out),
            hints=hints,
        )


def _ranges(coverage: Coverage) -> Iterator[_Range]:
    sizes: dict[CUDAGraphMode, list[int]] = {}
    for served in coverage.served:
        sizes.setdefault(served.entry.mode, []).append(served.entry.num_tokens)
    # Neighbours get unlike tints, so that one sees where one graph ends and the next begins.
    places = {mode: {size: n for n, size in enumerate(sorted(set(of)))} for mode, of in sizes.items()}
    for served in coverage.served:
        entry = served.entry
        yield _Range(coverage.batches, served, _TINTS[entry.mode][places[entry.mode][entry.num_tokens] % 2])
    for gap in coverage.unserved:
        yield _Range(coverage.batches, gap, EAGER)


def _draw_area(axes: Axes, one: _Range, gid: str) -> None:
    from matplotlib.patches import Polygon

    corners = _corners(one.batches, one.gap)
    if len(corners) < 3:
        return
    ink = color(one.role)
    if one.role == EAGER:
        patch = Polygon(corners, facecolor="none", edgecolor=ink, linewidth=0, hatch="////")
    else:
        patch = Polygon(corners, facecolor=ink, edgecolor=color("paper"), linewidth=0.4)
    patch.set_gid(gid)
    axes.add_patch(patch)


def _corners(batches: BatchClass, gap: Gap) -> list[tuple[float, float]]:
    """The outline of the batches of ``gap``: no more requests than tokens, and no fewer than fill them."""
    low, high = gap.first - _HALF, gap.last + _HALF
    bottom, top = gap.fewest - _HALF, gap.most + _HALF
    fewest = [reqs * batches.shortest + batches.surplus for reqs in (bottom, top)]
    most = [reqs * batches.longest for reqs in (bottom, top)]
    edges = sorted({low, high, *(kink for kink in (*fewest, *most) if low < kink < high)})
    upper = [(x, min(top, (x - batches.surplus) / batches.shortest)) for x in edges]
    lower = [(x, max(bottom, x / batches.longest)) for x in edges]
    inside = [(above, below) for above, below in zip(upper, lower, strict=True) if 0 < below[1] <= above[1]]
    return [*(above for above, _ in inside), *(below for _, below in reversed(inside))]


def _draw_line(axes: Axes, one: _Range, gid: str) -> None:
    length = one.batches.query_len or 1
    reqs = (one.gap.fewest - _HALF, one.gap.most + _HALF)
    tokens = [number * length for number in reqs]
    axes.plot(tokens, reqs, color=color("paper"), linewidth=9, solid_capstyle="butt", zorder=3)
    is_eager = one.role == EAGER
    (line,) = axes.plot(
        tokens,
        reqs,
        color=color(one.role),
        linewidth=3 if is_eager else 7,
        linestyle=(0, (2, 1)) if is_eager else "-",
        solid_capstyle="butt",
        zorder=4,
    )
    line.set_gid(gid)


def _label_lines(axes: Axes, uniform: Iterable[Coverage]) -> None:
    """The query length of each line, at its end."""
    ends = [(one.batches.query_len or 1, one.batches.most_reqs) for one in uniform if one.batches.most_reqs]
    for length, most in ends[:LABELLED]:
        axes.annotate(
            f"decode of {length}" if len(ends) == 1 else f"{length}",
            (length * most, most),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=11,
            zorder=5,
        )


def _set_axes(axes: Axes, ranges: Iterable[_Range]) -> None:
    axes.set_xlabel("tokens of the batch")
    axes.set_ylabel("requests")
    gaps = [one.gap for one in ranges]
    for axis, most in (
        ("x", max((gap.last for gap in gaps), default=1)),
        ("y", max((gap.most for gap in gaps), default=1)),
    ):
        set_binary_axis(axes, axis, most)


def set_binary_axis(axes: Axes, which: str, most: int) -> None:
    """A logarithmic axis from 1 to ``most``, with powers of two written in full."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log", base=2)
    (axes.set_xlim if which == "x" else axes.set_ylim)(_HALF * 1.5, max(most, 2) * 1.3)
    power = max(most, 2).bit_length() - 1
    every = max(1, -(-power // 6))
    axis.set_major_locator(FixedLocator([2**exponent for exponent in range(0, power + 1, every)]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
    axis.set_minor_locator(NullLocator())


def tick_text(value: float) -> str:
    """``512``, ``8k``, ``1M``: a power of two on an axis."""
    number = round(value)
    for unit, letter in ((1 << 20, "M"), (1 << 10, "k")):
        if number >= 8 * unit or (number >= unit and letter == "M"):
            return f"{number / unit:g}{letter}"
    return str(number)


def _batches_text(batches: BatchClass, gap: Gap) -> str:
    if batches.query_len is not None:
        return (
            f"decode of {span_of(gap.fewest, gap.most, 'request')} of {counted(batches.query_len, 'token')}"
        )
    kind = "mixed batches" if batches.max_query_len is None else "decode of unequal lengths"
    return f"{kind} of {span_of(gap.first, gap.last, 'token')} and {span_of(gap.fewest, gap.most, 'request')}"


def _description(coverages: Iterable[Coverage], left_out: int) -> str:
    """What the map shows, in a few sentences."""
    parts = []
    for coverage in coverages:
        batches = coverage.batches
        if not (coverage.served or coverage.unserved):
            continue
        kind = "Mixed batches" if batches.max_query_len is None else "Decode of unequal lengths"
        if batches.query_len is not None:
            kind = f"Decode of {counted(batches.query_len, 'token')} a request"
        graphs = len({served.entry for served in coverage.served})
        gaps = [_batches_text(batches, gap) for gap in coverage.unserved]
        more = f" and {len(gaps) - 2} more ranges" if len(gaps) > 2 else ""
        eager = f"eagerly: {'; '.join(gaps[:2])}{more}" if gaps else "none eagerly"
        parts.append(f"{kind}: in {counted(graphs, 'graph')}, {eager}.")
    if left_out:
        parts.append(f"{counted(left_out, 'range')} more are not drawn.")
    return " ".join(parts)
