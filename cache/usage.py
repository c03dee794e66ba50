"""Counting replays where nothing may cost: one addition a step, handed to the cache now and then."""

from __future__ import annotations

from collections.abc import Sequence

from cache.safe import SafeCache
from planner.descriptors import PlanEntry


class UsageCounter:
    """Counts, by their place in a family, how often entries were replayed.

    A step does ``counts[index] += 1`` and nothing else; ``counts[EAGER]`` is for batches without a
    graph. ``counts`` may be a list that somebody else counts in, such as a graph manager's
    ``usage_counts``. Another thread may call ``flush`` at any time. ``plan`` is the plan's ``stable_digest``.
    """

    EAGER = -1

    def __init__(
        self,
        plan: str,
        family: str,
        entries: Sequence[PlanEntry],
        *,
        counts: list[int] | None = None,
        model_name: str = "",
    ) -> None:
        self.counts = [0] * (len(entries) + 1) if counts is None else counts
        self._entries = tuple(entries)
        self._about = (plan, family, model_name)
        self._flushed = (0,) * len(self.counts)

    def flush(self, cache: SafeCache) -> bool:
        """Adds to the cache what was counted since the last time; ``False`` leaves it for the next."""
        counts = tuple(self.counts)
        new = [count - flushed for count, flushed in zip(counts, self._flushed, strict=True)]
        if not any(new):
            return True
        plan, family, model_name = self._about
        by_entry = {entry: count for entry, count in zip(self._entries, new[:-1], strict=True) if count}
        if not cache.add_usage(plan, family, by_entry, eager=new[self.EAGER], model_name=model_name):
            return False
        self._flushed = counts
        return True
