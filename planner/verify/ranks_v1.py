"""Whether data-parallel ranks always find the graph that they agreed on, by the rules of V1.

The ranks take the weakest runtime mode and the most padded tokens of any of them, and each then
needs a graph of that mode and size for its own kind of batch. It exists on every rank where each
kind of graph has all the sizes that another rank may bring.
Source: vLLM 0.33, V1 data-parallel coordination (rules 4.7 and 6.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import frozen

from planner.dispatch_v1 import V1DispatchTable
from planner.modes import CUDAGraphMode
from planner.verify.coverage import Coverage
from planner.verify.survey import CaseGroup, Survey

_GRAPH_MODES = (CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL)


@frozen
class _Kind:
    """One kind of batch: the sizes that it is padded to by itself, and all sizes of its graphs."""

    name: str
    own: Mapping[CUDAGraphMode, set[int]]
    graphs: Mapping[CUDAGraphMode, set[int]]


def missing_graphs(survey: Survey) -> Iterator[tuple[int, str]]:
    """Sizes that the ranks may agree on while one of them has no graph for it, and which it lacks."""
    table = survey.plan.dispatch_table(survey.family)
    if not isinstance(table, V1DispatchTable):
        return
    kinds = [
        _kind(table, group, coverage)
        for group in survey.groups
        if group.brought and group.model
        for coverage in group.coverages
    ]
    for mode in _GRAPH_MODES:
        # A rank whose own mode is stronger follows the weakest, and brings its size along.
        modes = [other for other in _GRAPH_MODES if other.strength >= mode.strength]
        weakest = min((size for kind in kinds for size in kind.own[mode]), default=None)
        brought = {size for kind in kinds for other in modes for size in kind.own[other]}
        for kind in kinds:
            smallest = min((size for other in modes for size in kind.own[other]), default=None)
            if weakest is None or smallest is None:
                continue
            for size in sorted(brought - kind.graphs[mode]):
                if size >= max(smallest, weakest):
                    yield size, f"{kind.name} have no {mode} graph of that size"
                    break


def _kind(table: V1DispatchTable, group: CaseGroup, coverage: Coverage) -> _Kind:
    batches, case = coverage.batches, group.cases[0]
    own: dict[CUDAGraphMode, set[int]] = {mode: set() for mode in _GRAPH_MODES}
    graphs: dict[CUDAGraphMode, set[int]] = {mode: set() for mode in _GRAPH_MODES}
    for segment in coverage.served:
        own[segment.entry.mode].add(segment.entry.num_tokens)
    for size in table.family.sizes:
        for entry in table.candidates(size, case):
            if (
                entry.mode is CUDAGraphMode.PIECEWISE
                or entry.uniform_token_count == batches.uniform_token_count
            ):
                graphs[entry.mode].add(size)
    which = "mixed batches" if batches.query_len is None else "uniform decode batches"
    return _Kind(f"{which} of LoRA case {case}", own, graphs)
