"""Verify: what a person should know about a plan, as findings; pure, and without any sampling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from planner.describe import label
from planner.descriptors import PlanEntry
from planner.documents.plan import Finding, Plan, Severity
from planner.modes import CUDAGraphMode


def verify(plan: Plan) -> tuple[Finding, ...]:
    """Findings about the document, then family by family."""
    findings = list(_ignored_settings(plan))
    for family in plan.graphs:
        entries = plan.entries(family)
        findings.extend(_duplicates(family, entries))
        findings.extend(_misordered(family, entries))
        findings.extend(_contradictions(family, entries))
    return tuple(findings)


def _ignored_settings(plan: Plan) -> Iterator[Finding]:
    paths = ", ".join(plan.deployment.ignored_paths())
    if paths:
        yield Finding(
            severity=Severity.INFO, code="ignored-settings", message=f"without effect on planning: {paths}"
        )


def _duplicates(family: str, entries: tuple[PlanEntry, ...]) -> Iterator[Finding]:
    executions = Counter(entry.execution_descriptor for entry in entries)
    for descriptor, count in executions.items():
        if count > 1:
            twin = next(entry for entry in entries if entry.execution_descriptor == descriptor)
            yield Finding(
                severity=Severity.ERROR,
                code="duplicate-entry",
                message=f"graphs.{family}: {label(twin)} appears {count} times; only one is ever replayed",
                fix="remove the others",
            )
    keys: dict[object, PlanEntry] = {}
    for entry in entries:
        first = keys.setdefault((entry.mode, entry.num_ubatches, entry.batch_descriptor), entry)
        if first.execution_descriptor != entry.execution_descriptor:
            yield Finding(
                severity=Severity.ERROR,
                code="duplicate-descriptor",
                message=f"graphs.{family}: {label(first)} and {label(entry)} have the same batch descriptor",
                fix="keep one of the two",
            )


def _misordered(family: str, entries: tuple[PlanEntry, ...]) -> Iterator[Finding]:
    ranks = [(entry.mode is CUDAGraphMode.FULL, -entry.num_tokens) for entry in entries]
    for before, after, rank, next_rank in zip(entries, entries[1:], ranks, ranks[1:], strict=False):
        if next_rank < rank:
            yield Finding(
                severity=Severity.WARNING,
                code="capture-order",
                message=f"graphs.{family}: {label(after)} is captured after {label(before)}; "
                "with the largest first, the graph pool is allocated once",
                fix="order PIECEWISE before FULL, each from the most tokens down",
            )
            return


def _contradictions(family: str, entries: tuple[PlanEntry, ...]) -> Iterator[Finding]:
    """Entries whose own fields no batch can meet together."""
    for entry in entries:
        reqs, count = entry.num_reqs, entry.uniform_token_count
        if reqs is None:
            if entry.mode is CUDAGraphMode.FULL:
                yield _contradiction(family, entry, "a FULL graph needs num_reqs", "give num_reqs")
        elif reqs > entry.num_tokens:
            fault = f"{reqs} requests have at least {reqs} tokens"
            yield _contradiction(family, entry, fault, f"num_tokens: {reqs}")
        elif count is not None and reqs * count != entry.num_tokens:
            fault = f"{reqs} requests of {count} are {reqs * count} tokens"
            yield _contradiction(family, entry, fault, f"num_tokens: {reqs * count}")


def _contradiction(family: str, entry: PlanEntry, fault: str, fix: str) -> Finding:
    message = f"graphs.{family}: {label(entry)}: {fault}"
    return Finding(severity=Severity.ERROR, code="impossible-entry", message=message, fix=fix)
