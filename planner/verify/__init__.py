"""Verification: what a person should know about a plan, as findings.

Everything is decided exactly, over ranges of requests and tokens; no batch is ever sampled.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.documents.plan import Finding, Plan, Severity
from planner.rules.encoder import ENCODER
from planner.rules.sizes import SizeRequest
from planner.verify.buffers import draft_buffers_found
from planner.verify.checks import (
    contradictions_found,
    duplicates_found,
    ignored_settings,
    misorder_found,
)
from planner.verify.counts import graph_count_found
from planner.verify.coverage import TooManyRangesError
from planner.verify.fixes import request_behind
from planner.verify.hole_findings import decode_holes_found, mixed_holes_found
from planner.verify.ranks import disagreements_found
from planner.verify.reachability import unreached_found
from planner.verify.sizing import misaligned_found, sizes_found
from planner.verify.survey import Survey, survey_of


def verify(plan: Plan) -> tuple[Finding, ...]:
    """Findings about the document, then family by family."""
    request = request_behind(plan)
    findings = list(ignored_settings(plan))
    for family in plan.graphs:
        try:
            findings.extend(_family_findings(survey_of(plan, family), request))
        except TooManyRangesError:
            findings.append(_unverified(family))
    return tuple(findings)


def _unverified(family: str) -> Finding:
    return Finding(
        severity=Severity.ERROR,
        code="unverified",
        message=f"graphs.{family}: not verified: its entries are for more query lengths and numbers of "
        "requests than any server captures",
        fix="leave out entries that no batch needs",
    )


def _family_findings(survey: Survey, request: SizeRequest | None) -> Iterator[Finding]:
    yield from duplicates_found(survey)
    yield from misorder_found(survey)
    yield from contradictions_found(survey)
    if survey.family == ENCODER:
        return  # An encoder's batches are images, of which requests and their tokens tell nothing.
    yield from misaligned_found(survey)
    yield from decode_holes_found(survey, request)
    yield from mixed_holes_found(survey)
    yield from unreached_found(survey)
    yield from sizes_found(survey, request)
    yield from draft_buffers_found(survey)
    yield from disagreements_found(survey)
    yield from graph_count_found(survey)
