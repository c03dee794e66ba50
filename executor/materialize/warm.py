"""A start that rebuilds graphs: the file in the cache, the proof of what came out, and a new file.

Nothing here ever fails because of the file: what is wrong with it becomes a reason, and entries are
captured as in any other start.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from attrs import define, evolve, frozen

from executor.backends.base import Backend
from executor.backends.cuda_driver import library
from executor.calls import AtenCall
from executor.capture_loop import reason_of
from executor.errors import CaptureError
from executor.manager import CudaGraphManager
from executor.materialize.device import CudaDevice, GraphDevice
from executor.materialize.driver import CudaDriver, GraphCode
from executor.materialize.native import NativeCode, NativeError
from executor.materialize.plain import PlainCode
from executor.materialize.restore import Restorer, RestoreTimes
from executor.materialize.save import Saving, save
from executor.materialize.saved import DamagedError, unpacked
from executor.records import CaptureReport
from executor.restart import GRAPHS, Circumstances, Restart
from executor.verify import Verdict
from planner.descriptors import PlanEntry

Verify: TypeAlias = Literal["all", "sample", "none"]
"""Which rebuilt entries are compared with eager before they serve."""

SAMPLED = 10
"""One in so many entries is in a sample, beside the first, the last and the largest."""


def graph_device(backend: Backend, folder: Path | None) -> GraphDevice:
    """The device behind a manager's backend; its native half is built into ``folder``, if there is one.

    Raises:
        CaptureError: graphs cannot be saved on such a device.
    """
    return CudaDevice(backend, CudaDriver(_code(folder)))


def _code(folder: Path | None) -> GraphCode:
    if folder is not None:
        try:
            return NativeCode(folder)
        except (NativeError, OSError):
            pass
    return PlainCode(library())


@frozen(kw_only=True)
class Materials:
    """What saving and restoring of one manager need: see ``save`` and ``Restorer``."""

    manager: CudaGraphManager
    device: GraphDevice
    static: Callable[[], Mapping[str, torch.Tensor]]
    operations: Sequence[Callable[..., None]] = ()

    def restorer(self, restart: Restart) -> tuple[Restorer | None, str]:
        """What rebuilds the graphs that the cache has of this capture, or why there is none."""
        content = restart.artifact(GRAPHS)
        if content is None:
            return None, restart.reason or "no graphs were saved"
        try:
            saved = unpacked(content)
        except DamagedError as error:
            return None, str(error)
        if saved.header.about != about(restart.about):
            return None, "the file of graphs is that of another capture"
        return Restorer(saved=saved, static=self.static(), device=self.device, operations=self.operations), ""

    def save(self, circumstances: Circumstances, calls: Sequence[AtenCall]) -> Saving:
        """The graphs of the manager as a file.

        Raises:
            CaptureError: nothing is captured, or it cannot be recorded once more.
            torch.OutOfMemoryError: there is no memory for a second pool.
        """
        return save(self.manager, self.static(), self.device, about(circumstances), calls)


@frozen(kw_only=True)
class Rebuilt:
    """How rebuilding went: how many entries, why not all, what took how long, and what was kept.

    ``dropped`` are entries that were rebuilt and replayed otherwise than eager: then none of the file is
    trusted. ``not_saved`` says why no file was kept, where one was due.
    """

    num_restored: int = 0
    reason: str = ""
    times: RestoreTimes | None = None
    dropped: tuple[PlanEntry, ...] = ()
    saved: Saving | None = None
    not_saved: str = ""


@define
class Rebuilding:
    """One start of a family that rebuilds what it can and saves what it had to capture."""

    materials: Materials
    restorer: Restorer | None
    so_far: Rebuilt

    @classmethod
    def begin(cls, materials: Materials, restart: Restart) -> Rebuilding:
        """Asks the cache for the graphs."""
        restorer, reason = materials.restorer(restart)
        return cls(materials, restorer, Rebuilt(reason=reason))

    def proved(
        self, report: CaptureReport, verify: Callable[..., tuple[Verdict, ...]], how: Verify
    ) -> CaptureReport:
        """Compares what was rebuilt with eager; if any entry is wrong, all are given up to be captured."""
        restored = [made.entry for made in report.records if made.restored]
        manager = self.materials.manager
        verdicts = verify(entries=entries_to_verify(restored, how), poison=True) if restored else ()
        wrong = tuple(verdict.entry for verdict in verdicts if not verdict.ok)
        if wrong:
            manager.discard(restored)
            restored = []
            report = manager.capture_more(manager.num_remaining)
            self.restorer = None
        times = None if self.restorer is None else self.restorer.times
        self.so_far = evolve(self.so_far, num_restored=len(restored), times=times, dropped=wrong)
        return report

    @property
    def is_save_due(self) -> bool:
        """Whether no graph was rebuilt, so that there is something to save."""
        return not self.so_far.num_restored

    def save(self, circumstances: Circumstances, calls: Sequence[AtenCall]) -> bytes | None:
        """The file to keep; None where the graphs cannot be saved."""
        try:
            saved = self.materials.save(circumstances, calls)
        except (CaptureError, torch.OutOfMemoryError) as error:
            self.so_far = evolve(self.so_far, not_saved=reason_of(error))
            return None
        self.so_far = evolve(self.so_far, saved=saved)
        return saved.content


def about(circumstances: Circumstances) -> dict[str, str]:
    """What a file of graphs says of itself, and what it is refused by."""
    return {
        "plan": circumstances.plan,
        "family": circumstances.family,
        "rank": str(circumstances.rank),
        "environment": circumstances.environment.digest,
        "model": circumstances.model.digest,
    }


def entries_to_verify(restored: Sequence[PlanEntry], how: Verify) -> tuple[PlanEntry, ...]:
    """The entries to compare with eager: all, none, or the first, last, largest and a random tenth."""
    if how == "all" or not restored:
        return tuple(restored)
    if how == "none":
        return ()
    largest = max(restored, key=lambda entry: entry.num_tokens)
    chosen = {restored[0], restored[-1], largest, *random.sample(restored, len(restored) // SAMPLED)}
    return tuple(entry for entry in restored if entry in chosen)
