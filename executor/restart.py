"""Restarting warm: what the cache knows of a capture decides how the next one is run.

In this order: the record of a capture under the same circumstances is looked up; the kernels that it
lists are loaded by one recorded ATen call each; entries are then captured without the warm-up forwards
that only loaded kernels, the hottest first, and without those that are known to fail. What comes out is
compared with the record, and whatever was new is kept. Nothing here ever fails because of the cache.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

import torch
from attrs import evolve, field, frozen

from cache.captures import CaptureRecordV1, EntryCapture, OutputShape
from cache.fingerprint import EnvironmentFingerprint, ModelFingerprint
from cache.safe import SafeCache
from executor.calls import NOTHING, AtenCall, Preloaded, calls_from_json, preload
from executor.guide import CaptureGuide
from executor.logs import log_lookup
from executor.records import CaptureRecord, CaptureReport
from planner.descriptors import PlanEntry

CALLS = "aten-calls"
"""Name of the artifact that lists the calls which load a capture's kernels."""

COMPILED = "torch-compile"
"""Name of the artifact of ``torch.compiler.save_cache_artifacts``."""

GRAPHS = "graphs"
"""Name of the artifact with the graphs themselves."""


@frozen(kw_only=True)
class Circumstances:
    """What a capture is looked up by: ``plan`` is the plan's ``stable_digest``."""

    plan: str
    family: str
    environment: EnvironmentFingerprint
    model: ModelFingerprint
    rank: int = 0
    model_name: str = ""


@frozen(kw_only=True)
class Restart:
    """What the cache knows of one family's capture; ``reason`` says why there is no record to use."""

    cache: SafeCache
    about: Circumstances
    record: CaptureRecordV1 | None = None
    reason: str = ""
    usage: Mapping[PlanEntry, int] = field(factory=dict)

    @classmethod
    def look_up(cls, cache: SafeCache, about: Circumstances) -> Restart:
        """Asks the cache; one that is cold, broken or empty makes for a cold capture."""
        found = cache.find_capture(about.plan, about.environment, about.model, about.family, about.rank)
        traffic = cache.usage(about.plan, about.family)
        counts = {} if traffic is None else {row.entry: row.count for row in traffic.counts}
        log_lookup(about.family, found=found.record is not None, reason=found.reason)
        return cls(cache=cache, about=about, record=found.record, reason=found.reason, usage=counts)

    @property
    def is_warm(self) -> bool:
        """Whether there is a record to go by."""
        return self.record is not None

    @property
    def num_bytes(self) -> int | None:
        """Bytes that pool and graphs took, so that a KV cache is sized without a trial capture."""
        return None if self.record is None else sum(row.num_bytes for row in self.record.entries)

    def artifact(self, name: str) -> bytes | None:
        """A file that was kept with the record."""
        return None if self.record is None else self.cache.get_artifact(self.record.key, name)

    def prepare(self, device: torch.device, *, kernels: bool = True) -> Preloaded:
        """Loads what the capture will need: compiled code into PyTorch's caches, kernels onto ``device``.

        Graphs that are rebuilt find their ``kernels`` themselves.
        """
        if self.record is None:
            return NOTHING
        compiled = self.artifact(COMPILED)
        if compiled is not None:
            with suppress(Exception):  # what PyTorch does not take is compiled again
                torch.compiler.load_cache_artifacts(compiled)
        return preload(self._calls(), device) if kernels else NOTHING

    def _calls(self) -> tuple[AtenCall, ...]:
        content = self.artifact(CALLS)
        if content is None:
            return ()
        try:
            return calls_from_json(json.loads(content))
        except ValueError:
            return ()

    def guide(self, entries: Sequence[PlanEntry], ready_after: float = 1.0) -> CaptureGuide:
        """How to capture ``entries``.

        ``ready_after`` is the share of recorded traffic that has to be covered before serving begins;
        1 waits for all entries, also those that no traffic was recorded of.
        """
        rows = {} if self.record is None else {row.entry: row for row in self.record.entries}
        errors = {entry: row.error for entry, row in rows.items() if row.error is not None}
        order = hottest_first([entry for entry in entries if entry not in errors], self.usage)
        return CaptureGuide(
            order=order,
            ready=num_ready(order, self.usage, ready_after),
            known_errors=errors,
            warmed_by_record=self.record is not None,
            warm_ups=frozenset(entry for entry in entries if entry not in rows or rows[entry].num_warmups),
            outputs=() if self.record is None else self.record.outputs,
        )

    def differing(self, report: CaptureReport) -> tuple[PlanEntry, ...]:
        """Entries whose graphs are not what the record says, though the circumstances are the same."""
        rows = {} if self.record is None else {row.entry: row for row in self.record.entries}
        return tuple(made.entry for made in report.records if _differs(made, rows.get(made.entry)))

    def remember(
        self,
        report: CaptureReport,
        *,
        outputs: tuple[OutputShape, ...],
        calls: Iterable[AtenCall] = (),
        compiled: bool = False,
        graphs: bytes | None = None,
        errors: Mapping[PlanEntry, float] | None = None,
        measured: Mapping[str, int] | None = None,
    ) -> bool:
        """Keeps a finished capture with the ``calls`` that load its kernels; whether it is stored.

        ``compiled`` says that ``torch.compile`` made the model: its artifacts are kept as well, and each
        entry needs its warm-up. ``graphs`` is a file of the graphs themselves, ``errors`` are the errors
        last seen against eager, ``measured`` further sizes in bytes by their names in ``CaptureRecordV1``.
        """
        about = self.about
        record = CaptureRecordV1(
            plan=about.plan,
            family=about.family,
            rank=about.rank,
            environment=about.environment,
            model=about.model,
            entries=tuple(_row(made, compiled=compiled, errors=errors or {}) for made in report.records),
            seconds=report.seconds,
            outputs=outputs,
            versions={"torch": torch.__version__},
            model_name=about.model_name,
            created=time.time(),
            **(measured or {}),
        )
        if not self.cache.put_capture(record):
            return False
        content = json.dumps([call.as_json() for call in calls]).encode()
        stored = self.cache.put_artifact(record, CALLS, content)
        artifacts = torch.compiler.save_cache_artifacts() if compiled else None
        if artifacts is not None:
            stored = self.cache.put_artifact(record, COMPILED, artifacts[0]) and stored
        if graphs is not None:
            stored = self.cache.put_artifact(record, GRAPHS, graphs) and stored
        return stored


