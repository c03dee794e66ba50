"""The one change of settings that answers all findings about a plan's capture sizes together.

A hole of the target and one of a draft have the same sizes to blame, so that a fix for each would
undo the other. A change counts only once the plan that follows from it has been looked at: it must
leave no family a hole, and is the better the fewer other findings it leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import evolve, frozen

from planner.describe import label
from planner.descriptors import MAX_GRAPH_TOKENS, PlanEntry
from planner.documents.plan import TARGET
from planner.modes import CUDAGraphMode, Runner
from planner.rules.sizes import SizeRequest
from planner.verify.holes import HoleGroup
from planner.verify.problems import MixedGroup, Problems, problems_of
from planner.verify.size_lists import SizeList
from planner.verify.sizing import suggested_budget, suggested_lists, suggested_maximum
from planner.verify.survey import Survey
from planner.verify.trial import Settings, tried
from planner.verify.wording import SHOWN_RANGES, joined, spans_of

NO_LORA_GRAPHS = "cudagraph_specialize_lora: true"
"""What gives V1 graphs for batches without LoRA."""

MIXED_GRAPHS = f"cudagraph_mode: {CUDAGraphMode.FULL_AND_PIECEWISE}"
"""What gives a V1 draft graphs beside a target of FULL ones."""

COMPILE_ANEW = "planner compile PLAN -o PLAN"


@frozen
class Fixes:
    """What the findings of a plan propose.

    ``setting`` is the one change of settings, ``None`` where none is known; ``left`` are the codes of
    findings that it leaves. ``planned`` are the families and query lengths that have holes by the
    plan's own settings, ``None`` where those could not be tried: what else is missing was lost by hand.
    """

    setting: str | None = None
    left: frozenset[str] = frozenset()
    planned: frozenset[tuple[str, int]] | None = None
    by_settings: bool = False

    def of_code(self, code: str) -> str | None:
        """The fix of findings about sizes with ``code``."""
        return None if code in self.left else self.setting

    def of_decode(self, survey: Survey, group: HoleGroup) -> str | None:
        """The fix of decode holes: the setting, or for a plan that no settings explain, the entries."""
        if not self.by_settings or survey.resolved is None:
            return missing_decode_entries(survey, group)
        is_planned = self.planned is None or (survey.family, group.query_len) in self.planned
        if is_planned or (group.cases == (0,) and _lacks_case_zero(survey)):
            return self.setting
        return missing_decode_entries(survey, group) or COMPILE_ANEW

    def of_mixed(self, survey: Survey, group: MixedGroup) -> str | None:
        """The fix of mixed holes: the setting where one is to blame, else the entries."""
        if _lacks_pieces(survey) or (group.cases in ((), (0,)) and _lacks_case_zero(survey)):
            return self.setting
        return missing_mixed_entries(survey, group)


def fixes_of(problems: Problems, settings: Settings | None) -> Fixes:
    """The fixes of ``problems``; ``settings`` are what the plan followed from, if it says so."""
    if not problems.any:
        return Fixes()
    target = problems.target
    needed = tuple(dict.fromkeys(_other_settings(problems.surveys)))
    if settings is None or target is None or target.resolved is None:
        return Fixes(", ".join(needed) or None)
    if MIXED_GRAPHS in needed:
        settings = evolve(settings, mode=CUDAGraphMode.FULL_AND_PIECEWISE)
    surveys = problems.surveys
    before = tried(surveys, settings)
    start = problems if before is None else problems_of(before, settings.sizes)
    planned = None if before is None else frozenset(_lengths_with_holes(start))
    if before is not None and not start.any:
        return Fixes(", ".join(needed) or None, planned=planned, by_settings=True)
    setting, left = _best(problems, start, settings)
    parts = ", ".join(part for part in (*needed, setting) if part)
    return Fixes(parts or None, left, planned, by_settings=True)


def _other_settings(surveys: Sequence[Survey]) -> Iterator[str]:
    """The settings that leave batches without graphs, whatever the sizes."""
    for survey in surveys:
        if _lacks_case_zero(survey):
            yield NO_LORA_GRAPHS
        if _lacks_pieces(survey):
            yield MIXED_GRAPHS


def _lengths_with_holes(problems: Problems) -> Iterator[tuple[str, int]]:
    return ((survey.family, group.query_len) for survey, group in problems.decode)


def _best(problems: Problems, start: Problems, settings: Settings) -> tuple[str | None, frozenset[str]]:
    """The setting that leaves the fewest holes, then the fewest other findings; and which it leaves."""
    best: tuple[tuple[int, int], str, frozenset[str]] | None = None
    for setting, request in _candidates(start, settings.sizes):
        after = tried(problems.surveys, evolve(settings, sizes=request))
        if after is None:
            continue
        found = problems_of(after, request)
        # A list of sizes may give a note that there was no list to give before.
        worse = {one.code for one in found.sizes if one.severity != "info" or one.code in start.codes}
        rank = found.num_holes, len(worse | (found.codes & start.codes))
        if best is None or rank < best[0]:
            best = rank, setting, found.codes
        if rank == (0, 0):
            break
    if start.num_holes and (best is None or best[0][0]):
        # More sizes than are tried out; a size for every batch always serves it.
        every = _every_batch(start, settings.sizes)
        return (every.setting(settings.sizes.asked_max), frozenset()) if every else (None, start.codes)
    return (None, start.codes) if best is None else best[1:]


def _candidates(start: Problems, request: SizeRequest) -> Iterator[tuple[str, SizeRequest]]:
    """Settings that may answer the problems and the sizes' request that follows, the simplest first."""
    target, asked_max, limit = start.target, request.asked_max, request.max_num_batched_tokens
    if target is None:
        return
    tops = {hole.most * hole.query_len for _, group in start.decode for hole in group.holes}
    suggested = suggested_maximum(target, request)
    if request.asked_sizes is None:
        wanted = [tokens for tokens in (*tops, suggested or 0) if 0 < tokens <= limit]
        for maximum in grid_maxima(max(wanted), limit) if wanted else ():
            yield f"max_cudagraph_capture_size: {maximum}", evolve(request, asked_max=maximum)
    if budget := suggested_budget(request):
        yield f"max_num_batched_tokens: {budget}", evolve(request, max_num_batched_tokens=budget)
    if request.asked_sizes is None and asked_max is not None:
        yield "leave max_cudagraph_capture_size out", evolve(request, asked_max=None)
    for sizes in _lists(start, target, request, tops):
        if sizes.is_bounded:
            yield sizes.setting(asked_max), sizes.asked_in(request)


