"""Prefill without a graph, where prefill is looked up by tokens.

Most of it is meant so by the engine: tokens beyond the largest graph, and batches that a graph would
pad too much. It is worth knowing all the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.describe import counted
from planner.documents.plan import Finding, Severity
from planner.verify.coverage import Gap
from planner.verify.survey import Survey
from planner.verify.wording import spans_of


def prefill_holes_found(survey: Survey) -> Iterator[Finding]:
    """The prefill batches that run eagerly: those that are padded too much, and those that are too large."""
    lookup, largest = survey.domain.lookup, survey.largest_mixed_size
    if lookup is None or not largest:
        return
    gaps = [
        gap
        for group in survey.groups
        for coverage in group.coverages
        if coverage.batches.query_len is None
        for gap in coverage.unserved
    ]
    within = [(gap.first, min(gap.last, largest)) for gap in gaps if gap.first <= largest and _is_any(gap)]
    if within:
        factor = lookup.max_prefill_factor
        because = f"no graph has at most {factor} times its tokens" if factor else "no graph fits"
        yield _finding(survey, within, because)
    beyond = [(max(gap.first, largest + 1), gap.last) for gap in gaps if gap.last > largest]
    if beyond:
        yield _finding(survey, beyond, f"the largest has {counted(largest, 'token')}")
    if lookup.max_prefill_seq_len is not None:
        longest = lookup.max_prefill_seq_len
        yield Finding(
            severity=Severity.INFO,
            code="prefill-hole",
            message=f"{survey.prefix}prefill of sequences of more than {longest} tokens, context included, "
            "runs eagerly",
        )
    crowded = [gap for gap in gaps if gap.last <= largest and not _is_any(gap)]
    if crowded:
        most = min(gap.fewest for gap in crowded) - 1
        spans = [(gap.first, gap.last) for gap in crowded]
        yield _finding(survey, spans, f"no graph holds more than {counted(most, 'request')}")


def _is_any(gap: Gap) -> bool:
    """Whether the gap does not depend on the number of requests."""
    return gap.fewest == 1


def _finding(survey: Survey, spans: list[tuple[int, int]], because: str) -> Finding:
    tokens = spans_of(spans, "token")
    return Finding(
        severity=Severity.INFO,
        code="prefill-hole",
        message=f"{survey.prefix}prefill of {tokens} runs eagerly: {because}",
    )
