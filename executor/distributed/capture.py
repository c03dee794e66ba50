"""Capture of ranks whose graphs belong together: all are at the same entry, and skip the same entries.

A graph that holds a collective is replayed by all ranks or by none. So the ranks meet ahead of each entry
and after each attempt, over gloo and within a time limit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from attrs import define

from executor.distributed.collectives import Collectives
from executor.distributed.ranks import Ranks
from executor.distributed.wording import listed_ranks, shown
from executor.errors import RanksError
from planner.descriptors import PlanEntry

MOST_TEXT = 300
"""Letters of an error that other ranks are told."""


@define(eq=False)
class CaptureLockStep:
    """Lock-step of ``ranks``; ``collectives`` are those of the forward, None where it has none.

    It is the ``lock_step`` of ``CaptureOptions``. Every rank captures the same families in the same order.
    """

    ranks: Ranks
    collectives: Collectives | None = None

    def begin(self, entry: PlanEntry, warm_up: bool, known_error: str | None) -> tuple[bool, str | None]:
        """Waits for all ranks at ``entry``.

        Raises:
            RanksError: a rank is at another entry, has ended, or did not come in time.
        """
        name = shown(entry)
        told = self._exchange({"entry": name, "warm_up": warm_up, "error": _cut(known_error)}, name)
        others = sorted({each["entry"] for each in told} - {name})
        if others:
            ranks = [self.ranks.members[at] for at, each in enumerate(told) if each["entry"] == others[0]]
            raise RanksError(
                f"capture: this rank is at {name}, {listed_ranks(ranks)} at {others[0]}; "
                "give all ranks the same entries in the same order"
            )
        if self.collectives is not None:
            self.collectives.taken()  # those of eager steps before
        error = self._told_error([each["error"] for each in told], known_error)
        return any(each["warm_up"] for each in told), error

    def outcome(self, entry: PlanEntry, error: str | None, *, warming_up: bool = False) -> str | None:
        """The error of ``entry`` for all ranks: its own, or another rank's.

        Where memory did not suffice for the warm-up of a forward with collectives, other ranks wait in
        them for ever: that ends the capture.

        Raises:
            RanksError: the capture is at its end, or a rank does not answer in time.
        """
        name = shown(entry)
        if error is not None and warming_up and self.collectives is not None:
            self.ranks.leave(f"{name}: {_cut(error)}")
            raise RanksError(
                f"capture of {name}: {error}, where other ranks wait for this one; lower the sizes"
            )
        noted = (0, "") if self.collectives is None else self.collectives.taken()
        told = self._exchange({"error": _cut(error), "collectives": noted}, name)
        found = self._told_error([each["error"] for each in told], error)
        return found or self._difference([tuple(each["collectives"]) for each in told])

    def give_up(self, entry: PlanEntry, error: Exception) -> None:
        """Tells the others that ``error`` ends this rank.

        Raises:
            RanksError: another rank gave up before, of which ``error`` is the consequence.
        """
        name = shown(entry)
        reason = self.ranks.left_by_others()
        if reason is not None:
            raise RanksError(f"capture of {name}: {reason}") from error
        self.ranks.leave(f"{name}: {_cut(str(error)) or type(error).__name__}")

    def _told_error(self, errors: Sequence[str | None], own: str | None) -> str | None:
        """This rank's own error, or else the first of another with the ranks that have one."""
        if own is not None:
            return own
        failed = [self.ranks.members[at] for at, error in enumerate(errors) if error is not None]
        if not failed:
            return None
        first = next(error for error in errors if error is not None)
        return f"failed on {listed_ranks(failed)}: {first}"

    def _difference(self, told: Sequence[tuple[int, str]]) -> str | None:
        """What is wrong where ranks recorded different collectives, which would hang at replay."""
        if len(set(told)) == 1:
            return None
        counts = zip(self.ranks.members, told, strict=True)
        each = ", ".join(f"{count} on rank {rank}" for rank, (count, _) in counts)
        return (
            f"the ranks have different collectives, or in another order ({each}, with warming up): "
            "replays would hang"
        )

    def _exchange(self, message: dict[str, Any], name: str) -> list[dict[str, Any]]:
        told = self.ranks.exchange(json.dumps(message).encode(), f"capture of {name}")
        return [json.loads(each) for each in told]


def _cut(text: str | None) -> str | None:
    return None if text is None else text.partition("\n")[0][:MOST_TEXT]
