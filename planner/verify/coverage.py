"""Which entry serves which batches of a class, by ranges of tokens and requests.

One pass over the sizes, ascending: no batch is ever tried out. An entry is tried by the batches
above the next smaller size, up to its own; of those it serves the ones with no more requests than
it holds, and leaves the others to the entry after it. So what is unserved at a size is always
"more than r requests".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

from attrs import frozen

from planner.descriptors import PlanEntry, fits
from planner.verify.domain import BatchClass

MOST_RANGES = 1 << 18
"""Up to how many ranges one family is decided; a real one has a few thousand."""

_Candidate = tuple[float, PlanEntry]
"""Most requests, and the entry that takes them."""

_Rung = tuple[int, int, list[_Candidate]]
"""Fewest and most tokens of the batches that try these candidates, in the order of trial.

A candidate that holds no more requests than one before it is left out, so that their limits rise.
"""

_Rest = tuple[int, int, int]
"""Batches of this many to that many tokens, and of more than so many requests."""

_ANY_REQUESTS = float("inf")

_limit = itemgetter(0)


class TooManyRangesError(Exception):
    """A plan by hand in which nearly every entry meets nearly every query length."""


@frozen
class Ladder:
    """Entries of one mode and LoRA case in the order of trial, from the smallest size up.

    ``entries[i]`` is tried by batches of at least ``firsts[i]`` tokens. ``by_count`` has the indexes
    of each uniform token count. In an ``exact`` ladder those serve that count, and no other; with
    ``any_requests``, for any number of requests.
    """

    entries: Sequence[PlanEntry]
    firsts: Sequence[int]
    by_count: Mapping[int | None, Sequence[int]]
    exact: bool = False
    any_requests: bool = False


# Dict classes: their frozen __init__ is the cheaper one, and a plan has thousands of these.
@frozen(slots=False)
class Gap:
    """Batches of ``first`` to ``last`` tokens and ``fewest`` to ``most`` requests without an entry."""

    first: int
    last: int
    fewest: int
    most: int


@frozen(slots=False)
class Served(Gap):
    """The same with the ``entry`` that serves them."""

    entry: PlanEntry


@frozen
class Coverage:
    """All batches of one class: those with an entry and those without, each by ascending tokens."""

    batches: BatchClass
    served: tuple[Served, ...]
    unserved: tuple[Gap, ...]


def cover_all(classes: Iterable[BatchClass], ladders: Sequence[Ladder]) -> tuple[Coverage, ...]:
    """What serves the batches of each class.

    Raises:
        TooManyRangesError: the entries cut the batches into more ranges than any real plan's do.
    """
    classes = tuple(classes)
    trials = sum(
        len(ladder.by_count.get(count, ()))
        for batches in classes
        for count in {batches.uniform_token_count, None}
        for ladder in ladders
    )
    if trials > MOST_RANGES:
        raise TooManyRangesError
    return tuple(cover(batches, ladders) for batches in classes)


def cover(batches: BatchClass, ladders: Sequence[Ladder]) -> Coverage:
    """What serves ``batches``; a ladder takes only what the ladders before it leave.

    Raises:
        TooManyRangesError: the entries cut the batches into more ranges than any real plan's do.
    """
    served: list[Served] = []
    rest: list[_Rest] = [(batches.first_tokens, batches.last_tokens, 0)]
    for ladder in ladders:
        if rest:
            left = _climb(batches, list(_rungs(ladder, batches)), rest, served)
            rest = [one for one in left if _requests(batches, one) is not None]
    unserved = [
        Gap(first, last, *requests)
        for first, last, above in rest
        if (requests := _requests(batches, (first, last, above))) is not None
    ]
    return Coverage(batches, tuple(served), tuple(unserved))


def _requests(batches: BatchClass, rest: _Rest) -> tuple[int, int] | None:
    """The fewest and the most requests of ``rest``, ``None`` where it has no batch."""
    first, last, above = rest
    fewest, most = batches.requests(first, last)
    fewest = max(fewest, above + 1)
    return (fewest, most) if fewest <= most else None


def _rungs(ladder: Ladder, batches: BatchClass) -> Iterator[_Rung]:
    """The sizes of ``ladder`` that have an entry for ``batches``."""
    group: list[_Candidate] = []
    first = last = 0
    for index in _matching(ladder, batches):
        entry = ladder.entries[index]
        if entry.num_tokens != last:
            if group:
                yield first, last, group
            first, last, group = ladder.firsts[index], entry.num_tokens, []
            if batches.num_ubatches > 1:
                # A step whose tokens would all fit the first microbatch is not replayed (rules 6.1).
                first = max(first, -(-entry.num_tokens // 2))
        limit = _ANY_REQUESTS if entry.num_reqs is None or ladder.any_requests else entry.num_reqs
        if not group or limit > group[-1][0]:
            group.append((limit, entry))
    if group:
        yield first, last, group


def _matching(ladder: Ladder, batches: BatchClass) -> list[int]:
    """Indexes of the entries that serve a batch of the class if it is small enough."""
    count = batches.uniform_token_count
    if ladder.exact:
        return list(ladder.by_count.get(count, ()))
    counted = ladder.by_count.get(count, ()) if count is not None else ()
    open_to_all = ladder.by_count.get(None, ())
    candidates = sorted((*counted, *open_to_all)) if counted and open_to_all else counted or open_to_all
    return [
        index
        for index in candidates
        if fits(
            entry := ladder.entries[index],
            0,
            0,
            count,
            entry.num_active_loras,
            batches.max_query_len,
            batches.num_ubatches,
        )
    ]


def _climb(
    batches: BatchClass, rungs: Sequence[_Rung], rest: Sequence[_Rest], served: list[Served]
) -> list[_Rest]:
    """Serve ``rest`` from ``rungs``, both by ascending tokens; what is left is returned."""
    left: list[_Rest] = []
    position = 0
    for first, last, above in rest:
        start = first
        while position < len(rungs) and rungs[position][1] < start:
            position += 1
        while position < len(rungs) and rungs[position][0] <= last:
            bottom, top, candidates = rungs[position]
            if start < bottom:
                left.append((start, bottom - 1, above))
                start = bottom
            end = min(top, last)
            if len(served) > MOST_RANGES:
                raise TooManyRangesError
            beyond = _serve(batches, candidates, (start, end, above), served)
            if beyond is not None:
                left.append((start, end, beyond))
            start = end + 1
            if top > last:
                break
            position += 1
        if start <= last:
            left.append((start, last, above))
    return left


def _serve(
    batches: BatchClass, candidates: Sequence[_Candidate], rest: _Rest, served: list[Served]
) -> int | None:
    """Serve the batches of one size; above how many requests some are left, or ``None``."""
    requests = _requests(batches, rest)
    if requests is None:
        return None
    (first, last, _), (fewest, most) = rest, requests
    place = bisect_left(candidates, fewest, key=_limit) if len(candidates) > 1 else 0
    while place < len(candidates) and fewest <= most:
        limit, entry = candidates[place]
        if limit >= fewest:
            held = most if limit >= most else int(limit)
            served.append(Served(first, last, fewest, held, entry))
            fewest = held + 1
        place += 1
    return fewest - 1 if fewest <= most else None
