"""Findings about holes: which batches, what they fall back to, and what closes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from attrs import evolve

from planner.documents.plan import TARGET, Finding, Severity
from planner.verify.fixes import Fixes
from planner.verify.holes import DecodeHole, HoleGroup
from planner.verify.problems import MixedGroup, Problems
from planner.verify.survey import Survey
from planner.verify.wording import joined, of_cases, span, span_of, spans_of

Told = tuple[str, Finding]
"""A family, and a finding whose message does not name it."""


def holes_found(problems: Problems, fixes: Fixes) -> Iterator[Told]:
    """One finding for each query length and kind of decode hole, and for each kind of mixed hole."""
    for survey, group in problems.decode:
        yield survey.family, evolve(_decode_finding(survey, group), fix=fixes.of_decode(survey, group))
    for survey, mixed in problems.mixed:
        yield survey.family, evolve(_mixed_finding(mixed), fix=fixes.of_mixed(survey, mixed))


def told_once(told: Iterable[Told]) -> Mapping[str, list[Finding]]:
    """Findings under the first family that they are about; one that several share names them all.

    A message about the target alone names no family.
    """
    families: dict[Finding, list[str]] = {}
    for family, finding in told:
        families.setdefault(finding, []).append(family)
    under: dict[str, list[Finding]] = {}
    for finding, names in families.items():
        prefix = "" if names == [TARGET] else f"{joined(f'graphs.{name}' for name in names)}: "
        under.setdefault(names[0], []).append(evolve(finding, message=f"{prefix}{finding.message}"))
    return under


def _decode_finding(survey: Survey, group: HoleGroup) -> Finding:
    holes = group.holes
    what = f"uniform decode of {_requests(holes)}"
    if len(survey.domain.tiers) > 1:
        what += f" of {span_of(group.query_len, group.query_len, 'token')}"
    lacks = "has no graph" if all(hole.pieces is None for hole in holes) else "has no FULL graph"
    code, because = "decode-hole", ""
    if group.shadowed and survey.domain.lookup is not None:
        code, because = "no-exact-size", "without padding, only batches of exactly a captured size replay, "
    elif group.shadowed:
        code, because = "shadowed-by-tier", "the nearest size has none of that length, "
    # Without a limit that somebody set, hardly a server ever has so many requests.
    is_open = survey.plan.deployment.scheduler.max_num_seqs is None
    is_far = is_open and survey.domain.lookup is not None and not group.shadowed
    return Finding(
        severity=Severity.INFO if is_far else Severity.WARNING,
        code=code,
        message=f"{what}{of_cases(group.cases)} {lacks}: {because}{_fallback(group)}",
    )


def _mixed_finding(group: MixedGroup) -> Finding:
    tokens = spans_of(((hole.first, hole.last) for hole in group.holes), "token")
    at_least = min(hole.fewest for hole in group.holes)
    requests = f" and {at_least} requests or more" if at_least > 1 else ""
    cases = of_cases(group.cases)
    return Finding(
        severity=Severity.WARNING,
        code="mixed-hole",
        message=f"mixed batches of {tokens}{requests}{cases} have no graph: they run eagerly",
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
