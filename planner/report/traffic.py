"""Findings about the traffic that a page weighs a plan by."""

from __future__ import annotations

from collections.abc import Iterator

from planner.documents.plan import TARGET, Finding, Plan
from planner.engines.lookup import is_decode
from planner.policies.beyond import traffic_beyond
from planner.policies.needs import Alignment, Needs, needs_of_family
from planner.traffic.histogram import Histogram


def traffic_findings(plan: Plan, histogram: Histogram) -> Iterator[Finding]:
    """What of ``histogram`` a server of ``plan`` never forms, or runs without a graph."""
    if TARGET not in plan.graphs:
        return
    needs = Needs(
        families=(tuple(needs_of_family(plan, TARGET)),),
        others=(),
        max_num_seqs=0,
        alignment=Alignment(),
    )
    mixed = (entry.num_tokens for entry in plan.graphs[TARGET] if not is_decode(entry))
    yield from traffic_beyond(histogram, needs, max(mixed, default=0))
