"""How a capture is run: what the caller asks for, and what an earlier capture of the same plan taught."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

import torch
from attrs import field, frozen

from cache.captures import OutputShape
from executor.backends.base import GraphPool
from executor.pieces import EntryGraphs
from executor.records import CaptureRecord
from planner.descriptors import PlanEntry

Progress: TypeAlias = Callable[[str, int, int, CaptureRecord], None]
"""Told after each entry: what is captured, how many are done, of how many, how the last one went."""

WarmUp: TypeAlias = Literal["each", "first"]
"""Which entries run eagerly once ahead of their recording."""


class LockStep(Protocol):
    """Keeps several ranks that capture the same family at the same entry.

    Every rank makes the same calls in the same order. What raises here ends the capture.
    """

    def begin(self, entry: PlanEntry, warm_up: bool, known_error: str | None) -> tuple[bool, str | None]:
        """Called when this rank comes to ``entry``; returns what all ranks do about it.

        All of them warm up if one has to, and all skip the entry if one knows that it fails.
        """

    def outcome(self, entry: PlanEntry, error: str | None, *, warming_up: bool = False) -> str | None:
        """Called after each attempt and when graphs are ready; returns the error that counts for all."""

    def give_up(self, entry: PlanEntry, error: Exception) -> None:
        """Called ahead of raising ``error`` while warming up, so that no other rank waits for this one."""


class GraphRestorer(Protocol):
    """Rebuilds graphs that another process captured."""

    @property
    def refused(self) -> Mapping[PlanEntry, str]:
        """Entries that were not rebuilt, and why."""

    def loaders(self, entries: Iterable[PlanEntry]) -> tuple[PlanEntry, ...]:
        """Entries that have to be captured first."""

    def prepare(self, pool: GraphPool) -> None:
        """Takes the memory that is needed, before anything is captured into the pool.

        Raises:
            CaptureError: nothing can be rebuilt here.
            torch.OutOfMemoryError: there is no such memory.
        """

    def restore(
        self,
        entries: Iterable[PlanEntry],
        pool: GraphPool,
        outputs: Sequence[torch.Tensor],
        captured: Mapping[PlanEntry, EntryGraphs],
    ) -> dict[PlanEntry, EntryGraphs]:
        """Graphs of ``entries``, as many as can be had; ``captured`` are those of the loaders."""


@frozen(kw_only=True)
class CaptureGuide:
    """What is known ahead of a capture; entries that it does not name are captured as without it.

    ``order`` are entries to capture ahead of all others, ``ready`` how many of them have to be there
    before ``capture`` returns (``None``: all entries), ``known_errors`` entries that are not tried, and
    why. ``warmed_by_record`` says that kernels are loaded already, so that only ``warm_ups`` need their
    forward; ``outputs`` are then the shapes to reserve for what the forward returns. ``restorer``
    rebuilds entries, as many as it can, ahead of all captures but those that it needs.
    """

    order: tuple[PlanEntry, ...] = ()
    ready: int | None = None
    known_errors: Mapping[PlanEntry, str] = field(factory=dict)
    warmed_by_record: bool = False
    warm_ups: Collection[PlanEntry] = frozenset()
    outputs: tuple[OutputShape, ...] = ()
    restorer: GraphRestorer | None = None


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

    ``lock_step`` is for ranks whose graphs belong together: an entry that one of them cannot capture is
    skipped by all.
    """

    progress: Progress | None = None
    inspect: bool = False
    warm_up: WarmUp = "each"
    below_autograd: bool = False
    materialize: bool = False
    guide: CaptureGuide = field(factory=CaptureGuide)
    lock_step: LockStep | None = None

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
