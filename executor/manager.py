"""CudaGraphManager: captures exactly the entries of a plan's family, dispatches and replays them.

Source of the interface: vLLM 0.33, the graph manager of its V2 runner (rules 5.7).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import Any

import torch
from attrs import evolve

from executor.backends.base import Backend, GraphPool, backend_for, joined
from executor.capture_loop import CaptureLoop, CreateForward, with_sizes_that_fit
from executor.dispatching import EagerReason, Key, graph_key, table_of
from executor.errors import ReplayError
from executor.guide import CaptureOptions
from executor.logs import log_capture
from executor.outputs import OutputBuffers
from executor.parallel import ParallelInfo
from executor.pieces import EntryGraphs
from executor.records import CaptureRecord, CaptureReport
from planner.descriptors import PlanEntry
from planner.dispatch import DispatchTable
from planner.dispatch_v1 import V1DispatchTable
from planner.documents.plan import TARGET, Plan
from planner.modes import CUDAGraphMode

POISON = 0xFF
"""A byte that makes every floating-point number NaN."""


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
        self.backend: Backend = backend_for(device)
        self.pool = self.backend.new_pool() if pool is None else pool
        self._outputs = OutputBuffers()
        self._graphs: dict[Key, EntryGraphs] = {}
        self._by_identity: dict[int, EntryGraphs] = {}
        self._captured: tuple[PlanEntry, ...] = ()
        self._loop: CaptureLoop | None = None
        self._seconds = 0.0
        self._index = {entry: index for index, entry in enumerate(self.entries)}
        self.usage_counts = [0] * (len(self.entries) + 1)
        """Replays of each entry by its place in the plan; the last is for steps without a graph."""
        self.real_tokens = [0, 0, 0]
        """Tokens of requests, without padding, in steps of mode NONE, PIECEWISE and FULL, by the mode's
        value. Whoever runs steps adds to it; ``count_eager`` does for NONE."""
        self.padded_eager_tokens = 0
        """Tokens of steps without a graph, padding included."""
        self.eager_reasons = dict.fromkeys(EagerReason, 0)
        """Steps without a graph, by why they had none."""
        self.lazily_captured: set[PlanEntry] = set()
        """Entries that were tried after ``capture`` had returned."""
        self.table = table_of(plan, family, ())
        """The planner's table over the entries that have a graph."""
        self.dispatch = self.table.dispatch
        """Which graph serves a batch, among those that were captured."""

    @property
    def device(self) -> torch.device:
        """Where the graphs live."""
        return self.backend.device

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
    def output_buffers(self) -> tuple[torch.Tensor, ...]:
        """Where replays leave what the forward returns, each long enough for the largest entry."""
        return self._outputs.tensors

    @property
    def captured_entries(self) -> tuple[PlanEntry, ...]:
        """Entries that have a graph, in capture order."""
        return self._captured

    def capture(
        self,
        create_forward_fn: CreateForward,
        progress_bar_desc: str = "Capturing CUDA graphs",
        *,
        options: CaptureOptions | None = None,
    ) -> CaptureReport:
        """Captures every entry in the plan's order; what was captured before is released first.

        For each entry the factory is asked for a forward to warm up with, which runs once in mode
        NONE, then for a fresh one, which is recorded: as a whole with mode NONE, in pieces with mode
        PIECEWISE. ``options`` may leave warm-ups out, change the order, or end early, after which
        ``capture_more`` goes on.

        An entry that cannot be recorded, or for which memory does not suffice, is reported and left
        out; dispatch then knows only the others.

        Raises:
            Exception: what the forward raises while warming up, out of memory excepted: it would fail
                without graphs as well.
        """
        self.release_graphs()
        options = options or CaptureOptions()
        self._loop = CaptureLoop(
            backend=self.backend,
            pool=self.pool,
            outputs=self._outputs,
            create=create_forward_fn,
            options=options,
            remaining=list(options.entries_in_order(self.entries)),
            memory_budget=self.memory_budget,
            desc=progress_bar_desc,
        )
        return self._run(self._loop, options.guide.ready)

    def capture_more(self, most: int = 1) -> CaptureReport:
        """Captures up to ``most`` entries that an early end of ``capture`` left, and reports on all.

        Called between steps, on the thread that replays.

        Raises:
            ReplayError: nothing has been captured so far.
        """
        if self._loop is None:
            raise ReplayError(f"{self.family}: no capture to go on with; call capture first")
        before = len(self._loop.records)
        report = self._run(self._loop, most)
        self.lazily_captured.update(record.entry for record in self._loop.records[before:])
        return report

    def graphs_of(self, entry: PlanEntry) -> EntryGraphs:
        """The graphs of a captured entry.

        Raises:
            ReplayError: it has none.
        """
        return self._find(graph_key(self.plan, self.family, entry))

    def record_twin(self, entry: PlanEntry, pool: GraphPool) -> EntryGraphs:
        """Records a captured entry once more into another pool, as it was recorded before.

        Called inside the backend's session. Nothing is served by the twin; the caller releases it.

        Raises:
            ReplayError: nothing was captured.
            Exception: whatever the forward or the recording raises.
        """
        if self._loop is None:
            raise ReplayError(f"{self.family}: no capture to repeat; call capture first")
        return self._loop.record_twin(entry, pool)

    def discard(self, entries: Collection[PlanEntry]) -> None:
        """Gives the graphs of ``entries`` back, where they have any; ``capture_more`` captures them anew."""
        if self._loop is None:
            return
        gone = {entry: self._loop.graphs.pop(entry) for entry in entries if entry in self._loop.graphs}
        for entry, graphs in gone.items():
            self._graphs.pop(graph_key(self.plan, self.family, entry))
            graphs.release()
            self._loop.remaining.append(entry)
        self._loop.records[:] = [made for made in self._loop.records if made.entry not in gone]
        self.lazily_captured.difference_update(gone)
        self._serve(tuple(entry for entry in self._captured if entry not in gone))

    @property
    def num_remaining(self) -> int:
        """Entries that ``capture_more`` has still to try."""
        return 0 if self._loop is None else len(self._loop.remaining)

    @property
    def records(self) -> tuple[CaptureRecord, ...]:
        """How the capture of each entry that was tried went, as far as it is known."""
        return () if self._loop is None else tuple(self._loop.records)

    @property
    def capture_seconds(self) -> float:
        """What all of capturing took."""
        return self._seconds

    def _run(self, loop: CaptureLoop, most: int | None) -> CaptureReport:
        before = len(loop.records)
        self._seconds += loop.run(most)
        for entry, graphs in loop.graphs.items():
            graphs.count_in(self.usage_counts, self._index[entry])
            self._graphs[graph_key(self.plan, self.family, entry)] = graphs
        records: Sequence[CaptureRecord] = loop.records
        self._serve(tuple(entry for entry in self.entries if entry in loop.graphs))
        if loop.options.inspect and not loop.remaining:
            records = [self._inspected(record) for record in records]
        report = CaptureReport(
            family=self.family,
            device=str(self.device),
            seconds=self._seconds,
            records=with_sizes_that_fit(records),
            num_remaining=len(loop.remaining),
        )
        log_capture(report, report.records[before:])
        return report

    def run_fullgraph(self, desc: Key) -> Any:
        """Replays the FULL graph of ``desc``, which is what ``dispatch`` returned.

        The returned tensors are views of persistent buffers: they hold until the next replay.

        Raises:
            ReplayError: there is no such graph.
        """
        known = self._by_identity.get(id(desc))
        return (self._find(desc) if known is None else known).replay()

    def kernel_names(self, entry: PlanEntry) -> frozenset[str] | None:
        """Names of the kernels, or calls, in the graphs of ``entry``; None where they are not known.

        Raises:
            ReplayError: the entry has no graph.
        """
        known = [recording.kernel_names() for recording in self.graphs_of(entry).recordings]
        return None if None in known else frozenset().union(*(names for names in known if names))

    def poison(self) -> None:
        """Overwrites outputs and the pool's memory, whose contents no replay may depend on, with NaN."""
        for tensor in (*self.output_buffers, *self.backend.memory_of(self.pool)):
            if tensor.numel():
                tensor.view(torch.uint8).fill_(POISON)

    def count_eager(
        self,
        num_tokens: int = 0,
        num_padded_tokens: int | None = None,
        reason: EagerReason = EagerReason.UNKNOWN,
    ) -> None:
        """Counts a step of ``num_tokens`` that ran without a graph; by default it was not padded."""
        self.usage_counts[-1] += 1
        self.real_tokens[CUDAGraphMode.NONE.value] += num_tokens
        self.padded_eager_tokens += num_tokens if num_padded_tokens is None else num_padded_tokens
        self.eager_reasons[reason] += 1

    def why_eager(self, num_tokens: int, mode_by: Callable[[Any], CUDAGraphMode]) -> EagerReason:
        """Why a batch runs without a graph; ``mode_by`` looks it up with the dispatch that it is given."""
        if mode_by(self.dispatch):
            return EagerReason.AGREED
        if mode_by(self._whole_table.dispatch):
            return EagerReason.NOT_CAPTURED
        return EagerReason.TOO_LARGE if num_tokens > self.max_num_tokens else EagerReason.NO_ENTRY

    @cached_property
    def _whole_table(self) -> DispatchTable | V1DispatchTable:
        """The table as it would be with a graph of every entry."""
        return table_of(self.plan, self.family, self.entries)

    run_piecewise = run_fullgraph
    """Replays the pieces of ``desc``; the caller has set the forward context that operations read."""

    def _find(self, desc: Key) -> EntryGraphs:
        try:
            return self._graphs[desc]
        except KeyError:
            raise self._no_graph(desc) from None

    def release_graphs(self) -> None:
        """Gives all graphs back; nothing is served by a graph until the next capture."""
        for graphs in self._graphs.values():
            graphs.release()
        self._graphs.clear()
        self._outputs.clear()
        self.lazily_captured.clear()
        self._loop, self._seconds = None, 0.0
        self._serve(())

    def _serve(self, captured: tuple[PlanEntry, ...]) -> None:
        self._captured = captured
        # V2's dispatch returns the very objects that are the keys, and hashing one costs more than the rest
        # of a replay. As long as they are keys, no other object has their identity.
        self._by_identity = {id(key): graphs for key, graphs in self._graphs.items()}
        self.table = table_of(self.plan, self.family, captured)
        self.dispatch = self.table.dispatch

    def _inspected(self, record: CaptureRecord) -> CaptureRecord:
        graphs = self._graphs.get(graph_key(self.plan, self.family, record.entry))
        if graphs is None:
            return record
        digests = [recording.digests() for recording in graphs.recordings]
        known = [digest for digest in digests if digest is not None]
        return record if len(known) < len(digests) else evolve(record, digests=joined(known))

    def _no_graph(self, desc: Key) -> ReplayError:
        if not self._graphs:
            return ReplayError(f"{self.family}: no graphs are captured; call capture first")
        return ReplayError(f"{self.family}: no graph of {desc}; replay what dispatch returns, or run eagerly")
