"""Verification: what a person should know about a plan, as findings.

Everything is decided exactly, over ranges of requests and tokens; no batch is ever sampled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import evolve

from planner.documents.plan import TARGET, Finding, Plan, Severity
from planner.engines.shared import lookup_runner
from planner.estimate.findings import memory_found
from planner.rules.encoder import ENCODER
from planner.verify.buffers import DRAFT_BUFFER, padded_decode_finding, prologues_found
from planner.verify.checks import (
    contradictions_found,
    duplicates_found,
    ignored_settings,
    misorder_found,
    missing_target,
    policy_without_effect,
)
from planner.verify.counts import graph_count_found
from planner.verify.coverage import TooManyRangesError
from planner.verify.fixes import fixes_of
from planner.verify.hole_findings import holes_found, told_once
from planner.verify.lookup_fixes import lookup_fixes
from planner.verify.lookup_holes import prefill_holes_found
from planner.verify.problems import problems_of
from planner.verify.ranks import disagreements_found
from planner.verify.reachability import unreached_found
from planner.verify.sizing import misaligned_found
from planner.verify.survey import Survey, survey_of
from planner.verify.trial import settings_behind


def verify(plan: Plan) -> tuple[Finding, ...]:
    """Findings about the document, then family by family."""
    surveys = {family: _survey_of(plan, family) for family in plan.graphs}
    is_vllm = lookup_runner(plan, TARGET) is None
    settings = settings_behind(plan)
    problems = problems_of([one for one in surveys.values() if one], settings.sizes if settings else None)
    fixes = fixes_of(problems, settings) if is_vllm else lookup_fixes(plan, problems)
    shared = told_once(holes_found(problems, fixes))
    padded = told_once(
        (survey.family, padded_decode_finding(one, fixes.of_code(DRAFT_BUFFER)))
        for survey, one in problems.padded
    )
    sizes = [evolve(finding, fix=fixes.of_code(finding.code)) for finding in problems.sizes]
    findings = [*ignored_settings(plan), *policy_without_effect(plan), *missing_target(plan)]
    for family, survey in surveys.items():
        of_sizes = (*(sizes if family == TARGET else ()), *padded.get(family, ()))
        try:
            if survey is None:
                raise TooManyRangesError
            findings.extend(_family_findings(survey, shared.get(family, ()), of_sizes))
        except TooManyRangesError:
            findings.append(_unverified(family))
    return (*findings, *memory_found(plan))


def _survey_of(plan: Plan, family: str) -> Survey | None:
    try:
        return survey_of(plan, family)
    except TooManyRangesError:
        return None


def _unverified(family: str) -> Finding:
    return Finding(
        severity=Severity.ERROR,
        code="unverified",
        message=f"graphs.{family}: not verified: its entries are for more query lengths and numbers of "
        "requests than any server captures",
        fix="leave out entries that no batch needs",
    )


def _family_findings(survey: Survey, holes: Sequence[Finding], sizes: Sequence[Finding]) -> Iterator[Finding]:
    """All findings about a family; ``holes`` and ``sizes`` are those that families share a fix of."""
    yield from duplicates_found(survey)
    yield from misorder_found(survey)
    yield from contradictions_found(survey)
    if survey.family == ENCODER:
        return  # An encoder's batches are images, of which requests and their tokens tell nothing.
    yield from misaligned_found(survey)
    yield from holes
    yield from prefill_holes_found(survey)
    yield from unreached_found(survey)
    yield from sizes
    yield from prologues_found(survey)
    yield from disagreements_found(survey)
    yield from graph_count_found(survey)