def _lists(start: Problems, target: Survey, request: SizeRequest, tops: set[int]) -> Iterator[SizeList]:
    in_force = target.resolved.cudagraph_capture_sizes if target.resolved else ()
    added = sorted({*tops, *(padded.rows for _, padded in start.padded)})
    if not added and (suggested := suggested_maximum(target, request)):
        added = [suggested]
    for sizes in suggested_lists(target, request):
        yield sizes
        yield SizeList(sizes.base, added, words=sizes.words and f"{sizes.words}, and {joined(added)}")
    yield SizeList(in_force, added)
    runs = (
        range(group.query_len, max(hole.most for hole in group.holes) * group.query_len + 1, group.query_len)
        for _, group in start.decode
    )
    yield SizeList(in_force, added, tuple(dict.fromkeys(runs)))
    if every := _every_batch(start, request):
        yield every


def _every_batch(problems: Problems, request: SizeRequest) -> SizeList | None:
    """A size for every batch of uniform decode: the nearest is then its own, whatever else there is."""
    longest: dict[int, int] = {}
    for survey in problems.surveys:
        if survey.resolved is None or survey.domain.mode.decode_mode() is not CUDAGraphMode.FULL:
            continue
        for coverage in survey.groups[0].coverages:
            length, most = coverage.batches.query_len, coverage.batches.most_reqs
            if length is not None and most > 0:
                longest[length] = max(longest.get(length, 0), length * most)
    target = problems.target
    in_force = target.resolved.cudagraph_capture_sizes if target and target.resolved else ()
    runs = tuple(range(length, top + 1, length) for length, top in sorted(longest.items(), reverse=True))
    every = SizeList(in_force, (), runs)
    return every if every.last <= min(MAX_GRAPH_TOKENS, request.max_num_batched_tokens) else None


def grid_maxima(needed: int, max_num_batched_tokens: int) -> list[int]:
    """Maxima from ``needed`` on that the default grid may end at."""
    maxima = {needed, -(-needed // 8) * 8, -(-needed // 16) * 16, max_num_batched_tokens}
    largest = min(max_num_batched_tokens, MAX_GRAPH_TOKENS)
    return sorted(maximum for maximum in maxima if needed <= maximum <= largest)


def _lacks_case_zero(survey: Survey) -> bool:
    """Whether V1 captures nothing for batches without LoRA, nor then for a draft, which has none."""
    target = survey.plan.resolved.get(TARGET)
    return target is not None and bool(target.lora_cases) and 0 not in target.lora_cases


def _lacks_pieces(survey: Survey) -> bool:
    """Whether a draft is recorded in pieces, but only beside a target that is."""
    target, own = survey.plan.resolved.get(TARGET), survey.resolved
    if target is None or own is None or survey.family == TARGET or survey.entries:
        return False
    return target.cudagraph_mode is CUDAGraphMode.FULL and own.cudagraph_mode is CUDAGraphMode.PIECEWISE


def missing_decode_entries(survey: Survey, group: HoleGroup) -> str | None:
    """The entries to add to a plan that was written or edited by hand.

    The widest batch's graph serves the smaller ones if no other FULL size comes between; a graph of
    exactly its tokens always serves a batch. V1 looks no further than the sizes that were resolved.
    """
    if survey.domain.runner is Runner.V1:
        return None
    length, cases = group.query_len, group.cases or (0,)
    fewest, most = group.holes[0].fewest, group.holes[-1].most
    between = any(
        entry.mode is CUDAGraphMode.FULL and fewest * length <= entry.num_tokens < most * length
        for entry in survey.entries
    )
    loras = f" in LoRA case {joined(cases)}" if any(cases) else ""
    if between:
        requests = spans_of(((hole.fewest, hole.most) for hole in group.holes), "request")
        return f"add to graphs.{survey.family}: a FULL entry for each of {requests} of {length}{loras}"
    entry = PlanEntry(CUDAGraphMode.FULL, most * length, most, length)
    return f"add to graphs.{survey.family}: {label(entry)}{loras}"


def missing_mixed_entries(survey: Survey, group: MixedGroup) -> str:
    """The entries that give the mixed batches of ``group`` a graph."""
    mode = survey.domain.mode.mixed_mode()
    entries: list[str] = []
    for hole in group.holes:
        fields = f"mode: {mode}, num_tokens: {hole.last}"
        if mode is CUDAGraphMode.FULL:
            fields += f", num_reqs: {min(hole.last, survey.domain.max_num_reqs)}"
        entries.extend(
            f"{{{fields}{f', num_active_loras: {case}' if case else ''}}}" for case in group.cases or (0,)
        )
    if len(entries) > SHOWN_RANGES:
        entries[SHOWN_RANGES:] = [f"{len(entries) - SHOWN_RANGES} more"]
    return f"add to graphs.{survey.family}: {joined(entries)}"
