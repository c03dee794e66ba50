"""The loop over the entries of a family: warm up, record, make ready, and go on after a failure."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias

import torch
from attrs import define, evolve, field

from executor.backends.base import Backend, GraphPool, MemoryBudgetError
from executor.below_autograd import below_autograd
from executor.errors import CaptureError
from executor.guide import CaptureOptions, GraphRestorer
from executor.outputs import OutputBuffers
from executor.pieces import EntryGraphs, record_pieces, record_whole
from executor.records import CaptureRecord
from planner.descriptors import BatchExecutionDescriptor, PlanEntry
from planner.modes import CUDAGraphMode

Forward: TypeAlias = Callable[[CUDAGraphMode], Any]
"""Runs the model on static buffers and returns a tree of tensors, or None."""

CreateForward: TypeAlias = Callable[[BatchExecutionDescriptor, bool], Forward]
"""Prepares the inputs of one entry; the flag says that the forward is for warming up only."""

TRY_COLD = "it failed before under the same circumstances; a cold capture tries it again"
SEE_THAT_RANK = "a graph is replayed by all ranks or by none; see the record of that rank"
ONE_PROCESS = "graphs are not rebuilt where ranks capture in lock-step"
LOWER_THE_MAXIMUM = "lower max_cudagraph_capture_size, or leave the graphs more memory"


@define(kw_only=True, eq=False)
class CaptureLoop:
    """Captures ``remaining`` entry by entry; ``graphs`` and ``records`` are those that are ready.

    An entry is made ready to launch on another thread while the next one is recorded, so that its
    record is there one step later, except under ``memory_budget``.
    """

    backend: Backend
    pool: GraphPool
    outputs: OutputBuffers
    create: CreateForward
    options: CaptureOptions
    remaining: list[PlanEntry]
    memory_budget: int | None = None
    desc: str = ""
    graphs: dict[PlanEntry, EntryGraphs] = field(factory=dict, init=False)
    records: list[CaptureRecord] = field(factory=list, init=False)
    _base: int = field(init=False)
    _outside: int = field(init=False)
    _total: int = field(init=False)
    _pending: tuple[CaptureRecord, EntryGraphs] | None = field(default=None, init=False)
    _restorer: GraphRestorer | None = field(init=False)
    _refused: Mapping[PlanEntry, str] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._restorer = self.options.guide.restorer
        self._total = len(self.remaining)
        self._base = self.backend.used_bytes(self.pool)
        self._outside = self._base - self.pool.num_bytes
        self.outputs.reserve_shapes(self.options.guide.outputs, self.backend.device)

    def run(self, most: int | None = None) -> float:
        """Captures up to ``most`` further entries and returns the seconds that it took.

        Raises:
            Exception: what the forward raises while warming up, out of memory excepted: it would fail
                without graphs as well.
        """
        started = time.perf_counter()
        autograd = below_autograd() if self.options.below_autograd else nullcontext()
        with torch.no_grad(), autograd, _frozen_garbage(), self.backend.session():
            if self.options.materialize:
                self.backend.pin_workspace()
            self._restore()
            for _ in range(len(self.remaining) if most is None else min(most, len(self.remaining))):
                self._step(self.remaining.pop(0))
            self._settle()
        self.backend.synchronize()
        return time.perf_counter() - started

    def _restore(self) -> None:
        """Rebuilds what can be, once; what cannot stays to be captured."""
        restorer, self._restorer = self._restorer, None
        if restorer is None:
            return
        if self.options.lock_step is not None:
            self._refused = dict.fromkeys(self.remaining, ONE_PROCESS)
            return
        try:
            restorer.prepare(self.pool)
            for entry in restorer.loaders(self.remaining):
                self.remaining.remove(entry)
                self._step(entry)
            self._settle()
            found = restorer.restore(tuple(self.remaining), self.pool, self.outputs.tensors, self.graphs)
        except (CaptureError, torch.OutOfMemoryError) as error:
            self._refused = dict.fromkeys(self.remaining, reason_of(error))
            return
        self._refused = restorer.refused
        for entry, graphs in found.items():
            self.remaining.remove(entry)
            self.graphs[entry] = graphs
            self._done(_restored(entry, graphs))

    def _step(self, entry: PlanEntry) -> None:
        known = self.options.guide.known_errors.get(entry)
        made = [*self.records, *((self._pending[0],) if self._pending else ())]
        warm_up = self.options.warms_up(entry, made)
        if self.options.lock_step is not None:
            warm_up, known = self.options.lock_step.begin(entry, warm_up, known)
        if known is not None:
            self._settle()
            self._done(CaptureRecord(entry=entry, error=known, fix=TRY_COLD))
            return
        record, graphs = self._attempt(entry, warm_up=warm_up)
        if record.error is not None and not warm_up:
            # What it sets up on first use, or room for its outputs, was missing.
            record, graphs = self._attempt(entry, warm_up=True)
            record = evolve(record, needed_warm_up=record.error is None)
        self._settle()
        if graphs is None:
            self._done(record)
            return
        self._pending = record, graphs
        if self.memory_budget is not None:
            self._settle()

    def _attempt(self, entry: PlanEntry, *, warm_up: bool) -> tuple[CaptureRecord, EntryGraphs | None]:
        record = CaptureRecord(entry=entry, num_warmups=int(warm_up))
        began = time.perf_counter()
        try:
            if warm_up:
                self._warm_up(entry)
        except torch.OutOfMemoryError as error:
            return self._agreed(_failed(record, error), None, warming_up=True)
        except Exception as error:
            if self.options.lock_step is not None:
                self.options.lock_step.give_up(entry, error)
            raise
        warm = time.perf_counter()
        record = evolve(record, warmup_seconds=warm - began)
        pool_bytes = self.pool.num_bytes
        try:
            self.backend.begin_entry(self.pool, self._allowed_bytes())
            graphs = self._record(entry, self.pool)
        except Exception as error:  # noqa: BLE001 - whatever cannot be recorded costs its entry, not the server
            return self._agreed(_failed(record, error), None)
        seconds = time.perf_counter() - warm
        record = evolve(record, seconds=seconds, num_bytes=self.pool.num_bytes - pool_bytes)
        return self._agreed(record, graphs)

    def _agreed(
        self, record: CaptureRecord, graphs: EntryGraphs | None, *, warming_up: bool = False
    ) -> tuple[CaptureRecord, EntryGraphs | None]:
        """An attempt as it counts for all ranks: a graph that another rank lacks is given back."""
        if self.options.lock_step is None:
            return record, graphs
        error = self.options.lock_step.outcome(record.entry, record.error, warming_up=warming_up)
        if error is None or record.error is not None:
            return record, graphs
        if graphs is not None:
            graphs.release()
        return evolve(record, num_bytes=0, error=error, fix=SEE_THAT_RANK), None

    def _allowed_bytes(self) -> int | None:
        if self.memory_budget is None:
            return None
        return self.memory_budget - (self.backend.used_bytes(self.pool) - self._base)

    def _warm_up(self, entry: PlanEntry) -> None:
        self.backend.begin_warm_up()
        forward = self.create(entry.execution_descriptor, True)
        self.outputs.reserve(forward(CUDAGraphMode.NONE))

    def record_twin(self, entry: PlanEntry, pool: GraphPool) -> EntryGraphs:
        """Records an entry that has its outputs' room already once more, into another pool.

        Raises:
            Exception: whatever the forward or the recording raises.
        """
        with below_autograd() if self.options.below_autograd else nullcontext():
            return self._record(entry, pool)

    def _record(self, entry: PlanEntry, pool: GraphPool) -> EntryGraphs:
        # A fresh forward: warming up may have changed or lazily made what the first one holds.
        forward = self.create(entry.execution_descriptor, False)
        if entry.mode is CUDAGraphMode.FULL:
            return record_whole(self.backend, pool, lambda: self.outputs.keep(forward(CUDAGraphMode.NONE)))
        return record_pieces(self.backend, pool, lambda: self.outputs.keep(forward(CUDAGraphMode.PIECEWISE)))

    def _settle(self) -> None:
        """Waits for the entry whose graphs are being made ready, if there is one, and takes it over."""
        if self._pending is None:
            return
        (record, graphs), self._pending = self._pending, None
        waited = time.perf_counter()
        try:
            for recording in graphs.recordings:
                recording.wait_until_ready()
        except Exception as error:  # noqa: BLE001 - as above
            graphs.release()
            self._done(self._agreed(_failed(evolve(record, num_bytes=0), error), None)[0])
            return
        record, kept = self._agreed(record, graphs)
        if kept is None:
            self._done(record)
            return
        self.graphs[record.entry] = graphs
        nodes = [recording.num_nodes for recording in graphs.recordings]
        self._done(
            evolve(
                record,
                seconds=record.seconds + time.perf_counter() - waited,
                num_bytes=record.num_bytes + self._growth_outside_pool(),
                num_nodes=None if None in nodes else sum(count or 0 for count in nodes),
                num_graphs=len(graphs.recordings),
            )
        )

    def _growth_outside_pool(self) -> int:
        """Bytes of the driver's, since the last entry: of graphs above all."""
        before, self._outside = self._outside, self.backend.used_bytes(self.pool) - self.pool.num_bytes
        return max(self._outside - before, 0)

    def _done(self, record: CaptureRecord) -> None:
        if record.entry in self._refused and not record.restored:
            record = evolve(record, refused=self._refused[record.entry])
        self.records.append(record)
        if self.options.progress is not None:
            self.options.progress(self.desc, len(self.records), self._total, record)


