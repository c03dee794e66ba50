"""Dispatch among the entries that have a graph: the planner's table over a plan without the others."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeAlias

from attrs import evolve

from planner.descriptors import BatchDescriptor, BatchExecutionDescriptor, PlanEntry
from planner.dispatch import DispatchTable
from planner.dispatch_v1 import V1DispatchTable
from planner.documents.plan import Plan, ResolvedFamily
from planner.modes import CUDAGraphMode, Runner

Key: TypeAlias = BatchExecutionDescriptor | tuple[CUDAGraphMode, BatchDescriptor]
"""What dispatch returns and graphs are found by: V2's descriptor, or V1's mode and descriptor."""


class EagerReason(enum.Enum):
    """Why a step ran without a graph."""

    AGREED = "agreed"
    """There is a graph, but data-parallel ranks have agreed on eager."""
    NOT_CAPTURED = "not_captured"
    """The plan has an entry for the batch, whose graph failed or is still to come."""
    TOO_LARGE = "too_large"
    """The batch has more tokens than the plan's largest entry."""
    NO_ENTRY = "no_entry"
    """The plan has no entry for such a batch."""
    UNKNOWN = "unknown"
    """Whoever counted the step did not say."""


def is_v1(plan: Plan, family: str) -> bool:
    """Whether ``family`` is dispatched by the rules of the V1 runner; without a runner it is V2's."""
    resolved = plan.resolved.get(family)
    return resolved is not None and resolved.runner is Runner.V1


def graph_key(plan: Plan, family: str, entry: PlanEntry) -> Key:
    """What dispatch of ``family`` returns for a batch that ``entry`` serves."""
    return (entry.mode, entry.batch_descriptor) if is_v1(plan, family) else entry.execution_descriptor


def table_of(plan: Plan, family: str, captured: Sequence[PlanEntry]) -> DispatchTable | V1DispatchTable:
    """The table in which only ``captured`` entries of ``family`` exist.

    A batch of an entry without a graph goes to the next larger one that has one, or runs eagerly. V1
    pads to capture sizes before it looks for a graph: a size without any graph is dropped for it.
    """
    graphs = {**plan.graphs, family: tuple(captured)}
    resolved = plan.resolved.get(family)
    if resolved is None or not is_v1(plan, family):
        return evolve(plan, graphs=graphs).dispatch_table(family)
    sizes = _sizes_with_graphs(resolved, plan.entries(family), captured)
    fewer = evolve(resolved, cudagraph_capture_sizes=sizes)
    return evolve(plan, graphs=graphs, resolved={**plan.resolved, family: fewer}).dispatch_table(family)


def _sizes_with_graphs(
    resolved: ResolvedFamily, entries: Sequence[PlanEntry], captured: Sequence[PlanEntry]
) -> tuple[int, ...]:
    lost = {entry.num_tokens for entry in entries} - {entry.num_tokens for entry in captured}
    return tuple(size for size in resolved.cudagraph_capture_sizes or () if size not in lost)
