"""Holes: batches that run without the graph that a user would expect for them.

A uniform decode batch is expected to have a FULL graph wherever the mode decodes in FULL ones, a
mixed batch any graph up to the largest capture size.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from planner.modes import CUDAGraphMode
from planner.verify.coverage import Coverage, Gap, Served
from planner.verify.domain import BatchClass
from planner.verify.survey import CaseGroup, Survey


@frozen
class DecodeHole:
    """Uniform decode of ``fewest`` to ``most`` requests that no FULL graph serves.

    ``pieces`` is the size of the PIECEWISE graph that does, ``None`` where they run eagerly.
    ``shadowed`` says that a larger FULL graph of the query length exists, which dispatch does not
    try: the nearest size has none of it. Where decode is looked up by requests, any graph will do for
    FULL, and one is not tried where batches are not padded.
    """

    query_len: int
    fewest: int
    most: int
    pieces: int | None
    shadowed: bool


@frozen
class MixedHole:
    """Mixed batches of ``first`` to ``last`` tokens and at least ``fewest`` requests without a graph."""

    first: int
    last: int
    fewest: int


@frozen
class HoleGroup:
    """Decode holes of one kind and query length, and the LoRA cases whose batches have them.

    ``cases`` is empty where all batches have them.
    """

    batches: BatchClass
    holes: tuple[DecodeHole, ...]
    cases: tuple[int, ...]

    @property
    def query_len(self) -> int:
        """Tokens of each request."""
        return self.holes[0].query_len

    @property
    def shadowed(self) -> bool:
        """Whether larger graphs of the query length exist."""
        return self.holes[0].shadowed


def decode_holes(survey: Survey, group: CaseGroup) -> Iterator[tuple[BatchClass, list[DecodeHole]]]:
    """The holes of uniform decode: of each query length and kind, by requests."""
    by_requests = survey.domain.lookup is not None
    if not by_requests and survey.domain.mode.decode_mode() is not CUDAGraphMode.FULL:
        return
    widest: dict[int | None, int] = {}
    for entry in group.model:
        count = entry.uniform_token_count
        widest[count] = max(widest.get(count, 0), entry.num_reqs or 0)
    for coverage in group.coverages:
        length = coverage.batches.query_len
        if length is None or coverage.batches.num_ubatches > 1:
            continue
        shadowed, beyond = [], []
        for gap in coverage.unserved if by_requests else _without_full(coverage):
            pieces = gap.entry.num_tokens if isinstance(gap, Served) else None
            middle = min(gap.most, widest.get(length, 0))
            if gap.fewest <= middle:
                shadowed.append(DecodeHole(length, gap.fewest, middle, pieces, shadowed=True))
            if middle < gap.most:
                first = max(gap.fewest, middle + 1)
                beyond.append(DecodeHole(length, first, gap.most, pieces, shadowed=False))
        yield from ((coverage.batches, holes) for holes in (beyond, shadowed) if holes)


def mixed_holes(survey: Survey, group: CaseGroup) -> Iterator[MixedHole]:
    """The holes of mixed batches, by tokens."""
    if survey.domain.lookup is not None or survey.domain.mode.mixed_mode() is CUDAGraphMode.NONE:
        return
    largest = survey.largest_mixed_size
    for coverage in group.coverages:
        batches = coverage.batches
        if batches.query_len is not None or batches.max_query_len is not None or batches.num_ubatches > 1:
            continue
        for gap in coverage.unserved:
            last = min(gap.last, largest)
            fewest, most = batches.requests(gap.first, last)
            if max(fewest, gap.fewest) <= most:
                yield MixedHole(gap.first, last, max(fewest, gap.fewest))


def grouped_decode_holes(survey: Survey) -> Iterator[HoleGroup]:
    """The decode holes by query length, kind, and the LoRA cases that have them in common."""
    found: dict[tuple[BatchClass, tuple[DecodeHole, ...]], list[int]] = {}
    for group in survey.groups:
        for batches, holes in decode_holes(survey, group) if group.active else ():
            found.setdefault((batches, tuple(holes)), []).extend(group.active)
    for (batches, same), cases in found.items():
        yield HoleGroup(batches, same, survey.telling_cases(cases))


def grouped_mixed_holes(survey: Survey) -> Iterator[tuple[tuple[MixedHole, ...], tuple[int, ...]]]:
    """The mixed holes, and the LoRA cases that have them in common (none named: all)."""
    found: dict[tuple[MixedHole, ...], list[int]] = {}
    for group in survey.groups:
        holes = tuple(mixed_holes(survey, group)) if group.active else ()
        if holes:
            found.setdefault(holes, []).extend(group.active)
    for holes, cases in found.items():
        yield holes, survey.telling_cases(cases)


def _without_full(coverage: Coverage) -> list[Gap]:
    """What runs in pieces or eagerly, by ascending requests."""
    in_pieces = [served for served in coverage.served if served.entry.mode is CUDAGraphMode.PIECEWISE]
    return sorted((*in_pieces, *coverage.unserved), key=lambda gap: gap.fewest)