def _restored(entry: PlanEntry, graphs: EntryGraphs) -> CaptureRecord:
    nodes = [recording.num_nodes or 0 for recording in graphs.recordings]
    return CaptureRecord(entry=entry, restored=True, num_nodes=sum(nodes), num_graphs=len(nodes))


def reason_of(error: Exception) -> str:
    """What an error says, in one line."""
    return str(error).partition("\n")[0] or type(error).__name__


def _failed(record: CaptureRecord, error: Exception) -> CaptureRecord:
    reason = reason_of(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryBudgetError):
        what = reason if isinstance(error, MemoryBudgetError) else f"out of memory: {reason}"
        return evolve(record, error=what, fix=LOWER_THE_MAXIMUM)
    return evolve(record, error=reason, fix="planner capture --check names the line")


def with_sizes_that_fit(records: Sequence[CaptureRecord]) -> tuple[CaptureRecord, ...]:
    """Tells entries that memory did not suffice for what did fit, which is known at the end only."""
    fitting = max((record.entry.num_tokens for record in records if record.error is None), default=None)
    if fitting is None:
        return tuple(records)
    fix = f"max_cudagraph_capture_size: {fitting}, which fitted; or leave the graphs more memory"
    return tuple(
        evolve(record, fix=fix)
        if record.fix == LOWER_THE_MAXIMUM and record.entry.num_tokens > fitting
        else record
        for record in records
    )


@contextmanager
def _frozen_garbage() -> Iterator[None]:
    """Without garbage collection, which would look at every object of the model at each entry.

    What there was before is frozen, so that the collection at the end looks at new objects only.
    Source: vLLM 0.33 freezes the collector while it captures (faults 53, 54).
    """
    was_enabled, was_frozen = gc.isenabled(), gc.get_freeze_count()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        if not was_frozen:
            gc.unfreeze()
        if was_enabled:
            gc.enable()
