"""A family of graphs on its way into a plan."""

from __future__ import annotations

from attrs import frozen

from planner.descriptors import PlanEntry
from planner.documents.plan import Decision, Finding, ResolvedFamily, Severity


@frozen(kw_only=True)
class Family:
    """One model's set of graphs, with what was decided for it and what a person should know."""

    name: str
    resolved: ResolvedFamily
    entries: tuple[PlanEntry, ...]
    decisions: tuple[Decision, ...] = ()


@frozen(kw_only=True)
class OtherFamilies:
    """The families beside the target's, and findings about those that are not planned."""

    families: tuple[Family, ...] = ()
    findings: tuple[Finding, ...] = ()


def unplanned(what: str, because: str, fix: str) -> OtherFamilies:
    """The finding that the server captures graphs which the plan does not have."""
    message = f"the server captures {what}, which this plan does not have: {because}"
    finding = Finding(severity=Severity.ERROR, code="unplanned-family", message=message, fix=fix)
    return OtherFamilies(findings=(finding,))


def mode_decision(family: str, mode: object, rule: str, because: str) -> Decision:
    """Why a family that no setting names has its mode."""
    return Decision(path=f"resolved.{family}.cudagraph_mode", became=str(mode), rule=rule, because=because)
