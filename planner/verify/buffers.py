"""Rows that graphs with drafts need, against the rows that their buffers have.

A buffer made for ``max_num_seqs`` decode requests has as many rows as those have tokens; a batch
that is padded beyond them writes past its end.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from planner.describe import counted, label
from planner.documents.plan import Finding, Severity
from planner.modes import CUDAGraphMode
from planner.verify.survey import Survey

DRAFT_BUFFER = "draft-buffer"


@frozen
class PaddedDecode:
    """The widest decode batch that is padded beyond the ``rows`` of ``num_seqs`` requests."""

    num_reqs: int
    num_tokens: int
    padded_to: int
    mode: CUDAGraphMode
    num_seqs: int
    rows: int


def padded_decode(survey: Survey) -> PaddedDecode | None:
    """The widest uniform decode batch that needs more rows than ``max_num_seqs`` requests have."""
    seqs, length = survey.domain.max_num_seqs, survey.domain.decode_query_len
    if seqs is None or survey.plan.deployment.speculative is None or survey.domain.lookup is not None:
        return None
    rows = seqs * length
    beyond = [
        segment
        for group in survey.groups
        if group.active
        for coverage in group.coverages
        if coverage.batches.query_len == length
        for segment in coverage.served
        if segment.entry.num_tokens > rows
    ]
    if not beyond:
        return None
    segment = max(beyond, key=lambda segment: segment.most)
    most, entry = segment.most, segment.entry
    return PaddedDecode(most, most * length, entry.num_tokens, entry.mode, seqs, rows)


def padded_decode_finding(padded: PaddedDecode, setting: str | None) -> Finding:
    """The finding about it; ``setting`` is what leads to no such padding."""
    fix = f"draft buffers of {padded.padded_to} rows"
    return Finding(
        severity=Severity.WARNING,
        code=DRAFT_BUFFER,
        message=f"decode of {counted(padded.num_reqs, 'request')} has {padded.num_tokens} rows, padded to "
        f"{padded.padded_to} ({padded.mode}), but draft buffers for {counted(padded.num_seqs, 'request')} "
        f"have {padded.rows}",
        fix=f"{setting}, or {fix}" if setting else fix,
    )


def prologues_found(survey: Survey) -> Iterator[Finding]:
    """Prologues that store more rows than ``max_num_seqs`` requests have."""
    seqs, speculative = survey.domain.max_num_seqs, survey.plan.deployment.speculative
    if seqs is None or speculative is None:
        return
    verified = 1 + (speculative.num_speculative_tokens or 0)
    held = min(seqs * verified, survey.domain.max_num_tokens)
    for entry in survey.entries:
        if entry.prologue is not None and entry.prologue.num_context_tokens > held:
            stored = entry.prologue.num_context_tokens
            yield Finding(
                severity=Severity.ERROR,
                code=DRAFT_BUFFER,
                message=f"graphs.{survey.family}: {label(entry)}: its prologue stores {stored} context rows, "
                f"but {counted(seqs, 'request')} have {held}",
                fix=f"num_context_tokens: {min((entry.num_reqs or 1) * verified, held)}",
            )
