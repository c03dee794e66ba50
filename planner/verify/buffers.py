"""Rows that graphs with drafts need, against the rows that their buffers have.

A buffer made for ``max_num_seqs`` decode requests has as many rows as those have tokens; a batch
that is padded beyond them writes past its end.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.describe import counted, label
from planner.documents.plan import TARGET, Finding, Severity
from planner.verify.fixes import size_list
from planner.verify.survey import Survey


def draft_buffers_found(survey: Survey) -> Iterator[Finding]:
    """Uniform decode and prologues that need more rows than ``max_num_seqs`` requests have."""
    seqs, speculative = survey.domain.max_num_seqs, survey.plan.deployment.speculative
    if seqs is None or speculative is None:
        return
    yield from _padded_decode(survey, seqs, seqs * survey.domain.decode_query_len)
    verified = 1 + (speculative.num_speculative_tokens or 0)
    held = min(seqs * verified, survey.domain.max_num_tokens)
    for entry in survey.entries:
        if entry.prologue is not None and entry.prologue.num_context_tokens > held:
            stored = entry.prologue.num_context_tokens
            yield Finding(
                severity=Severity.ERROR,
                code="draft-buffer",
                message=f"graphs.{survey.family}: {label(entry)}: its prologue stores {stored} context rows, "
                f"but {counted(seqs, 'request')} have {held}",
                fix=f"num_context_tokens: {min((entry.num_reqs or 1) * verified, held)}",
            )


def _padded_decode(survey: Survey, seqs: int, rows: int) -> Iterator[Finding]:
    """The widest decode batch that is padded beyond ``rows``, the rows of ``seqs`` requests."""
    beyond = [
        segment
        for group in survey.groups
        if group.active
        for coverage in group.coverages
        if coverage.batches.query_len == survey.domain.decode_query_len
        for segment in coverage.served
        if segment.entry.num_tokens > rows
    ]
    if not beyond:
        return
    segment = max(beyond, key=lambda segment: segment.most)
    entry = segment.entry
    needed = segment.most * survey.domain.decode_query_len
    resolved, compilation = survey.plan.resolved.get(TARGET), survey.plan.deployment.compilation
    fix = f"draft buffers of {entry.num_tokens} rows"
    if resolved is not None and resolved.cudagraph_capture_sizes:
        asked_max = compilation.max_cudagraph_capture_size
        exact = size_list(resolved.cudagraph_capture_sizes, (rows,), asked_max, str(rows))
        fix = f"{exact}, or {fix}"
    yield Finding(
        severity=Severity.WARNING,
        code="draft-buffer",
        message=f"{survey.prefix}decode of {counted(segment.most, 'request')} has {needed} rows, padded to "
        f"{entry.num_tokens} ({entry.mode}), but draft buffers for {counted(seqs, 'request')} have {rows}",
        fix=fix,
    )
