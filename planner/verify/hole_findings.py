"""Findings about holes: which batches, what they fall back to, and the setting that closes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.documents.plan import TARGET, Finding, Severity
from planner.modes import CUDAGraphMode
from planner.rules.sizes import SizeRequest
from planner.verify.fixes import NO_LORA_GRAPHS, closing_setting
from planner.verify.holes import DecodeHole, HoleGroup, MixedHole, grouped_decode_holes, grouped_mixed_holes
from planner.verify.survey import Survey
from planner.verify.wording import SHOWN_RANGES, joined, of_cases, span, span_of, spans_of


def decode_holes_found(survey: Survey, request: SizeRequest | None) -> Iterator[Finding]:
    """One finding for each query length and kind of hole of uniform decode.

    ``request`` is what the capture sizes followed from, ``None`` in a plan that does not say.
    """
    for group in grouped_decode_holes(survey):
        holes = group.holes
        what = f"uniform decode of {_requests(holes)}"
        if len(survey.domain.tiers) > 1:
            what += f" of {span_of(group.query_len, group.query_len, 'token')}"
        lacks = "has no graph" if all(hole.pieces is None for hole in holes) else "has no FULL graph"
        because = "the nearest size has none of that length, " if group.shadowed else ""
        yield Finding(
            severity=Severity.WARNING,
            code="shadowed-by-tier" if group.shadowed else "decode-hole",
            message=f"{survey.prefix}{what}{of_cases(group.cases)} {lacks}: {because}{_fallback(group)}",
            fix=closing_setting(survey, group, request),
        )


def mixed_holes_found(survey: Survey) -> Iterator[Finding]:
    """One finding for the mixed batches of the same LoRA cases."""
    for holes, cases in grouped_mixed_holes(survey):
        tokens = spans_of(((hole.first, hole.last) for hole in holes), "token")
        at_least = min(hole.fewest for hole in holes)
        requests = f" and {at_least} requests or more" if at_least > 1 else ""
        yield Finding(
            severity=Severity.WARNING,
            code="mixed-hole",
            message=f"{survey.prefix}mixed batches of {tokens}{requests}{of_cases(cases)} have no graph: "
            "they run eagerly",
            fix=_mixed_fix(survey, holes, cases),
        )


def _requests(holes: Sequence[DecodeHole]) -> str:
    return spans_of(((hole.fewest, hole.most) for hole in holes), "request")


def _fallback(group: HoleGroup) -> str:
    """What the batches run in instead."""
    in_pieces = [hole for hole in group.holes if hole.pieces is not None]
    eager = [hole for hole in group.holes if hole.pieces is None]
    sizes = [hole.pieces for hole in in_pieces if hole.pieces is not None]
    pieces = f"PIECEWISE {span(min(sizes), max(sizes))}" if sizes else ""
    if in_pieces and eager:
        return f"{_requests(in_pieces)} run in {pieces} and {_requests(eager)} eagerly"
    first, last = group.holes[0].fewest * group.query_len, group.holes[-1].most * group.query_len
    runs = "runs" if first == last == 1 else "run"
    return f"{span_of(first, last, 'token')} {runs} {f'in {pieces}' if pieces else 'eagerly'}"


def _mixed_fix(survey: Survey, holes: Sequence[MixedHole], cases: Sequence[int]) -> str:
    """What gives the batches of ``holes`` a graph."""
    target = survey.plan.resolved.get(TARGET)
    if target is not None and target.lora_cases and 0 not in target.lora_cases and cases in ((), (0,)):
        return NO_LORA_GRAPHS
    if not survey.entries and target is not None and target.cudagraph_mode is CUDAGraphMode.FULL:
        return f"cudagraph_mode: {CUDAGraphMode.FULL_AND_PIECEWISE}"
    mode = survey.domain.mode.mixed_mode()
    entries: list[str] = []
    for hole in holes:
        fields = f"mode: {mode}, num_tokens: {hole.last}"
        if mode is CUDAGraphMode.FULL:
            fields += f", num_reqs: {min(hole.last, survey.domain.max_num_reqs)}"
        entries.extend(
            f"{{{fields}{f', num_active_loras: {case}' if case else ''}}}" for case in cases or (0,)
        )
    if len(entries) > SHOWN_RANGES:
        entries[SHOWN_RANGES:] = [f"{len(entries) - SHOWN_RANGES} more"]
    return f"add to graphs.{survey.family}: {joined(entries)}"
