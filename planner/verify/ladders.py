"""The order in which batches try the entries of a family, by the rules of its runner.

Source: vLLM 0.33, candidates of the V2 graph manager (rules 5.2, 5.3) and keys of the V1
dispatcher (rules 4.2 to 4.5); for other engines see ``planner.engines.lookup``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from attrs import evolve, frozen

from planner.descriptors import PlanEntry
from planner.dispatch_v1 import V1DispatchTable, v1_dispatch_table
from planner.documents.plan import Lookup, Plan
from planner.engines.lookup import lookup_table, steps
from planner.engines.shared import lookup_runner
from planner.modes import CUDAGraphMode, Runner
from planner.rules.lora import lora_map
from planner.verify.coverage import Ladder


@frozen
class RunnerRules:
    """What a runner does with the entries of one family.

    ``lora_cases`` are the captured ones, ``captured_case`` the one that a number of active
    adapters runs in, and ``ladders`` arranges the entries of one case.
    """

    lora_cases: Sequence[int]
    captured_case: Callable[[int], int]
    ladders: Callable[[Sequence[PlanEntry], int], tuple[Ladder, ...]]


def rules_of(plan: Plan, family: str) -> RunnerRules:
    """The rules of the runner that serves ``family``; of V2 for a family written by hand."""
    resolved = plan.resolved.get(family)
    if resolved is not None and resolved.runner is Runner.V1:
        table = v1_dispatch_table(plan, family, resolved)
        return RunnerRules(table.lora_cases, table.captured_case, lambda _, case: v1_ladders(table, case))
    if (runner := lookup_runner(plan, family)) is not None:
        found = lookup_table(plan, family, runner)
        lookup = found.lookup
        return RunnerRules(
            found.lora_cases, found.captured_case, lambda entries, _: lookup_ladders(entries, lookup)
        )
    if resolved is not None:
        cases = resolved.lora_cases
    else:
        cases = tuple({entry.num_active_loras for entry in plan.entries(family)})
    mapped = lora_map(cases) or (0,)
    return RunnerRules(
        cases,
        lambda number: mapped[min(number, len(mapped) - 1)],
        lambda entries, _: v2_ladders(entries),
    )


def v2_ladders(entries: Sequence[PlanEntry]) -> tuple[Ladder, ...]:
    """Each mode has sizes of its own; of one size, the last captured entry is tried first."""
    ladders = []
    for mode in (CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE):
        steps = sorted([entry for entry in reversed(entries) if entry.mode is mode], key=_tokens)
        ladders.append(_ladder(steps, [entry.num_tokens for entry in steps]))
    return tuple(ladders)


def lookup_ladders(entries: Sequence[PlanEntry], lookup: Lookup) -> tuple[Ladder, ...]:
    """Decode of each query length and prefill have sizes of their own, and graphs for no other batch."""
    found = steps(reversed(entries), lookup)
    by_count: dict[int | None, list[int]] = {}
    for index, (_, entry) in enumerate(found):
        by_count.setdefault(entry.uniform_token_count, []).append(index)
    firsts = [first for first, _ in found]
    return (Ladder(entries=[entry for _, entry in found], firsts=firsts, by_count=by_count, exact=True),)


def v1_ladders(table: V1DispatchTable, case: int) -> tuple[Ladder, ...]:
    """All graphs share one list of sizes, and a size has one key of each kind."""
    sizes = table.family.sizes if table.family.mode else ()
    keys = [entry for size in sizes for entry in table.candidates(size, case)]
    keys = [entry for entry in keys if entry.num_active_loras == case]
    full = [entry for entry in keys if entry.mode is CUDAGraphMode.FULL]
    pieces = [entry for entry in keys if entry.mode is CUDAGraphMode.PIECEWISE]
    # A graph in pieces serves uniform decode too.
    of_any_count = dict.fromkeys((None, table.decode_query_len), range(len(pieces)))
    return _ladder(full, sizes, exact=True), evolve(_ladder(pieces, sizes, exact=True), by_count=of_any_count)


_tokens = attrgetter("num_tokens")


def _ladder(entries: Sequence[PlanEntry], sizes: Iterable[int], *, exact: bool = False) -> Ladder:
    """``entries`` by ascending tokens, tried by what is above the next smaller of the ascending ``sizes``."""
    first_of: dict[int, int] = {}
    below = 0
    for size in sizes:
        if size > below:
            first_of[size], below = below + 1, size
    by_count: dict[int | None, list[int]] = {}
    for index, entry in enumerate(entries):
        by_count.setdefault(entry.uniform_token_count, []).append(index)
    firsts = [first_of[entry.num_tokens] for entry in entries]
    return Ladder(entries=entries, firsts=firsts, by_count=by_count, exact=exact, any_requests=exact)
