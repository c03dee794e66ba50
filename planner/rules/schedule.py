"""Dynamic speculative decoding: draft tokens by batch size.

Source: vLLM 0.33, schedule lookup of dynamic speculative decoding (rules 2.6).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from attrs import frozen

MAX_RANGES = 1024
"""Most ranges of a schedule: far above any real one, and a bound on the families of drafts."""


@frozen
class Tier:
    """A query length that the schedule uses, and the widest batch (in requests) that runs with it."""

    query_len: int
    max_num_reqs: int


def schedule_fault(schedule: Sequence[Sequence[int]]) -> str | None:
    """Why ``schedule`` is refused, by the engine or for its length; ``None`` where it is not."""
    if not schedule:
        return "it is empty; give at least one [first, last, draft tokens] range"
    if len(schedule) > MAX_RANGES:
        return f"it has {len(schedule)} ranges; planning takes at most {MAX_RANGES}"
    for entry in schedule:
        fault = _range_fault(entry)
        if fault is not None:
            return fault
    ordered = sorted(map(tuple, schedule))
    if ordered[0][0] != 1:
        return f"its first range begins at {ordered[0][0]} requests; it has to begin at 1"
    for before, after in pairwise(ordered):
        if after[0] <= before[1]:
            return f"ranges {list(before)} and {list(after)} overlap"
    return None


def _range_fault(entry: Sequence[int]) -> str | None:
    if len(entry) != 3:
        return f"a range has {len(entry)} numbers; each range is [first, last, draft tokens]"
    first, last, draft_tokens = entry
    if first <= 0 or last <= 0:
        return f"{list(entry)} has a batch size below 1"
    if first > last:
        return f"{list(entry)} ends at {last} requests, before it begins at {first}"
    if draft_tokens < 0:
        return f"{list(entry)} has {draft_tokens} draft tokens; the least is 0"
    return None


def dense_schedule(
    schedule: Sequence[Sequence[int]], max_num_seqs: int, num_speculative_tokens: int
) -> tuple[int, ...]:
    """Draft tokens of every batch size from 1 to ``max_num_seqs``, at index ``size - 1``.

    Never more than ``num_speculative_tokens``; a batch size that no range names keeps the draft
    tokens of the range before it. ``schedule`` has no fault.
    """
    dense: list[int] = []
    draft_tokens = 0
    for first, last, draft_tokens_here in sorted(map(tuple, schedule)):
        if first > max_num_seqs:
            break
        dense.extend([draft_tokens] * (first - 1 - len(dense)))
        draft_tokens = min(num_speculative_tokens, draft_tokens_here)
        dense.extend([draft_tokens] * (min(last, max_num_seqs) - len(dense)))
    dense.extend([draft_tokens] * (max_num_seqs - len(dense)))
    return tuple(dense)


def tiers_of(dense: Sequence[int]) -> tuple[Tier, ...]:
    """The tiers of a dense schedule, shortest query length first.

    Draft tokens that appear in two separate ranges count once, up to the later range's end.
    """
    widest = {draft_tokens: num_reqs for num_reqs, draft_tokens in enumerate(dense, start=1)}
    return tuple(Tier(draft_tokens + 1, widest[draft_tokens]) for draft_tokens in sorted(widest))
