"""Dispatch: which entry of a family serves a batch.

The table is computed once from the entries. A look-up finds the nearest size at or above the
batch and returns the first entry there that fits; a larger entry of the same mode is never tried.
Source: vLLM 0.33, candidates and dispatch of the V2 graph manager (rules 5.2, 5.3, 5.5).
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence, Set

from planner.descriptors import BatchExecutionDescriptor, PlanEntry, fits
from planner.dispatch_v1 import V1DispatchTable, v1_dispatch_table
from planner.documents.plan import Microbatching, Plan
from planner.engines.shared import lookup_runner
from planner.errors import PlanError
from planner.modes import CUDAGraphMode, Runner
from planner.rules.lora import lora_map

MAX_CELLS = 1 << 25
"""Most cells of a table: one for each number of tokens up to the largest, for each LoRA case."""

MAX_COMPARISONS = 1 << 24
"""Most comparisons to make a table: every uniform count of a size with every entry that it tries."""

Candidate = tuple[int, int | None, BatchExecutionDescriptor]
"""Most requests, longest query (``None`` where open), answer."""

Ladder = tuple[list[int], list[tuple[PlanEntry, ...]]]
"""Sizes of one LoRA case, ascending, and the entries that batches up to each size try."""

_NONE = CUDAGraphMode.NONE
_ANY_REQUESTS = sys.maxsize


_Choice = tuple[int, BatchExecutionDescriptor, tuple[Candidate, ...]]
"""The first candidate where requests alone limit it, with that limit; then all candidates."""


class _Cell(dict[int | None, _Choice]):
    """What one number of tokens may run in, by uniform token count; ``None`` serves any other count."""

    def __missing__(self, uniform_token_count: int | None) -> _Choice:
        return self[None]


class DispatchTable:
    """Answers dispatch for one family of a plan, by the rules of the V2 runner.

    ``entries`` are in capture order, ``lora_cases`` the captured numbers of active adapters,
    ``decode_query_len`` the family's own query length in tokens.
    """

    def __init__(
        self,
        entries: Iterable[PlanEntry],
        *,
        lora_cases: Iterable[int] = (0,),
        microbatching: Microbatching | None = None,
        decode_query_len: int | None = None,
    ) -> None:
        self.entries = tuple(entries)
        self.lora_cases = tuple(lora_cases)
        self.microbatching = microbatching
        self.decode_query_len = decode_query_len
        self._lora_map = lora_map(self.lora_cases)
        self._ladders = {case: self._ladder(group) for case, group in _by_case(self.entries).items()}
        self._max_tokens = max((entry.num_tokens for entry in self.entries), default=0)
        rows = {case: self._row(ladder) for case, ladder in self._ladders.items()}
        nothing = self._row(([], []))
        self._rows = {active: rows.get(case, nothing) for active, case in enumerate(self._lora_map or (0,))}
        self._beyond_map = self._rows[len(self._rows) - 1] if self._lora_map else nothing

    def captured_case(self, num_active_loras: int) -> int:
        """The LoRA case that ``num_active_loras`` adapters run in; above the largest, the largest."""
        if num_active_loras <= 0 or not self._lora_map:
            return num_active_loras
        return self._lora_map[min(num_active_loras, len(self._lora_map) - 1)]

    def dispatch(
        self,
        num_reqs: int,
        num_tokens: int,
        uniform_token_count: int | None = None,
        num_active_loras: int = 0,
        max_query_len: int | None = None,
        num_ubatches: int = 1,
    ) -> BatchExecutionDescriptor:
        """The graph that serves a batch of one rank, or a NONE descriptor of the batch unpadded.

        A batch that cannot be, such as one with more requests than tokens, is not refused: this is
        called at every step, by a server that forms its batches itself. ``planner.agree`` and
        ``planner dispatch`` check what they are given.

        ``uniform_token_count`` is the tokens of every request where all have the same number,
        ``max_query_len`` the tokens of the longest request where none is in prefill.
        """
        if num_ubatches != 1:
            return self._dispatch_microbatches(
                num_reqs, num_tokens, uniform_token_count, num_active_loras, max_query_len, num_ubatches
            )
        try:
            row = self._rows[num_active_loras]
        except KeyError:
            row = self._beyond_map
        if 0 < num_tokens <= self._max_tokens:
            # The rest of ``fits`` was decided when the table was made; two limits are left open.
            most_reqs, descriptor, candidates = row[num_tokens][uniform_token_count]
            if num_reqs <= most_reqs:
                return descriptor
            for most_reqs, longest, descriptor in candidates:
                if num_reqs <= most_reqs and (
                    longest is None or (max_query_len is not None and max_query_len <= longest)
                ):
                    return descriptor
        case = self.captured_case(num_active_loras) if num_active_loras else 0
        return BatchExecutionDescriptor(_NONE, num_tokens, num_reqs, None, None, case)

    def candidates(self, num_tokens: int, num_active_loras: int = 0) -> tuple[PlanEntry, ...]:
        """Entries that dispatch would try for a batch of ``num_tokens`` tokens, in order."""
        ladder = self._ladders.get(self.captured_case(num_active_loras))
        if ladder is None or not 0 < num_tokens <= ladder[0][-1]:
            return ()
        sizes, entries = ladder
        return entries[bisect_left(sizes, num_tokens)]

    def _ladder(self, entries: Sequence[PlanEntry]) -> Ladder:
        return _ladder(entries)

    def _candidates(
        self, entries: Sequence[PlanEntry], uniform_token_count: int | None
    ) -> tuple[Candidate, ...]:
        return fitting(entries, uniform_token_count)

    def _counts(self, entries: Sequence[PlanEntry]) -> Set[int | None]:
        return {None, *(entry.uniform_token_count for entry in entries)}

    def _row(self, ladder: Ladder) -> tuple[_Cell, ...]:
        """A cell for every number of tokens from 0 to those of the largest entry."""
        nothing = _Cell({None: _choice(())})
        row = [nothing]
        for size, entries in zip(*ladder, strict=True):
            counts = self._counts(entries)
            cell = _Cell({count: _choice(self._candidates(entries, count)) for count in counts})
            row.extend([cell] * (size + 1 - len(row)))
        row.extend([nothing] * (self._max_tokens + 1 - len(row)))
        return tuple(row)

    def _dispatch_microbatches(
        self,
        num_reqs: int,
        num_tokens: int,
        uniform_token_count: int | None,
        num_active_loras: int,
        max_query_len: int | None,
        num_ubatches: int,
    ) -> BatchExecutionDescriptor:
        case = self.captured_case(num_active_loras)
        for entry in self.candidates(num_tokens, num_active_loras):
            if fits(entry, num_reqs, num_tokens, uniform_token_count, case, max_query_len, num_ubatches):
                return entry.execution_descriptor
        return BatchExecutionDescriptor(_NONE, num_tokens, num_reqs, None, None, case, num_ubatches)


def dispatch_table(plan: Plan, family: str) -> DispatchTable | V1DispatchTable:
    """The table of ``family`` by the rules of its runner.

    A plan written by hand may lack what was resolved for it, and then is one for the V2 runner, or for
    the engine that its deployment names.

    Raises:
        FamilyError: the plan has no such family.
        PlanError: its entries would make a table of gigabytes, as no compiled plan does.
    """
    entries = plan.entries(family)
    resolved = plan.resolved.get(family)
    if resolved is None or resolved.runner is not Runner.V1:
        _refuse_unbounded(family, entries)
    if (runner := lookup_runner(plan, family)) is not None:
        from planner.engines.lookup import lookup_table

        return lookup_table(plan, family, runner)
    if resolved is None:
        return DispatchTable(entries, lora_cases={entry.num_active_loras for entry in entries})
    if resolved.runner is Runner.V1:
        return v1_dispatch_table(plan, family, resolved)
    return DispatchTable(
        entries,
        lora_cases=resolved.lora_cases,
        microbatching=resolved.microbatching,
        decode_query_len=resolved.decode_query_len,
    )


def _refuse_unbounded(family: str, entries: Sequence[PlanEntry]) -> None:
    """Refuse a table that a plan of few bytes would make too large to hold or too slow to make."""
    places = Counter((entry.num_active_loras, entry.num_tokens, entry.mode) for entry in entries)
    cases = {case for case, _, _ in places}
    largest = max((tokens for _, tokens, _ in places), default=0)
    if len(cases) * largest > MAX_CELLS:
        raise PlanError(
            f"{len(cases)} LoRA cases with graphs of up to {largest} tokens are too many to dispatch from; "
            "drop those that serve nothing",
            fields=(f"graphs.{family}",),
        )
    # A size tries the entries of one FULL and one PIECEWISE size, for each uniform count among them.
    alike: dict[CUDAGraphMode, int] = {}
    for (_, _, mode), count in places.items():
        alike[mode] = max(alike.get(mode, 0), count)
    if len(places) * sum(alike.values()) ** 2 > MAX_COMPARISONS:
        raise PlanError(
            f"{max(alike.values())} graphs of the same mode, tokens and LoRAs are too many to dispatch from; "
            "drop those that serve nothing",
            fields=(f"graphs.{family}",),
        )


def _by_case(entries: Sequence[PlanEntry]) -> dict[int, list[PlanEntry]]:
    """Entries of each LoRA case, from the last captured to the first."""
    by_case: dict[int, list[PlanEntry]] = {}
    for entry in reversed(entries):
        by_case.setdefault(entry.num_active_loras, []).append(entry)
    return by_case


def _ladder(entries: Sequence[PlanEntry]) -> Ladder:
    """The sizes of one LoRA case, ascending, and what batches up to each may run in.

    Those are the entries of the nearest FULL size, then those of the nearest PIECEWISE size.
    """
    by_mode: dict[CUDAGraphMode, dict[int, list[PlanEntry]]] = {}
    for entry in entries:
        by_mode.setdefault(entry.mode, {}).setdefault(entry.num_tokens, []).append(entry)
    full = by_mode.get(CUDAGraphMode.FULL, {})
    pieces = by_mode.get(CUDAGraphMode.PIECEWISE, {})
    sizes = sorted({*full, *pieces}, reverse=True)
    trials: list[tuple[PlanEntry, ...]] = []
    nearest_full: Sequence[PlanEntry] = ()
    nearest_pieces: Sequence[PlanEntry] = ()
    for size in sizes:
        nearest_full, nearest_pieces = full.get(size, nearest_full), pieces.get(size, nearest_pieces)
        trials.append((*nearest_full, *nearest_pieces))
    return sizes[::-1], trials[::-1]


def _choice(candidates: tuple[Candidate, ...]) -> _Choice:
    if candidates and candidates[0][1] is None:
        return candidates[0][0], candidates[0][2], candidates
    return -_ANY_REQUESTS, BatchExecutionDescriptor(_NONE, 0, 0), candidates


def fitting(entries: Iterable[PlanEntry], uniform_token_count: int | None) -> tuple[Candidate, ...]:
    """Entries that the smallest batch of this uniform token count fits, with the limits left open."""
    return tuple(
        (
            _ANY_REQUESTS if entry.num_reqs is None else entry.num_reqs,
            entry.max_query_len,
            entry.execution_descriptor,
        )
        for entry in entries
        if fits(entry, 0, 0, uniform_token_count, entry.num_active_loras, entry.max_query_len, 1)
    )
