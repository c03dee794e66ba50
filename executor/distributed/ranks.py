"""Ranks that exchange small messages over gloo, each within a time limit and with a culprit's name.

A collective tells a rank that it failed, not because of whom. So a rank whose exchange fails leaves a
mark in the store of the process groups, closes its connections, which has the others fail at once, and
reads who else left a mark: whoever did not is the one that everybody waited for.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from attrs import define, field
from torch.distributed.distributed_c10d import _get_default_store

from executor.distributed.wording import listed_ranks, seconds
from executor.errors import RanksError

MOST_GRACE = 5.0
"""Seconds at most that a rank whose exchange failed waits for the marks of the others."""

POLL_SECONDS = 0.02

MOST_BYTES = 1 << 26
"""Bytes of one message; more is no message of this program."""


@define(eq=False)
class Ranks:
    """Some ranks of the job, as one of them sees them.

    ``members`` are their numbers in the whole job and ``rank`` is the place of this one among them.
    ``timeout`` is how many seconds each exchange may take.
    """

    name: str
    members: tuple[int, ...]
    rank: int
    timeout: float
    _group: dist.ProcessGroup | None
    _store: Any
    _fault: RanksError | None = field(default=None, init=False)

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.members)

    @property
    def _number(self) -> int:
        """That of this rank in the job."""
        return self.members[self.rank]

    @classmethod
    def of_job(cls, *, timeout: float, name: str = "job") -> Ranks:
        """All ranks of the job; every one of them calls this.

        Raises:
            RanksError: PyTorch's default process group is not initialised, or a rank does not answer.
        """
        return cls.among([range(_world_size())], timeout=timeout, name=name)

    @classmethod
    def among(cls, parts: Sequence[Iterable[int]], *, timeout: float, name: str) -> Ranks:
        """Those of ``parts`` that this rank is in. Every rank of the job calls this with the same parts.

        ``name`` is the group's own: two groups of one job have two names.

        Raises:
            RanksError: as ``of_job``, or this rank is in none of the parts.
        """
        _world_size()
        lists = [list(part) for part in parts]
        own = dist.get_rank()
        members = next((part for part in lists if own in part), None)
        if members is None:
            raise RanksError(f"{name}: rank {own} is in no group; name every rank of the job")
        prefix = f"graphplan/{name}"
        store = dist.PrefixStore(prefix, _get_default_store())  # type: ignore[attr-defined]
        ranks = cls(name, tuple(members), members.index(own), timeout, None, store)
        ranks._meet([rank for part in lists for rank in part])
        try:
            ranks._group, _ = dist.new_subgroups_by_enumeration(
                lists, timeout=timedelta(seconds=timeout), backend="gloo"
            )
        except RuntimeError as error:
            raise ranks._lost("connecting", 0.0, error) from None
        return ranks

    def add_up(self, tensor: torch.Tensor, what: str) -> None:
        """Makes ``tensor``, on the CPU, the sum of all ranks' tensors. ``what`` is its name in errors.

        Raises:
            RanksError: a rank ended, came late or did not answer in time.
        """
        self._require_whole()
        began = time.monotonic()
        try:
            dist.all_reduce(tensor, group=self._group)
        except RuntimeError as error:
            raise self._lost(what, time.monotonic() - began, error) from None

    def exchange(self, message: bytes, what: str) -> list[bytes]:
        """The messages of all ranks, in the order of ``members``.

        Raises:
            RanksError: as ``add_up``, or a message is too long.
        """
        if len(message) > MOST_BYTES:
            raise RanksError(f"{what}: a message of {len(message)} bytes; {MOST_BYTES} are the most")
        lengths = torch.zeros(self.size, dtype=torch.int64)
        lengths[self.rank] = len(message)
        self.add_up(lengths, what)
        rows = torch.zeros(self.size, int(lengths.max()), dtype=torch.uint8)
        if message:
            rows[self.rank, : len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
            # One row a rank, all others zero: the sum is every rank's message.
        if rows.numel():
            self.add_up(rows, what)
        return [bytes(row[:length].tolist()) for row, length in zip(rows, lengths.tolist(), strict=True)]

    def leave(self, reason: str) -> None:
        """Ends the group because of ``reason``, which others are told once they wait for this rank."""
        self._fault = RanksError(reason)
        with suppress(RuntimeError):  # without the store, the others are told that this rank ended
            self._mark(reason=reason)
        self.close()

    def left_by_others(self) -> str | None:
        """Why another rank has left, if one has."""
        for rank in self.members:
            with suppress(RuntimeError):
                if rank != self._number and self._store.check([f"left/{rank}"]):
                    reason = self._mark_of(rank)["reason"]
                    if reason:
                        return f"rank {rank} gave up: {reason}"
        return None

    def close(self) -> None:
        """Closes the connections."""
        group, self._group = self._group, None
        if group is not None:
            with suppress(RuntimeError, ValueError):  # destroyed with the default group already
                dist.destroy_process_group(group)

    def _require_whole(self) -> None:
        if self._fault is not None:
            raise RanksError(str(self._fault))
        if self._group is None:
            raise RanksError(f"{self.name}: the connections of this group are closed")

    def _meet(self, everybody: Sequence[int]) -> None:
        """Waits until all ranks are there: connections alone would not say who is missing."""
        self._store.set(f"there/{self._number}", b"1")
        missing = self._without("there", everybody, self.timeout)
        if missing:
            raise RanksError(
                f"{self.name}: {listed_ranks(missing)} did not start within {seconds(self.timeout)}; "
                "see the log of that rank, and start as many ranks as the plan has"
            )

    def _lost(self, what: str, waited: float, error: RuntimeError) -> RanksError:
        """The error that says who is to blame for a failed exchange."""
        self._fault = RanksError(f"{what}: {self._blame(waited, error)}")
        return self._fault

    def _blame(self, waited: float, error: RuntimeError) -> str:
        # Frames of the failed call would keep the connections open.
        traceback.clear_frames(error.__traceback__)
        try:
            self._mark(waited=waited)
            self.close()
            missing = self._without("left", self.members, min(self.timeout, MOST_GRACE))
            reason = self.left_by_others()
            if reason:
                return reason
            if missing:
                limit = seconds(self.timeout)
                return (
                    f"{listed_ranks(missing)} ended, or took longer than {limit} to answer; "
                    "see the log of that rank, and start all ranks again"
                )
            waits = {rank: float(self._mark_of(rank)["waited"]) for rank in self.members}
        except RuntimeError:
            return (
                "the connections are lost, and so is the store of the job: whoever keeps it ended, rank 0 "
                "unless torchrun does; start all ranks again"
            )
        longest = max(waits.values())
        late = [rank for rank, wait in waits.items() if 2 * wait < longest]
        if not late:
            first = str(error).partition("\n")[0]
            return f"the connections broke ({first}); start all ranks again"
        return (
            f"{listed_ranks(late)} came when the others had waited {seconds(longest)}; "
            "raise the time limit if that rank only takes long"
        )

    def _mark(self, *, waited: float = 0.0, reason: str = "") -> None:
        self._store.set(f"left/{self._number}", json.dumps({"waited": waited, "reason": reason}))

    def _mark_of(self, rank: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._store.get(f"left/{rank}"))
        return found

    def _without(self, kind: str, ranks: Sequence[int], patience: float) -> list[int]:
        """Those of ``ranks``, numbers in the job, that have left no mark after ``patience`` seconds."""
        marks = {rank: f"{kind}/{rank}" for rank in ranks}
        until = time.monotonic() + patience
        # The store's own way to wait prints warnings when the time is over.
        while not self._store.check(list(marks.values())) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        return [rank for rank, mark in marks.items() if not self._store.check([mark])]


def _world_size() -> int:
    if not dist.is_available() or not dist.is_initialized():
        raise RanksError(
            "PyTorch's process group is not initialised; start with torchrun and call "
            "torch.distributed.init_process_group first"
        )
    return dist.get_world_size()
