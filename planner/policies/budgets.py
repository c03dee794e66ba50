"""Budgets: what graphs cost before any is captured, and which limit of a deployment they pass.

A rule of thumb, the same for every model: a graph keeps memory of its own beside the pool that all
share, and its capture takes a fixed time once the first of its kind has run. The figures are those
reported for vLLM and models of some 8 billion parameters (26 MiB and 0.06 s a graph).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import frozen

from planner.documents.deployment import CaptureSection
from planner.rules.family import Family

MIB_PER_GRAPH = 26
SECONDS_PER_GRAPH = 0.06
SECONDS_OF_FIRST = 1.0


@frozen
class GraphCost:
    """What all graphs of one rank cost: GiB of device memory and seconds of start-up."""

    gib: float
    seconds: float


CostOf = Callable[[Sequence[Family]], GraphCost]
"""The estimate for the graphs of some families."""


def rule_of_thumb(families: Sequence[Family]) -> GraphCost:
    """The cost by number of graphs alone."""
    number = sum(len(family.entries) for family in families)
    kinds = len({(family.name, entry.mode) for family in families for entry in family.entries})
    return GraphCost(number * MIB_PER_GRAPH / 1024, kinds * SECONDS_OF_FIRST + number * SECONDS_PER_GRAPH)


@frozen
class Passed:
    """A limit of the deployment that some graphs pass: its name, its value, and what they need."""

    name: str
    value: str
    needed: str


def passed(
    capture: CaptureSection, sizes: Sequence[int], families: Sequence[Family], cost_of: CostOf = rule_of_thumb
) -> Passed | None:
    """The first limit that graphs of ``sizes`` pass, ``None`` within all."""
    if capture.max_graphs is not None and len(sizes) > capture.max_graphs:
        return Passed("max_graphs", str(capture.max_graphs), f"{len(sizes)} sizes")
    if capture.memory_budget is None and capture.startup_budget is None:
        return None
    cost = cost_of(families)
    if capture.memory_budget is not None and cost.gib > capture.memory_budget:
        return Passed("memory_budget", f"{capture.memory_budget:g} GiB", f"about {cost.gib:.2f} GiB")
    if capture.startup_budget is not None and cost.seconds > capture.startup_budget:
        return Passed("startup_budget", f"{capture.startup_budget:g} s", f"about {cost.seconds:.1f} s")
    return None
