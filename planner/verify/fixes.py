"""The setting that would close a hole, found by planning again with it.

A candidate counts only if the entries that follow from it leave no hole at the query length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from attrs import evolve

from planner.describe import label
from planner.descriptors import MAX_GRAPH_TOKENS, PlanEntry
from planner.documents.plan import TARGET, Plan, ResolvedFamily
from planner.errors import PlanError
from planner.modes import CUDAGraphMode, Runner
from planner.rules.entries import EntryRequest, family_entries
from planner.rules.entries_v1 import v1_family_entries
from planner.rules.rounding import rounded_to_query_len
from planner.rules.sizes import CaptureSizes, SizeRequest, capture_sizes, size_request
from planner.verify.coverage import cover
from planner.verify.domain import domain_of
from planner.verify.holes import HoleGroup
from planner.verify.ladders import rules_of
from planner.verify.survey import Survey
from planner.verify.wording import joined, spans_of

NO_LORA_GRAPHS = "cudagraph_specialize_lora: true"
"""What gives V1 graphs for batches without LoRA."""

COMPILE_ANEW = "planner compile PLAN -o PLAN"

TRIED_SHAPES = 1 << 14
"""Up to how many pairs of a size and a query length a candidate is tried out."""

LISTED_SIZES = 64
"""Up to how many sizes a fix writes out the whole list."""


def closing_setting(survey: Survey, group: HoleGroup, request: SizeRequest | None) -> str | None:
    """The setting that gives every batch of ``group`` a FULL graph, ``None`` where none is known.

    ``request`` is what the capture sizes followed from, ``None`` in a plan that does not say.
    """
    resolved = survey.resolved
    if request is None or resolved is None:
        return _missing_entries(survey, group)
    if group.cases == (0,) and 0 not in resolved.lora_cases:
        return NO_LORA_GRAPHS
    if group.shadowed and len(survey.domain.tiers) > 1:
        return _multiples(resolved, group, request.asked_max)
    if _closes(survey, group, request):
        # The settings have the graphs, so the plan was edited.
        return _missing_entries(survey, group) or COMPILE_ANEW
    for setting, candidate in _candidates(resolved, group, request):
        if _closes(survey, group, candidate):
            return setting
    return _multiples(resolved, group, request.asked_max)


def request_behind(plan: Plan) -> SizeRequest | None:
    """What the capture sizes of ``plan`` followed from, ``None`` where the plan does not say."""
    resolved = plan.resolved.get(TARGET)
    if resolved is None or not resolved.max_num_seqs or not resolved.max_num_batched_tokens:
        return None
    if TARGET not in plan.graphs:
        return None
    tiers = domain_of(plan, TARGET).tiers
    try:
        return size_request(
            plan.deployment,
            max_num_seqs=resolved.max_num_seqs,
            max_num_batched_tokens=resolved.max_num_batched_tokens,
            query_len=resolved.decode_query_len or 1,
            tiers=tiers,
        )
    except PlanError:  # Nothing compiles the deployment of a plan that was written by hand.
        return None


def planned_sizes(request: SizeRequest, resolved: ResolvedFamily) -> CaptureSizes | None:
    """The capture sizes of ``request`` as ``resolved``'s runner takes them, ``None`` if it refuses."""
    try:
        sizes = capture_sizes(request)
        if resolved.runner is Runner.V1 and resolved.cudagraph_mode.decode_mode() is CUDAGraphMode.FULL:
            return rounded_to_query_len(sizes, request.query_len)
    except PlanError:
        return None
    return sizes


def size_list(in_force: Sequence[int], added: Iterable[int], asked_max: int | None, summary: str) -> str:
    """``cudagraph_capture_sizes: [1, 2, 4]``; a list too long to read is told by ``summary``.

    A maximum that was asked for has to stay the last size.
    """
    sizes = sorted({*in_force, *added})
    listed = str(sizes) if len(sizes) <= LISTED_SIZES else f"those in force and {summary}"
    setting = f"cudagraph_capture_sizes: {listed}"
    if asked_max not in (None, sizes[-1]):
        setting += f", max_cudagraph_capture_size: {sizes[-1]}"
    return setting


def _candidates(
    resolved: ResolvedFamily, group: HoleGroup, request: SizeRequest
) -> Iterator[tuple[str, SizeRequest]]:
    """Settings that may close the holes and what sizes follow from, the simplest first."""
    tops = sorted(hole.most * group.query_len for hole in group.holes)
    if request.asked_sizes is None:
        for maximum in grid_maxima(tops[-1], request.max_num_batched_tokens):
            yield f"max_cudagraph_capture_size: {maximum}", evolve(request, asked_max=maximum)
        if request.asked_max is not None:
            yield "leave max_cudagraph_capture_size out", evolve(request, asked_max=None)
    sizes = tuple(sorted({*resolved.cudagraph_capture_sizes, *tops}))
    setting = size_list(resolved.cudagraph_capture_sizes, tops, request.asked_max, joined(tops))
    yield setting, evolve(request, asked_sizes=sizes, asked_max=None)


def _multiples(resolved: ResolvedFamily, group: HoleGroup, asked_max: int | None) -> str:
    """Every batch of the query length exactly: then its own size is the nearest, whatever else there is."""
    length, top = group.query_len, max(hole.most for hole in group.holes) * group.query_len
    every = range(length, top + 1, length)
    return size_list(
        resolved.cudagraph_capture_sizes, every, asked_max, f"every multiple of {length} up to {top}"
    )


def grid_maxima(needed: int, max_num_batched_tokens: int) -> list[int]:
    """Maxima from ``needed`` on that the default grid may end at."""
    maxima = {needed, -(-needed // 8) * 8, -(-needed // 16) * 16, max_num_batched_tokens}
    largest = min(max_num_batched_tokens, MAX_GRAPH_TOKENS)
    return sorted(maximum for maximum in maxima if needed <= maximum <= largest)


def _closes(survey: Survey, group: HoleGroup, request: SizeRequest) -> bool:
    """Whether the entries that follow from ``request`` leave no hole at the query length."""
    resolved, plan, family = survey.resolved, survey.plan, survey.family
    sizes = planned_sizes(request, resolved) if resolved else None
    if resolved is None or sizes is None or request.asked_max not in (None, sizes.maximum):
        return False
    if sizes.maximum > MAX_GRAPH_TOKENS:
        return False
    wanted = EntryRequest(
        mode=resolved.cudagraph_mode,
        sizes=sizes.sizes,
        max_num_seqs=request.max_num_seqs,
        decode_query_len=resolved.decode_query_len or 1,
        query_lens=resolved.uniform_query_lens,
        varlen_decode=family == TARGET and plan.deployment.verifies_adaptively,
    )
    if len(wanted.sizes) * max(len(wanted.query_lens), 1) > TRIED_SHAPES:
        return False
    entries = (v1_family_entries if resolved.runner is Runner.V1 else family_entries)(wanted)
    planned = evolve(resolved, cudagraph_capture_sizes=sizes.sizes, lora_cases=(0,))
    tried = evolve(plan, graphs={family: entries}, resolved={**plan.resolved, family: planned})
    coverage = cover(group.batches, rules_of(tried, family).ladders(entries, 0))
    full = all(served.entry.mode is CUDAGraphMode.FULL for served in coverage.served)
    return full and not coverage.unserved


def _missing_entries(survey: Survey, group: HoleGroup) -> str | None:
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
