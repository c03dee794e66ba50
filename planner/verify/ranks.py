"""Whether data-parallel ranks always agree on the mode and the padded tokens of a step.

The argument for V2: all ranks look up the same tokens with the same uniform count, so their answers can
differ only by their own requests and their own LoRA case. Requests decide nothing where every FULL
entry holds as many as its tokens allow, LoRA cases nothing where all have the same answers. Only
entries that break one of the two are looked at any further.
Source: vLLM 0.33, V2 data-parallel dispatch (rules 6.1).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, pairwise

from attrs import evolve, frozen

from planner.describe import label
from planner.descriptors import PlanEntry, fits
from planner.documents.plan import Finding, Severity
from planner.modes import CUDAGraphMode, Runner
from planner.verify.coverage import MOST_RANGES, Coverage, Served, TooManyRangesError
from planner.verify.domain import BatchClass
from planner.verify.ranks_v1 import missing_graphs
from planner.verify.survey import CaseGroup, Survey

_Answer = tuple[CUDAGraphMode, int] | None
"""Runtime mode and padded tokens; ``None`` where a batch has no graph."""


@frozen
class Disagreement:
    """Two ranks that go different ways at some number of tokens, and what parts them."""

    num_tokens: int
    because: str


def disagreements_found(survey: Survey) -> Iterator[Finding]:
    """One finding for the family; the first disagreement stands for all."""
    if survey.domain.lookup is not None:
        return  # Where the ranks' own graphs differ, they vote, and all run eagerly.
    ranks = survey.resolved.data_parallel_size if survey.resolved else None
    if (ranks or survey.plan.deployment.parallel.data_parallel_size or 1) == 1:
        return
    for found in disagreements(survey):
        yield Finding(
            severity=Severity.ERROR,
            code="dp-disagreement",
            message=f"graphs.{survey.family}: data-parallel ranks can part at {found.num_tokens} tokens: "
            f"{found.because}",
            fix="give every LoRA case and kind of batch the same sizes, and FULL entries as many requests as "
            "their tokens allow",
        )
        return


def disagreements(survey: Survey) -> Iterator[Disagreement]:
    """Ways in which ranks part: by their requests, or else by their LoRA cases."""
    if survey.domain.runner is Runner.V1:
        yield from (Disagreement(size, because) for size, because in missing_graphs(survey))
        return
    groups = [group for group in survey.groups if group.brought and group.model]
    found = False
    for group in groups:
        for parting in _by_requests(survey, group):
            found = True
            yield parting
    if not found:
        # Cases with the same answers part from the others in the same way.
        different = {tuple(tuple(_answers(one)) for one in group.coverages): group for group in groups}
        if sum(len(group.coverages) * len(different) for group in different.values()) > MOST_RANGES:
            raise TooManyRangesError
        for group, other in combinations(different.values(), 2):
            yield from _by_lora_case(group, other)


def _by_requests(survey: Survey, group: CaseGroup) -> Iterator[Disagreement]:
    """Entries that hold fewer requests than their tokens allow, and part ranks by that."""
    limit = survey.domain.max_num_reqs
    full = [entry for entry in group.model if entry.mode is CUDAGraphMode.FULL]
    tight = {
        entry.num_tokens
        for entry in full
        if (entry.num_reqs or 0) < min(entry.num_tokens // (entry.uniform_token_count or 1), limit)
    }
    if not tight:
        return
    by_size: dict[int, list[PlanEntry]] = {}
    for entry in sorted(full, key=lambda entry: entry.num_tokens):
        by_size.setdefault(entry.num_tokens, []).append(entry)
    for coverage in group.coverages:
        batches = coverage.batches
        cells = []
        for below, size in pairwise((0, *by_size)):
            roomiest = _roomiest(by_size[size], batches) if size in tight else None
            if roomiest is not None:
                cells.append((below + 1, size, roomiest))
        peers = [peer for peer in group.coverages if _may_join(batches, peer.batches)]
        parting = _parting_microbatches if batches.num_ubatches > 1 else _parting
        for entry in parting(coverage, peers, cells):
            because = f"{label(entry)} serves a rank of at most {entry.num_reqs} requests and no other"
            yield Disagreement(entry.num_tokens, because)


def _roomiest(entries: Iterable[PlanEntry], batches: BatchClass) -> PlanEntry | None:
    """The entry that holds the most requests of a class."""
    count, longest = batches.uniform_token_count, batches.max_query_len
    matching = [
        entry
        for entry in entries
        if fits(entry, 0, 0, count, entry.num_active_loras, longest, batches.num_ubatches)
    ]
    return max(matching, key=lambda entry: entry.num_reqs or 0, default=None)


def _may_join(batches: BatchClass, other: BatchClass) -> bool:
    """Whether a step with a batch of ``other``, whole, is still looked up as one of ``batches``."""
    if other.num_ubatches > 1:
        return False
    if batches.uniform_token_count is not None:
        return other.uniform_token_count == batches.uniform_token_count
    if batches.max_query_len is None:
        return True
    return other.max_query_len is not None and other.max_query_len <= batches.max_query_len


def _parting(
    coverage: Coverage, peers: Sequence[Coverage], cells: Iterable[tuple[int, int, PlanEntry]]
) -> Iterator[PlanEntry]:
    """Entries at whose tokens a rank of few requests meets one of more, both with graphs of their own.

    ``cells`` are the tokens that try an entry, ascending. One of the two ranks makes the step one of
    the class, and one, perhaps the same, brings the tokens of the cell.
    """
    own = [(coverage, segment) for segment in coverage.served]
    any_peer = [(peer, segment) for peer in peers for segment in peer.served]
    sweeps = [_Sweep(segments) for segments in (own, own, any_peer, any_peer)]
    for first, last, entry in cells:
        held = entry.num_reqs or 0
        ranges = [
            sweep.requests(start, last) for sweep, start in zip(sweeps, (1, first, 1, first), strict=True)
        ]
        few, few_here, peer_few, peer_few_here = (fewest <= held for fewest, _ in ranges)
        many, many_here, peer_many, peer_many_here = (most > held for _, most in ranges)
        if (
            (few_here and peer_many)
            or (few and peer_many_here)
            or (peer_few_here and many)
            or (peer_few and many_here)
        ):
            yield entry


def _parting_microbatches(
    coverage: Coverage, peers: Sequence[Coverage], cells: Iterable[tuple[int, int, PlanEntry]]
) -> Iterator[PlanEntry]:
    """As ``_parting`` for steps that are cut: for those, ranks need no graph of their own."""
    batches = coverage.batches
    for first, last, entry in cells:
        held, least = entry.num_reqs or 0, max(batches.first_tokens, -(-entry.num_tokens // 2))
        whole = [evolve(peer.batches, first_tokens=least) for peer in peers]
        ranges = [peer.requests(least, last) for peer in whole]
        fewest_here, most_here = batches.requests(max(first, least), last)
        if fewest_here > most_here:
            continue
        few = any(fewest <= min(held, most) for fewest, most in ranges)
        many = any(most > held and fewest <= most for fewest, most in ranges)
        if (fewest_here <= held and many) or (few and most_here > held):
            yield entry


class _Sweep:
    """Requests of served batches in windows of tokens that move up; each segment is met once."""

    def __init__(self, segments: Iterable[tuple[Coverage, Served]]) -> None:
        self._ahead = sorted(segments, key=lambda pair: -pair[1].first)
        self._open: list[tuple[Coverage, Served]] = []
        self._closed: tuple[float, int] = (float("inf"), 0)

    def requests(self, first: int, last: int) -> tuple[float, int]:
        """The fewest and the most requests at ``first`` to ``last`` tokens.

        With ``first`` 1, segments that end below ``last`` are remembered.
        """
        while self._ahead and self._ahead[-1][1].first <= last:
            self._open.append(self._ahead.pop())
        fewest, most = self._closed
        still_open = []
        for coverage, segment in self._open:
            part = _within(coverage, segment, first, last)
            if part is not None:
                fewest, most = min(fewest, part[0]), max(most, part[1])
            if segment.last > last:
                still_open.append((coverage, segment))
            elif first == 1 and part is not None:
                self._closed = min(self._closed[0], part[0]), max(self._closed[1], part[1])
        self._open = still_open
        return fewest, most


def _within(coverage: Coverage, segment: Served, first: int, last: int) -> tuple[int, int] | None:
    """Requests of the batches of ``segment`` that have ``first`` to ``last`` tokens."""
    low, high = max(first, segment.first), min(last, segment.last)
    if low > high:
        return None
    fewest, most = coverage.batches.requests(low, high)
    fewest, most = max(fewest, segment.fewest), min(most, segment.most)
    return (fewest, most) if fewest <= most else None


def _by_lora_case(one: CaseGroup, other: CaseGroup) -> Iterator[Disagreement]:
    """Sizes at which two LoRA cases have different answers, where requests decide nothing."""
    for index, (mine, theirs) in enumerate(zip(one.coverages, other.coverages, strict=True)):
        batches = mine.batches
        answers, answers_there = _answers(mine), _answers(theirs)
        for first, last, answer, answer_there in _together(answers, answers_there):
            if answer == answer_there or batches.requests(first, last)[1] < 1:
                continue
            if batches.num_ubatches == 1 and None in (answer, answer_there):
                lacking = one if answer is None else other
                if not _serves_below(lacking, index, last):
                    continue
            because = f"LoRA cases {one.cases[0]} and {other.cases[0]} have different graphs there"
            yield Disagreement(last, because)
            return


def _serves_below(group: CaseGroup, index: int, last: int) -> bool:
    """Whether a rank of ``group`` brings a smaller batch with a graph, to a step of the class."""
    batches = group.coverages[index].batches
    return any(
        _within(peer, segment, 1, last) is not None
        for peer in group.coverages
        if _may_join(batches, peer.batches)
        for segment in peer.served
    )


def _answers(coverage: Coverage) -> list[tuple[int, int, _Answer]]:
    """Mode and size by ranges of tokens, ascending."""
    answers: list[tuple[int, int, _Answer]] = []
    for segment in coverage.served:
        entry = segment.entry
        answers.append((segment.first, segment.last, (entry.mode, entry.num_tokens)))
    return sorted(answers, key=lambda answer: answer[:2])


def _together(
    answers: Sequence[tuple[int, int, _Answer]], others: Sequence[tuple[int, int, _Answer]]
) -> Iterator[tuple[int, int, _Answer, _Answer]]:
    """Both answers on every range of tokens on which neither changes."""
    starts = sorted({edge for first, last, _ in (*answers, *others) for edge in (first, last + 1)})
    for first, following in pairwise(starts):
        yield first, following - 1, _answer_at(answers, first), _answer_at(others, first)


def _answer_at(answers: Sequence[tuple[int, int, _Answer]], num_tokens: int) -> _Answer:
    place = bisect_right(answers, num_tokens, key=lambda answer: answer[0]) - 1
    if place < 0 or answers[place][1] < num_tokens:
        return None
    return answers[place][2]
