"""Budgets: which limit of a deployment its graphs pass, by the estimate of what they cost."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from planner.documents.deployment import Deployment
from planner.estimate import estimate
from planner.policies.prune import plan_of
from planner.rules.family import Family


@frozen
class GraphCost:
    """What all graphs of one rank cost: GiB of device memory and seconds of start-up."""

    gib: float
    seconds: float


def cost_of(deployment: Deployment, families: Sequence[Family]) -> GraphCost:
    """What the graphs of ``families`` are expected to cost."""
    found = estimate(plan_of(deployment, families))
    return GraphCost(found.memory_gib.expected, found.seconds.expected)


@frozen
class Passed:
    """A limit of the deployment that some graphs pass: its name, its value, and what they need."""

    name: str
    value: str
    needed: str


def passed(deployment: Deployment, sizes: Sequence[int], families: Sequence[Family]) -> Passed | None:
    """The first limit that graphs of ``sizes`` pass, ``None`` within all."""
    capture = deployment.capture
    if capture.max_graphs is not None and len(sizes) > capture.max_graphs:
        return Passed("max_graphs", str(capture.max_graphs), f"{len(sizes)} sizes")
    if capture.memory_budget is None and capture.startup_budget is None:
        return None
    cost = cost_of(deployment, families)
    if capture.memory_budget is not None and cost.gib > capture.memory_budget:
        return Passed("memory_budget", f"{capture.memory_budget:g} GiB", f"about {cost.gib:.2f} GiB")
    if capture.startup_budget is not None and cost.seconds > capture.startup_budget:
        return Passed("startup_budget", f"{capture.startup_budget:g} s", f"about {cost.seconds:.1f} s")
    return None
