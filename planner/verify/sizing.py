"""What a user asked for as sizes, against what came of it and what was probably meant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import gcd

from planner.describe import counted
from planner.dispatch_v1 import V1DispatchTable
from planner.documents.plan import Finding, Severity
from planner.modes import CUDAGraphMode, Runner
from planner.rules.sizes import SizeRequest
from planner.verify.size_lists import SizeList
from planner.verify.survey import Survey
from planner.verify.wording import joined


def sizes_found(target: Survey, request: SizeRequest, surveys: Sequence[Survey]) -> Iterator[Finding]:
    """Findings about the maximum and the list of sizes that were asked for; their fixes are left open.

    ``surveys`` are those of all families, which share the sizes of ``target``.
    """
    if target.resolved is None or not target.resolved.cudagraph_mode:
        return
    yield from _dropped_sizes(request)
    yield from _changed_maximum(target, request)
    yield from _counted_in_requests(request)
    yield from _other_query_length(target, request, surveys)


def suggested_maximum(target: Survey, request: SizeRequest) -> int | None:
    """The maximum that was probably meant, within the token budget."""
    asked, limit = request.asked_max, request.max_num_batched_tokens
    if asked is None or request.asked_sizes is not None:
        return None
    fitting = _tokens_of_requests(request)
    if fitting and asked == request.max_num_seqs:
        return fitting
    is_kept = target.resolved is not None and target.resolved.max_cudagraph_capture_size == asked
    return asked if not is_kept and asked <= limit else None


def suggested_budget(request: SizeRequest) -> int | None:
    """The token budget that everything asked for fits into."""
    largest = max((*(request.asked_sizes or ()), request.asked_max or 0))
    return largest if largest > request.max_num_batched_tokens else None


def suggested_lists(target: Survey, request: SizeRequest) -> Iterator[SizeList]:
    """Lists that were probably meant: in tokens instead of requests, or of whole decode requests."""
    asked, length, limit = (
        sorted(set(request.asked_sizes or ())),
        request.query_len,
        _tokens_of_requests(request),
    )
    if asked and limit and asked[-1] == request.max_num_seqs:
        yield SizeList(
            sorted({min(size * length, limit) for size in asked}),
            words=f"those asked for, each times {length}",
        )
    if asked and _ragged(asked, [tier.query_len for tier in target.domain.tiers]):
        rounded = {-(-size // length) * length for size in asked}
        whole = sorted(size for size in rounded if size <= request.max_num_batched_tokens)
        yield SizeList(whole, words=f"those asked for, each rounded up to a multiple of {length}")


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
        )


def _changed_maximum(target: Survey, request: SizeRequest) -> Iterator[Finding]:
    asked, resolved = request.asked_max, target.resolved
    if asked is None or resolved is None or asked == resolved.max_cudagraph_capture_size:
        return
    became, limit = resolved.max_cudagraph_capture_size, request.max_num_batched_tokens
    if asked > limit:
        because = f"a step has at most {limit} tokens"
    else:
        because = f"no size of the default grid is {asked}"
        if target.domain.runner is Runner.V1 and request.query_len > 1:
            because += f", or it is no multiple of the query length {request.query_len}"
    yield _warning(
        "max-not-kept", f"max_cudagraph_capture_size {asked} is asked, {became} is in force: {because}"
    )


def _tokens_of_requests(request: SizeRequest) -> int:
    """Tokens of the widest decode batch within the budget; 0 where a request has one token, or none fits."""
    length, limit = request.query_len, request.max_num_batched_tokens
    if length == 1:
        return 0
    return min(request.max_num_seqs * length, limit // length * length)


def _counted_in_requests(request: SizeRequest) -> Iterator[Finding]:
    """A maximum that equals the requests of a step, where each request has several tokens."""
    length, seqs = request.query_len, request.max_num_seqs
    if not _tokens_of_requests(request):
        return
    have = f"{seqs} requests of {length} tokens have {seqs * length}"
    if request.asked_max == seqs and request.asked_sizes is None:
        yield _warning(
            "max-in-requests", f"max_cudagraph_capture_size {seqs} counts tokens, not requests: {have}"
        )
    elif request.asked_sizes and max(request.asked_sizes) == seqs:
        yield _warning(
            "max-in-requests",
            f"cudagraph_capture_sizes end at max_num_seqs {seqs} but count tokens, not requests: {have}",
        )


def _other_query_length(target: Survey, request: SizeRequest, surveys: Sequence[Survey]) -> Iterator[Finding]:
    """Explicit sizes that are no whole decode requests, and perhaps were so with other drafts."""
    asked = sorted(set(request.asked_sizes or ()))
    lengths = [tier.query_len for tier in target.domain.tiers]
    of_drafts = {
        tier.query_len for survey in surveys if _decodes_full(survey) for tier in survey.domain.tiers
    }
    common = gcd(*asked)
    decode = f"decode requests have {joined(lengths, 'or')} tokens"
    # The later passes of a draft have one token a request, and so use for any size up to their requests.
    ragged = [size for size in _ragged(asked, lengths) if size > request.max_num_seqs or 1 not in of_drafts]
    if len(asked) > 1 and common > 1 and ragged:
        yield _warning(
            "sizes-for-another-k",
            f"cudagraph_capture_sizes are multiples of {common}, as for {common - 1} draft tokens; {decode}",
        )
        return
    if ragged := _ragged(asked, {*lengths, *of_drafts}):
        yield Finding(
            severity=Severity.INFO,
            code="unaligned-sizes",
            message=f"cudagraph_capture_sizes {_listed(ragged)} are no whole requests: {decode}, and FULL "
            "decode graphs are rounded to those",
        )


def _ragged(sizes: Sequence[int], lengths: Sequence[int] | set[int]) -> list[int]:
    return [size for size in sizes if all(size % length for length in lengths)]


def _decodes_full(survey: Survey) -> bool:
    return survey.resolved is not None and survey.domain.mode.decode_mode() is CUDAGraphMode.FULL


def _listed(sizes: Sequence[int]) -> str:
    shown = [str(size) for size in sizes[:8]]
    if len(sizes) > len(shown):
        shown.append(f"{len(sizes) - len(shown)} more")
    return joined(shown)


def _warning(code: str, message: str) -> Finding:
    return Finding(severity=Severity.WARNING, code=code, message=message)
