"""What a user asked for as sizes, against what came of it and what was probably meant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import gcd

from attrs import evolve

from planner.describe import counted
from planner.dispatch_v1 import V1DispatchTable
from planner.documents.plan import TARGET, Finding, Severity
from planner.modes import Runner
from planner.rules.sizes import SizeRequest
from planner.verify.fixes import grid_maxima, planned_sizes, size_list
from planner.verify.survey import Survey
from planner.verify.wording import joined


def sizes_found(survey: Survey, request: SizeRequest | None) -> Iterator[Finding]:
    """Findings about the maximum and the list of sizes that were asked for."""
    resolved = survey.resolved
    if survey.family != TARGET or request is None or resolved is None or not resolved.cudagraph_mode:
        return
    yield from _dropped_sizes(request)
    yield from _changed_maximum(survey, request)
    yield from _counted_in_requests(request)
    yield from _other_query_length(survey, request)


def misaligned_found(survey: Survey) -> Iterator[Finding]:
    """Sizes that V1 pads uniform decode to although no whole requests have them; it stops there."""
    if survey.domain.runner is not Runner.V1 or not survey.domain.mode.separate_routine():
        return
    table = survey.plan.dispatch_table(survey.family)
    if not isinstance(table, V1DispatchTable):
        return
    length, sizes = table.decode_query_len, table.family.sizes
    decode = [
        coverage.batches for coverage in survey.groups[0].coverages if coverage.batches.query_len == length
    ]
    for below, size in pairwise((0, *sizes)):
        for batches in decode if size % length else ():
            fewest, most = batches.requests(below + 1, size)
            if fewest <= most:
                yield Finding(
                    severity=Severity.ERROR,
                    code="misaligned-size",
                    message=f"graphs.{survey.family}: decode of {counted(most, 'request')} of {length} is "
                    f"padded to {size} tokens, which no whole requests have; the v1 runner stops there",
                    fix=f"make size {size} a multiple of {length}: {-(-size // length) * length}",
                )


def _dropped_sizes(request: SizeRequest) -> Iterator[Finding]:
    limit = request.max_num_batched_tokens
    dropped = [size for size in request.asked_sizes or () if size > limit]
    if dropped:
        yield _warning(
            "sizes-dropped",
            f"cudagraph_capture_sizes {_listed(dropped)} are dropped: max_num_batched_tokens is {limit}",
            f"max_num_batched_tokens: {max(dropped)}",
        )


def _changed_maximum(survey: Survey, request: SizeRequest) -> Iterator[Finding]:
    asked, resolved = request.asked_max, survey.resolved
    if asked is None or resolved is None or asked == resolved.max_cudagraph_capture_size:
        return
    became, limit = resolved.max_cudagraph_capture_size, request.max_num_batched_tokens
    if asked > limit:
        because, fix = f"a step has at most {limit} tokens", f"max_num_batched_tokens: {asked}"
    else:
        because = f"no size of the default grid is {asked}"
        if survey.domain.runner is Runner.V1 and request.query_len > 1:
            because += f", or it is no multiple of the query length {request.query_len}"
        fix = _kept_maximum(survey, request, asked)
    yield _warning(
        "max-not-kept", f"max_cudagraph_capture_size {asked} is asked, {became} is in force: {because}", fix
    )


def _kept_maximum(survey: Survey, request: SizeRequest, asked: int) -> str:
    """The next maximum that the grid keeps, or else the size itself in the list."""
    resolved = survey.resolved
    for maximum in grid_maxima(asked, request.max_num_batched_tokens):
        sizes = resolved and planned_sizes(evolve(request, asked_max=maximum), resolved)
        if sizes and sizes.maximum == maximum:
            return f"max_cudagraph_capture_size: {maximum}"
    in_force = resolved.cudagraph_capture_sizes if resolved else ()
    return size_list(in_force, (asked,), None, str(asked))


def _counted_in_requests(request: SizeRequest) -> Iterator[Finding]:
    """A maximum that equals the requests of a step, where each request has several tokens."""
    length, seqs = request.query_len, request.max_num_seqs
    if length == 1:
        return
    tokens, limit = seqs * length, request.max_num_batched_tokens
    fitting = tokens if tokens <= limit else limit // length * length
    if not fitting:
        return
    if request.asked_max == seqs and request.asked_sizes is None:
        yield _warning(
            "max-in-requests",
            f"max_cudagraph_capture_size {seqs} counts tokens, not requests: {seqs} requests of {length} "
            f"tokens have {tokens}",
            f"max_cudagraph_capture_size: {fitting}",
        )
    elif request.asked_sizes and max(request.asked_sizes) == seqs:
        sizes = sorted({min(size * length, fitting) for size in request.asked_sizes})
        yield _warning(
            "max-in-requests",
            f"cudagraph_capture_sizes end at max_num_seqs {seqs} but count tokens, not requests: {seqs} "
            f"requests of {length} tokens have {tokens}",
            size_list(sizes, (), request.asked_max, f"each times {length}"),
        )


def _other_query_length(survey: Survey, request: SizeRequest) -> Iterator[Finding]:
    """Explicit sizes that are no whole decode requests, and perhaps were so with other drafts."""
    asked = sorted(set(request.asked_sizes or ()))
    lengths = [tier.query_len for tier in survey.domain.tiers]
    ragged = [size for size in asked if all(size % length for length in lengths)]
    if not ragged:
        return
    common, length = gcd(*asked), request.query_len
    limit = request.max_num_batched_tokens
    whole = sorted({rounded for size in asked if (rounded := -(-size // length) * length) <= limit})
    rounding = f"each rounded up to a multiple of {length}"
    fix = size_list(whole, (), request.asked_max, rounding) if whole else None
    decode = f"decode requests have {joined(lengths, 'or')} tokens"
    if len(asked) > 1 and common > 1:
        yield _warning(
            "sizes-for-another-k",
            f"cudagraph_capture_sizes are multiples of {common}, as for {common - 1} draft tokens; {decode}",
            fix,
        )
    else:
        yield Finding(
            severity=Severity.INFO,
            code="unaligned-sizes",
            message=f"cudagraph_capture_sizes {_listed(ragged)} are no whole requests: {decode}, and FULL "
            "decode graphs are rounded to those",
            fix=fix,
        )


def _listed(sizes: Sequence[int]) -> str:
    shown = [str(size) for size in sizes[:8]]
    if len(sizes) > len(shown):
        shown.append(f"{len(sizes) - len(shown)} more")
    return joined(shown)


def _warning(code: str, message: str, fix: str | None) -> Finding:
    return Finding(severity=Severity.WARNING, code=code, message=message, fix=fix)
