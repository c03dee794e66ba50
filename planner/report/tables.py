"""What the tables of a page say: facts, findings, decisions, the graphs in capture order, and changes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from attrs import frozen

from planner.describe import by_shape, counted, size_runs
from planner.descriptors import PlanEntry
from planner.diff import Change, Difference, FamilyDiff, PlanDiff
from planner.documents.deployment import Json
from planner.documents.plan import TARGET, Decision, Finding, Plan, ResolvedFamily, Severity
from planner.engines.shared import engine_name
from planner.modes import CapturePolicy, CUDAGraphMode

T = TypeVar("T")

LONGEST_VALUE = 300
"""Characters of a value; a longer one is cut."""

CURVE_RULE = "traffic-curve"
"""The rule of the decision that has the trade-off curve, which is a chart."""

SEVERITIES = (Severity.ERROR, Severity.WARNING, Severity.INFO)
SIGNS = {"lost": "\N{MINUS SIGN} only before", "gained": "+ new"}


@frozen
class Line:
    """The cells of a row; ``style`` is a class of the style sheet."""

    cells: tuple[str, ...]
    style: str = ""


@frozen(kw_only=True)
class Table:
    """Rows under a caption. ``numbers`` are the columns that are set to the right."""

    caption: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    numbers: frozenset[int] = frozenset()


def facts(plan: Plan) -> Iterator[tuple[str, str]]:
    """What a person wants to know of a plan at a glance: terms and their values."""
    engine, target = plan.deployment.engine, plan.resolved.get(TARGET)
    version = engine.version or _became(plan, "engine.version")
    yield "Engine", " ".join(filter(None, (engine_name(plan.deployment), version)))
    if target is not None:
        yield from _target_facts(target)
    yield "Policy", str(plan.deployment.capture.policy or CapturePolicy.ENGINE)
    for family, entries in plan.graphs.items():
        counts = Counter(entry.mode for entry in entries)
        modes = ", ".join(
            f"{counts[mode]} {mode}" for mode in (CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE) if counts[mode]
        )
        yield f"Graphs of {family}", modes or "none"
    if plan.digest is not None:
        yield "Digest", plan.digest


def _target_facts(target: ResolvedFamily) -> Iterator[tuple[str, str]]:
    yield "Runner", str(target.runner)
    yield "Mode", str(target.cudagraph_mode)
    sizes = target.cudagraph_capture_sizes
    if sizes:
        yield "Capture sizes", f"{size_runs(sizes)} ({len(sizes)} sizes)"
    if target.max_num_seqs is not None:
        lengths = size_runs(target.uniform_query_lens or (target.decode_query_len or 1,))
        yield "Decode", f"up to {counted(target.max_num_seqs, 'request')} of {lengths}"
    if target.max_num_batched_tokens is not None:
        yield "Step", f"up to {counted(target.max_num_batched_tokens, 'token')}"
    if target.attention_support is not None:
        yield "Attention", str(target.attention_support)


def _became(plan: Plan, path: str) -> str | None:
    return next((str(decision.became) for decision in plan.decisions if decision.path == path), None)


def findings_table(findings: Sequence[Finding]) -> Table:
    """Findings, the worst first."""
    ordered = sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
    return Table(
        caption=f"{counted(len(findings), 'finding')}, the worst first",
        columns=("Severity", "Code", "What it is", "Fix"),
        lines=tuple(
            Line((one.severity, one.code, one.message, one.fix or ""), one.severity) for one in ordered
        ),
    )


def decisions_table(decisions: Sequence[Decision]) -> Table:
    """Values that were changed, then those that nobody asked for."""
    told = [one for one in decisions if one.rule != CURVE_RULE]
    told.sort(key=lambda decision: decision.asked is None)
    return Table(
        caption=f"{counted(len(told), 'value')} that differ from what was asked, or were open",
        columns=("Setting", "Asked", "Became", "Why", "Rule"),
        lines=tuple(
            Line((one.path, value_text(one.asked), value_text(one.became), one.because, one.rule))
            for one in told
        ),
    )


def capture_table(family: str, entries: Sequence[PlanEntry], serves: Mapping[PlanEntry, str]) -> Table:
    """The graphs of a family in capture order; columns that no entry has anything in are left out."""
    columns = {
        "Mode": [str(entry.mode) for entry in entries],
        "Tokens": [str(entry.num_tokens) for entry in entries],
        "Requests": [_number(entry.num_reqs) for entry in entries],
        "Tokens each": [_tokens_each(entry) for entry in entries],
        "LoRAs": [str(entry.num_active_loras or "") for entry in entries],
        "Microbatches": [str(entry.num_ubatches) if entry.num_ubatches > 1 else "" for entry in entries],
        "Prologue": [entry.prologue.kind if entry.prologue is not None else "" for entry in entries],
        "Serves": [serves.get(entry, "") for entry in entries],
    }
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    rows = zip(*columns.values(), strict=True)
    texts = ("Mode", "Prologue", "Serves")
    return Table(
        caption=f"{counted(len(entries), 'graph')} of {family}, in capture order",
        columns=("#", *columns),
        lines=tuple(
            Line((str(number), *cells), "unused" if cells[-1] == "nothing" else "")
            for number, cells in enumerate(rows, start=1)
        ),
        numbers=frozenset({0} | {place for place, name in enumerate(columns, start=1) if name not in texts}),
    )


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _tokens_each(entry: PlanEntry) -> str:
    if entry.uniform_token_count is not None:
        return str(entry.uniform_token_count)
    return "" if entry.max_query_len is None else f"up to {entry.max_query_len}"


def change_tables(changes: PlanDiff) -> Iterator[Table]:
    """What differs from one plan to the next, a table for each kind of things."""
    if changes.settings:
        yield _values_table("Settings", changes.settings)
    if changes.families:
        yield Table(
            caption="Graphs",
            columns=("", "Family", "Graphs", "Kind", "Tokens"),
            lines=tuple(line for family in changes.families for line in _family_lines(family)),
            numbers=frozenset({2}),
        )
    if changes.resolved:
        yield _values_table("Resolved values", changes.resolved)
    if changes.findings:
        yield Table(
            caption="Findings",
            columns=("", "Severity", "Code", "What it is"),
            lines=tuple(
                Line((SIGNS[side], one.severity, one.code, one.message), side)
                for side, one in _sides(changes.findings)
            ),
        )
    if changes.decisions:
        yield Table(
            caption="Decisions",
            columns=("", "Setting", "Asked", "Became", "Why"),
            lines=tuple(
                Line(
                    (SIGNS[side], one.path, value_text(one.asked), value_text(one.became), one.because), side
                )
                for side, one in _sides(changes.decisions)
                if one.rule != CURVE_RULE
            ),
        )


def _values_table(caption: str, changes: Iterable[Change]) -> Table:
    return Table(
        caption=caption,
        columns=("Value", "Before", "After"),
        lines=tuple(Line((one.path, value_text(one.before), value_text(one.after))) for one in changes),
    )


def _family_lines(family: FamilyDiff) -> Iterator[Line]:
    if family.only_after or family.only_before:
        side = "gained" if family.only_after else "lost"
        yield Line((SIGNS[side], family.family, "", "the whole family", ""), side)
    for side, entries in (("lost", family.graphs.lost), ("gained", family.graphs.gained)):
        for shape, group in by_shape(entries):
            sizes = size_runs(sorted(entry.num_tokens for entry in group))
            yield Line((SIGNS[side], family.family, str(len(group)), shape, sizes), side)
    if family.reordered:
        yield Line(("", family.family, "", "captured in another order", ""))


def _sides(difference: Difference[T]) -> Iterator[tuple[str, T]]:
    yield from (("lost", item) for item in difference.lost)
    yield from (("gained", item) for item in difference.gained)


def value_text(value: Json) -> str:
    """A value in a cell: nothing for none, lists of sizes in short."""
    if value is None:
        return ""
    if isinstance(value, str):
        text = value
    elif isinstance(value, list) and value and all(type(item) is int for item in value):
        text = size_runs(value)
    else:
        text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."
