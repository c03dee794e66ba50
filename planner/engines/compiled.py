"""What an engine's own rules make of a deployment, before it is a plan."""

from __future__ import annotations

from attrs import frozen

from planner.documents.plan import Decision, Finding
from planner.rules.family import Family


@frozen(kw_only=True)
class Compiled:
    """The families of a server, what was decided for them, and what a person should know."""

    families: tuple[Family, ...]
    decisions: tuple[Decision, ...] = ()
    findings: tuple[Finding, ...] = ()
