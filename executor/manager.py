"""CudaGraphManager: captures exactly the entries of a plan's family, dispatches and replays them.

Source of the interface: vLLM 0.33, the graph manager of its V2 runner (rules 5.7).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import torch
from attrs import evolve

from executor.backends.base import Backend, GraphPool, MemoryBudgetError, backend_for
from executor.dispatching import Key, graph_key, table_of
from executor.errors import ReplayError
from executor.outputs import OutputBuffers
from executor.parallel import ParallelInfo
from executor.pieces import EntryGraphs, record_pieces, record_whole
from executor.records import CaptureRecord, CaptureReport
from planner.descriptors import BatchExecutionDescriptor, PlanEntry
from planner.documents.plan import TARGET, Plan
from planner.modes import CUDAGraphMode

Forward: TypeAlias = Callable[[CUDAGraphMode], Any]
"""Runs the model on static buffers and returns a tree of tensors, or None."""

CreateForward: TypeAlias = Callable[[BatchExecutionDescriptor, bool], Forward]
"""Prepares the inputs of one entry; the flag says that the forward is for warming up only."""

Progress: TypeAlias = Callable[[str, int, int, CaptureRecord], None]
"""Told after each entry: what is captured, how many are done, of how many, how the last one went."""


WarmUp: TypeAlias = Literal["each", "first"]
"""Which entries run eagerly once ahead of their recording."""

LOWER_THE_MAXIMUM = "lower max_cudagraph_capture_size, or leave the graphs more memory"


class CudaGraphManager:
    """Graphs of one family of a plan on one device.

    ``pool`` may be another manager's on the same device; graphs of both then overwrite each other's
    intermediate results, never their outputs. ``memory_budget`` bounds in bytes what capture may add.

    Raises:
        FamilyError: the plan has no such family.
        CaptureError: the device is none that graphs are recorded on.
    """

    def __init__(
        self,
        plan: Plan,
        family: str = TARGET,
        *,
        device: torch.device | str = "cuda",
        pool: GraphPool | None = None,
        parallel: ParallelInfo | None = None,
        memory_budget: int | None = None,
    ) -> None:
        self.plan = plan
        self.family = family
        self.entries = plan.entries(family)
        self.parallel = parallel or ParallelInfo()
        self.memory_budget = memory_budget
        self._backend: Backend = backend_for(device)
        self.pool = self._backend.new_pool() if pool is None else pool
        self._outputs = OutputBuffers()
        self._graphs: dict[Key, EntryGraphs] = {}
        self._captured: tuple[PlanEntry, ...] = ()
        self.table = table_of(plan, family, ())
        """The planner's table over the entries that have a graph."""
        self.dispatch = self.table.dispatch
        """Which graph serves a batch, among those that were captured."""

    @property
    def device(self) -> torch.device:
        """Where the graphs live."""
        return self._backend.device

    @property
    def dp_size(self) -> int:
        """Data-parallel ranks."""
        return self.parallel.data_parallel_size

    @property
    def max_num_tokens(self) -> int:
        """Tokens of the largest entry."""
        return max((entry.num_tokens for entry in self.entries), default=0)

    @property
    def max_num_reqs(self) -> int:
        """Most requests that a step may have: the family's limit, else what its entries hold."""
        resolved = self.plan.resolved.get(self.family)
        limit = None if resolved is None else resolved.max_num_seqs
        return limit or max((entry.num_reqs or entry.num_tokens for entry in self.entries), default=0)

    @property
    def captured_entries(self) -> tuple[PlanEntry, ...]:
        """Entries that have a graph, in capture order."""
        return self._captured

    def capture(
        self,
        create_forward_fn: CreateForward,
        progress_bar_desc: str = "Capturing CUDA graphs",
        *,
        progress: Progress | None = None,
        inspect: bool = False,
        warm_up: WarmUp = "each",
    ) -> CaptureReport:
        """Captures every entry in the plan's order; what was captured before is released first.

        For each entry the factory is asked for a forward to warm up with, which runs once in mode
        NONE, then for a fresh one, which is recorded: as a whole with mode NONE, in pieces with mode
        PIECEWISE. ``inspect`` also reads each graph's digest, which takes longer than capturing it.

        ``warm_up="first"`` warms up with the first entry of each mode only, and with others whose recording
        fails without. That saves half the time of a capture, and is right for a forward that sets nothing
        up for single sizes: a workspace that is made while an entry is recorded lies in the pool, where
        the next graph overwrites it. Verify the entries after it.

        An entry that cannot be recorded, or for which memory does not suffice, is reported and left
        out; dispatch then knows only the others.

        Raises:
            Exception: what the forward raises while warming up, out of memory excepted: it would fail
                without graphs as well.
        """
        self.release_graphs()
        started = time.perf_counter()
        records: list[CaptureRecord] = []
        with torch.no_grad(), _frozen_garbage(), self._backend.session():
            base = self._backend.used_bytes(self.pool)
            for entry in self.entries:
                is_first = warm_up == "each" or all(made.entry.mode is not entry.mode for made in records)
                record = self._capture_entry(entry, create_forward_fn, base, warm_up=is_first)
                if record.error is not None and not is_first:
                    record = self._capture_entry(entry, create_forward_fn, base, warm_up=True)
                records.append(record)
                if progress is not None:
                    progress(progress_bar_desc, len(records), len(self.entries), records[-1])
        self._backend.synchronize()
        seconds = time.perf_counter() - started
        captured = tuple(record.entry for record in records if record.error is None)
        self._serve(captured)
        if inspect:
            records = [self._inspected(record) for record in records]
        return CaptureReport(
            family=self.family,
            device=str(self.device),
            seconds=seconds,
            records=_with_sizes_that_fit(records),
        )

    def run_fullgraph(self, desc: Key) -> Any:
        """Replays the FULL graph of ``desc``, which is what ``dispatch`` returned.

        The returned tensors are views of persistent buffers: they hold until the next replay.

        Raises:
            ReplayError: there is no such graph.
        """
        try:
            graphs = self._graphs[desc]
        except KeyError:
            raise self._no_graph(desc) from None
        return graphs.replay()

    run_piecewise = run_fullgraph
    """Replays the pieces of ``desc``; the caller has set the forward context that operations read."""

    def release_graphs(self) -> None:
        """Gives all graphs back; nothing is served by a graph until the next capture."""
        for graphs in self._graphs.values():
            graphs.release()
        self._graphs.clear()
        self._outputs.clear()
        self._serve(())

    def _serve(self, captured: tuple[PlanEntry, ...]) -> None:
        self._captured = captured
        self.table = table_of(self.plan, self.family, captured)
        self.dispatch = self.table.dispatch

    def _capture_entry(
        self, entry: PlanEntry, create: CreateForward, base: int, *, warm_up: bool
    ) -> CaptureRecord:
        record = CaptureRecord(entry=entry)
        began = time.perf_counter()
        try:
            if warm_up:
                self._warm_up(entry, create)
        except torch.OutOfMemoryError as error:
            return self._failed(record, error)
        warm = time.perf_counter()
        record = evolve(record, warmup_seconds=warm - began)
        before = self._backend.used_bytes(self.pool)
        try:
            budget = self.memory_budget
            self._backend.begin_entry(self.pool, None if budget is None else budget - (before - base))
            graphs = self._record(entry, create)
        except Exception as error:  # noqa: BLE001 - whatever cannot be recorded costs its entry, not the server
            return self._failed(record, error)
        self._graphs[graph_key(self.plan, self.family, entry)] = graphs
        nodes = [recording.num_nodes for recording in graphs.recordings]
        return evolve(
            record,
            seconds=time.perf_counter() - warm,
            num_bytes=max(self._backend.used_bytes(self.pool) - before, 0),
            num_nodes=None if None in nodes else sum(count or 0 for count in nodes),
            num_graphs=len(graphs.recordings),
        )

    def _warm_up(self, entry: PlanEntry, create: CreateForward) -> None:
        self._backend.begin_warm_up()
        forward = create(entry.execution_descriptor, True)
        self._outputs.reserve(forward(CUDAGraphMode.NONE))

    def _record(self, entry: PlanEntry, create: CreateForward) -> EntryGraphs:
        # A fresh forward: warming up may have changed or lazily made what the first one holds.
        forward = create(entry.execution_descriptor, False)
        if entry.mode is CUDAGraphMode.FULL:
            return record_whole(
                self._backend, self.pool, lambda: self._outputs.keep(forward(CUDAGraphMode.NONE))
            )
        return record_pieces(
            self._backend, self.pool, lambda: self._outputs.keep(forward(CUDAGraphMode.PIECEWISE))
        )

    def _failed(self, record: CaptureRecord, error: Exception) -> CaptureRecord:
        reason = str(error).partition("\n")[0] or type(error).__name__
        if isinstance(error, torch.OutOfMemoryError | MemoryBudgetError):
            what = reason if isinstance(error, MemoryBudgetError) else f"out of memory: {reason}"
            return evolve(record, error=what, fix=LOWER_THE_MAXIMUM)
        return evolve(record, error=reason, fix="planner capture --check names the line")

    def _inspected(self, record: CaptureRecord) -> CaptureRecord:
        graphs = self._graphs.get(graph_key(self.plan, self.family, record.entry))
        if graphs is None:
            return record
        digests = [recording.digest() for recording in graphs.recordings]
        known = [digest for digest in digests if digest is not None]
        return evolve(record, digest="+".join(known) if len(known) == len(digests) else None)

    def _no_graph(self, desc: Key) -> ReplayError:
        if not self._graphs:
            return ReplayError(f"{self.family}: no graphs are captured; call capture first")
        return ReplayError(f"{self.family}: no graph of {desc}; replay what dispatch returns, or run eagerly")


def _with_sizes_that_fit(records: Sequence[CaptureRecord]) -> tuple[CaptureRecord, ...]:
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

    Source: vLLM 0.33 freezes the collector while it captures (faults 53, 54).
    """
    gc.collect()
    gc.freeze()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
        gc.unfreeze()
        gc.collect()
