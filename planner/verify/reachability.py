"""Entries that no batch of the domain is ever dispatched to, and why.

An entry is reached if some segment of some coverage is its own. Of equal entries one is enough:
that there are two is another finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen

from planner.describe import counted, label
from planner.descriptors import PlanEntry
from planner.documents.plan import Finding, Severity
from planner.engines.lookup import is_decode
from planner.modes import CUDAGraphMode, Runner
from planner.verify.domain import BatchClass, Domain
from planner.verify.survey import CaseGroup, Survey
from planner.verify.wording import SHOWN_RANGES, joined, span, span_of


@frozen
class Reason:
    """Why entries are never replayed, how much that matters, and what would change it.

    ``of_case`` says that it holds for a LoRA case as a whole.
    """

    because: str
    severity: str = Severity.WARNING
    fix: str | None = None
    of_case: bool = False


def unreached_found(survey: Survey) -> Iterator[Finding]:
    """One finding for the entries of one mode and query length, or one LoRA case, that share a reason."""
    found: dict[tuple[Reason, object], list[PlanEntry]] = {}
    for reason, kind, entries in unreached(survey):
        found.setdefault((reason, kind), []).extend(entries)
    for (reason, _), entries in found.items():
        yield Finding(
            severity=reason.severity,
            code="unreachable-entry",
            message=f"graphs.{survey.family}: {_together(entries, reason)} never replayed: {reason.because}",
            fix=reason.fix,
        )


def _together(entries: Sequence[PlanEntry], reason: Reason) -> str:
    first = entries[0]
    if len(entries) == 1:
        return f"{label(first)} is"
    if reason.of_case:
        return f"{len(entries)} entries of LoRA case {first.num_active_loras} are"
    sizes = [entry.num_tokens for entry in entries]
    of_count = f" for requests of {first.uniform_token_count}" if first.uniform_token_count else ""
    return f"{len(entries)} {first.mode} entries of {span_of(min(sizes), max(sizes), 'token')}{of_count} are"


def unreached(survey: Survey) -> Iterator[tuple[Reason, object, list[PlanEntry]]]:
    """All entries that serve no batch, by reason and kind, and by groups of LoRA cases."""
    for group in survey.groups:
        places = _unreached_places(group) if group.active else []
        given = _circumstances(survey, group)
        together: dict[tuple[Reason, object], list[int]] = {}
        for place in places:
            entry = group.model[place]
            kind = entry.mode, entry.uniform_token_count
            together.setdefault((_reason(given, entry), kind), []).append(place)
        for (reason, of_kind), alike in together.items():
            yield reason, of_kind, [group.entries[case][place] for case in group.active for place in alike]
        for case in group.cases:
            if case not in group.active:
                reason = _no_adapters(survey, dummies=case in group.brought)
                yield reason, case, list(group.entries[case])


def _unreached_places(group: CaseGroup) -> list[int]:
    shapes = dict(zip(map(id, group.model), group.shapes, strict=True))
    reached = {shapes[id(served.entry)] for coverage in group.coverages for served in coverage.served}
    return [place for place, shape in enumerate(group.shapes) if shape not in reached]


def _no_adapters(survey: Survey, *, dummies: bool) -> Reason:
    """Why no batch with adapters runs in a LoRA case."""
    most = survey.domain.max_loras
    if dummies:
        because = f"at most {counted(most, 'adapter')} are active, only dummy batches count more"
        fix = f"max_loras: {most - 1} takes one LoRA case less" if most > 1 else None
        return Reason(because, Severity.INFO, fix, of_case=True)
    if most:
        return Reason(f"no number of adapters up to {most} runs in that case", of_case=True)
    return Reason("no batch has LoRA adapters", of_case=True)


@frozen
class _Circumstances:
    """What decides which batches may reach the entries of a group.

    ``widest`` are the scheduled query lengths with their widest batches, ``captured_lengths`` those
    that the engine makes graphs for, ``classes`` the classes of uniform decode by uniform token count
    and number of microbatches, ``first_tokens`` the smallest batch that tries a mode and size.
    """

    domain: Domain
    widest: Mapping[int, int]
    captured_lengths: tuple[int, ...]
    classes: Mapping[tuple[int, int], BatchClass]
    first_tokens: Mapping[tuple[bool, int], int]


def _circumstances(survey: Survey, group: CaseGroup) -> _Circumstances:
    domain, resolved = survey.domain, survey.resolved
    classes = (coverage.batches for coverage in group.coverages)
    return _Circumstances(
        domain=domain,
        widest={tier.query_len: tier.max_num_reqs for tier in domain.tiers},
        captured_lengths=resolved.uniform_query_lens if resolved else (),
        classes={
            (one.uniform_token_count, one.num_ubatches): one
            for one in classes
            if one.uniform_token_count is not None
        },
        first_tokens=_first_tokens(survey, group),
    )


def _first_tokens(survey: Survey, group: CaseGroup) -> dict[tuple[bool, int], int]:
    """Tokens of the smallest batch that tries FULL (or else PIECEWISE) entries of a size."""
    firsts = {}
    shared: tuple[int, ...] = ()
    if survey.resolved is not None and survey.domain.runner is Runner.V1:
        shared = survey.resolved.cudagraph_capture_sizes
    for mode in (True, False):
        below = 0
        for size in sorted({*shared, *(tokens for full, tokens, *_ in group.shapes if full is mode)}):
            firsts[mode, size] = below + 1
            below = size
    return firsts


def _reason(given: _Circumstances, entry: PlanEntry) -> Reason:
    """Why no batch of an active LoRA case reaches ``entry``."""
    domain, count, cut = given.domain, entry.uniform_token_count, entry.num_ubatches
    if cut > 1 and all(one.num_ubatches != cut for one in domain.microbatchings):
        return Reason(f"no step is cut into {cut} microbatches", fix="enable_dbo: true")
    if count is not None and count not in given.widest:
        lengths = joined(list(given.widest)[:SHOWN_RANGES], "or")
        because = f"a decode request has {lengths} tokens here, never {count}"
        return Reason(because, Severity.INFO if count in given.captured_lengths else Severity.WARNING)
    if domain.lookup is not None:
        return lookup_reason(domain, entry)
    first = given.first_tokens[entry.mode is CUDAGraphMode.FULL, entry.num_tokens]
    if first > domain.last_tokens:
        return Reason(f"no batch has more than {domain.last_tokens} tokens")
    batches = None if count is None else given.classes.get((count, cut))
    if batches is not None:
        fewest, most = batches.requests(first, entry.num_tokens)
        if fewest > most:
            return _too_few(given, batches, first, entry)
    if domain.runner is Runner.V1:
        return Reason("the v1 runner pads no batch to exactly these requests and tokens")
    return Reason("entries that are tried before it serve all of its batches")


def lookup_reason(domain: Domain, entry: PlanEntry) -> Reason:
    """Why no batch reaches ``entry`` where decode is looked up by requests."""
    if not is_decode(entry):
        most = domain.last_mixed_tokens
        if entry.num_tokens > most:
            return Reason(f"no prefill has more than {most} tokens")
        return Reason("the graphs below it serve all batches that it would not pad too much")
    widest = next(tier.max_num_reqs for tier in domain.tiers if tier.query_len == entry.uniform_token_count)
    if (entry.num_reqs or 0) <= widest:
        return Reason("another graph serves all of its batches")
    if widest < domain.max_num_reqs:
        because = f"by the schedule of draft tokens, such batches have at most {counted(widest, 'request')}"
        return Reason(f"{because}; it is captured for the size of the workspace", Severity.INFO)
    return Reason(f"no more than {counted(widest, 'request')} run at once")


def _too_few(given: _Circumstances, batches: BatchClass, first: int, entry: PlanEntry) -> Reason:
    """Why no uniform decode batch has ``first`` tokens to those of ``entry``."""
    length, domain = batches.shortest, given.domain
    if entry.num_tokens < batches.first_tokens:
        return Reason(f"steps below {batches.first_tokens} tokens are not cut into microbatches")
    if -(-first // length) * length > entry.num_tokens:
        return Reason(f"no number of requests of {length} has {span(first, entry.num_tokens)} tokens")
    widest = given.widest[length]
    if widest < domain.max_num_reqs:
        because = f"by the schedule of draft tokens, such batches have at most {counted(widest, 'request')}"
        return Reason(because, Severity.INFO)
    if domain.max_num_reqs * length <= domain.max_num_tokens:
        because = f"no more than {counted(domain.max_num_reqs, 'request')} run at once"
        return Reason(because, fix=f"max_num_seqs: {domain.max_num_reqs}")
    return Reason(f"no batch has more than {domain.max_num_tokens} tokens")
