"""How a capture is run: what the caller asks for, and what an earlier capture of the same plan taught."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Literal, TypeAlias

from attrs import field, frozen

from cache.captures import OutputShape
from executor.records import CaptureRecord
from planner.descriptors import PlanEntry

Progress: TypeAlias = Callable[[str, int, int, CaptureRecord], None]
"""Told after each entry: what is captured, how many are done, of how many, how the last one went."""

WarmUp: TypeAlias = Literal["each", "first"]
"""Which entries run eagerly once ahead of their recording."""


@frozen(kw_only=True)
class CaptureGuide:
    """What is known ahead of a capture; entries that it does not name are captured as without it.

    ``order`` are entries to capture ahead of all others, ``ready`` how many of them have to be there
    before ``capture`` returns (``None``: all entries), ``known_errors`` entries that are not tried, and
    why. ``warmed_by_record`` says that kernels are loaded already, so that only ``warm_ups`` need their
    forward; ``outputs`` are then the shapes to reserve for what the forward returns.
    """

    order: tuple[PlanEntry, ...] = ()
    ready: int | None = None
    known_errors: Mapping[PlanEntry, str] = field(factory=dict)
    warmed_by_record: bool = False
    warm_ups: Collection[PlanEntry] = frozenset()
    outputs: tuple[OutputShape, ...] = ()


@frozen(kw_only=True)
class CaptureOptions:
    """How a manager captures.

    ``inspect`` also reads each graph's digests, which takes longer than capturing it.

    ``warm_up="first"`` warms up with the first entry of each mode only, and with others whose recording
    fails without. That saves half the time of a capture, and is right for a forward that sets nothing
    up for single sizes: a workspace that is made while an entry is recorded lies in the pool, where
    the next graph overwrites it. Verify the entries after it.

    ``below_autograd`` leaves PyTorch's autograd and view-tracking kernels out of every operation; not
    for models that ``torch.compile`` made, which would be compiled again.
    """

    progress: Progress | None = None
    inspect: bool = False
    warm_up: WarmUp = "each"
    below_autograd: bool = False
    guide: CaptureGuide = field(factory=CaptureGuide)

    def entries_in_order(self, entries: tuple[PlanEntry, ...]) -> tuple[PlanEntry, ...]:
        """``entries``, those that the guide names ahead of the others."""
        known = frozenset(entries)
        first = tuple(entry for entry in self.guide.order if entry in known)
        named = frozenset(first)
        return (*first, *(entry for entry in entries if entry not in named))

    def warms_up(self, entry: PlanEntry, records: Collection[CaptureRecord]) -> bool:
        """Whether ``entry`` runs eagerly once ahead of its recording, after ``records`` were made."""
        if self.guide.warmed_by_record:
            return entry in self.guide.warm_ups
        return self.warm_up == "each" or all(made.entry.mode is not entry.mode for made in records)
