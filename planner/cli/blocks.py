"""What a summary says, apart from how it is drawn: blocks of rows whose cells align."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from attrs import frozen

from planner.describe import size_runs
from planner.documents.deployment import Json
from planner.documents.plan import AttentionGroup, Decision, Finding, Severity
from planner.modes import AttentionSupport

LONGEST_VALUE = 60

LONGEST_BESIDE = 20
"""The longest value that stands beside its reason; what is longer stands above it."""

SEVERITIES = (Severity.ERROR, Severity.WARNING, Severity.INFO)


@frozen
class Row:
    """Cells from left to right. ``style`` names what the first cell stands for, as in ``STYLES``."""

    cells: tuple[str, ...]
    style: str | None = None


@frozen
class Block:
    """Rows under a title, whose columns align. ``numbers`` are the columns set to the right."""

    rows: tuple[Row, ...]
    title: str | None = None
    numbers: frozenset[int] = frozenset()


def heading(text: str) -> Block:
    """A line of its own."""
    return Block((Row((text,)),))


def by_severity(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Errors first, then warnings, then notes; each in their order."""
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def finding_rows(findings: Iterable[Finding]) -> tuple[Row, ...]:
    """Severity, code, message, the worst first; the fix stands under its message."""
    rows = []
    for finding in by_severity(findings):
        rows.append(Row((finding.severity, finding.code, finding.message), finding.severity))
        if finding.fix:
            rows.append(Row(("", "", f"fix: {finding.fix}")))
    return tuple(rows)


def decision_blocks(decisions: Sequence[Decision]) -> Iterator[Block]:
    """Values that were changed, each with its reason below; then values that nobody asked for."""
    changed = [decision for decision in decisions if decision.asked is not None]
    if changed:
        rows: list[Row] = []
        for decision in changed:
            rows.append(Row((decision.path, change_text(decision.asked, decision.became))))
            rows.append(Row(("", decision.because)))
        yield Block(tuple(rows), title="changed, and why")
    chosen = [decision for decision in decisions if decision.asked is None]
    if chosen:
        yield Block(
            tuple(
                row
                for decision in chosen
                for row in reasoned_rows((decision.path,), value_text(decision.became), decision.because)
            ),
            title="chosen, and why",
        )


def reasoned_rows(lead: tuple[str, ...], value: str, because: str, style: str | None = None) -> Iterator[Row]:
    """A value and its reason behind the cells of ``lead``; a long value would leave the reason no room."""
    if len(value) <= LONGEST_BESIDE:
        yield Row((*lead, value, because), style)
    else:
        yield Row((*lead, "", value), style)
        yield Row((*("" for _ in lead), "", because))


def attention_text(support: AttentionSupport, limiting_groups: Iterable[AttentionGroup]) -> str:
    """``UNIFORM_BATCH, set by FLASHINFER (full_attention)``."""
    kinds: dict[str, list[str]] = {}
    for group in limiting_groups:
        kinds.setdefault(group.backend, []).append(group.kind)
    groups = ", ".join(f"{backend} ({', '.join(dict.fromkeys(names))})" for backend, names in kinds.items())
    return f"{support}, set by {groups}" if groups else str(support)


def change_text(before: Json, after: Json) -> str:
    """``FULL -> PIECEWISE``, or the new value alone where there was none."""
    return value_text(after) if before is None else f"{value_text(before)} -> {value_text(after)}"


def value_text(value: Json, longest: int = LONGEST_VALUE) -> str:
    """A value on one short line."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, list) and value and all(type(item) is int for item in value):
        return _sizes_text(size_runs(value), longest)
    else:
        text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= longest else text[: longest - 3] + "..."


def _sizes_text(runs: str, longest: int) -> str:
    """Runs of sizes, of which those before the last are left out where there are many."""
    if len(runs) + 2 <= longest:
        return f"[{runs}]"
    *before, last = runs.split(", ")
    while before and len(text := f"[{', '.join(before)}, ..., {last}]") > longest:
        before.pop()
    return text if before else f"[..., {last}]"