def hottest_first(entries: Collection[PlanEntry], usage: Mapping[PlanEntry, int]) -> tuple[PlanEntry, ...]:
    """Those of ``entries`` that were replayed, from the most often to the least."""
    used = [entry for entry in entries if usage.get(entry)]
    return tuple(sorted(used, key=lambda entry: -usage[entry]))


def num_ready(order: Sequence[PlanEntry], usage: Mapping[PlanEntry, int], share: float) -> int | None:
    """How many entries of ``order`` cover ``share`` of all replays; None for all, or where none is known."""
    total = sum(usage.get(entry, 0) for entry in order)
    if share >= 1 or not total:
        return None
    covered = 0
    for number, entry in enumerate(order, start=1):
        covered += usage[entry]
        if covered >= share * total:
            return number
    return len(order)


def _differs(made: CaptureRecord, row: EntryCapture | None) -> bool:
    if row is None or row.topology_digest is None or made.digests is None:
        return False
    return (row.kernel_digest, row.topology_digest) != (made.digests.kernels, made.digests.topology)


def _row(made: CaptureRecord, *, compiled: bool, errors: Mapping[PlanEntry, float]) -> EntryCapture:
    row = EntryCapture(
        entry=made.entry,
        seconds=made.seconds,
        warmup_seconds=made.warmup_seconds,
        num_bytes=made.num_bytes,
        num_nodes=made.num_nodes,
        num_graphs=made.num_graphs,
        num_warmups=int(compiled or made.needed_warm_up),
        error=made.error,
        fix=made.fix,
        verified_error=errors.get(made.entry),
    )
    if made.digests is None:
        return row
    return evolve(row, kernel_digest=made.digests.kernels, topology_digest=made.digests.topology)


def output_shapes(tensors: Iterable[torch.Tensor]) -> tuple[OutputShape, ...]:
    """What a warm start reserves for ``tensors``, a manager's output buffers."""
    return tuple(
        OutputShape(dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape))
        for tensor in tensors
    )
