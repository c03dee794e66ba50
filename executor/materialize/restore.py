"""Rebuilding the graphs of a family from the file that another process saved.

The pool's memory is taken from PyTorch's allocator, kernels are found by their recipes, addresses are put
in for offsets, and graphs are built and instantiated by the driver. What does not fit is refused with its
reason, entry by entry, and captured instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from attrs import asdict, define, evolve, field, frozen

from executor.backends.base import GraphPool
from executor.backends.cuda_memory import tensor_at
from executor.breaks import operation_of
from executor.errors import CaptureError
from executor.materialize.building import GraphBuilder, RefusedError
from executor.materialize.device import GraphDevice
from executor.materialize.kernels import KernelSearch
from executor.materialize.recording import RestoredRecording
from executor.materialize.regions import Region, registered_regions
from executor.materialize.relocation import Relocation
from executor.materialize.saved import SavedCapture, SavedEntry
from executor.materialize.tree_data import decoded
from executor.pieces import EntryGraphs, MarkedCall
from planner.descriptors import PlanEntry

_MISREAD = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RuntimeError)
"""What reading a row raises that is not what was written, endless recursion included."""


@frozen(kw_only=True)
class RestoreTimes:
    """Seconds that parts of a restore took.

    Putting addresses into place (``patching``), ``building`` and ``instantiating`` run beside the search
    for kernels; ``waiting`` is what they take longer than it.
    """

    memory: float = 0.0
    kernels: float = 0.0
    waiting: float = 0.0
    patching: float = 0.0
    building: float = 0.0
    instantiating: float = 0.0

    @property
    def total(self) -> float:
        """From the first to the last of it."""
        return self.memory + self.kernels + self.waiting

    def as_json(self) -> dict[str, float]:
        """The parts by name."""
        return asdict(self)


@define(kw_only=True)
class Restorer:
    """Restores a saved family once; ``static`` are the tensors that were registered when it was saved.

    ``operations`` are the marked operations that may stand between pieces. Afterwards ``refused`` has a
    reason for each entry that was not rebuilt, and ``times`` what took how long.
    """

    saved: SavedCapture
    static: Mapping[str, torch.Tensor]
    device: GraphDevice
    operations: Sequence[Callable[..., None]] = ()
    refused: dict[PlanEntry, str] = field(factory=dict, init=False)
    times: RestoreTimes = field(factory=RestoreTimes, init=False)
    _claimed: tuple[Region, ...] = field(default=(), init=False)
    _graphs: tuple[Future[Relocation], ...] = field(default=(), init=False)

    def loaders(self, entries: Iterable[PlanEntry]) -> tuple[PlanEntry, ...]:
        """Entries that have to be captured first, because their kernels come from nowhere else."""
        header = self.saved.header
        numbers = {kernel.entry.entry for kernel in header.kernels if kernel.entry is not None}
        rows = [header.entries[number] for number in sorted(numbers) if 0 <= number < len(header.entries)]
        return tuple(entry for entry, row in self.saved.rows(entries) if row in rows)

    def prepare(self, pool: GraphPool) -> None:
        """Takes the pool's memory, before anything is captured into it, and begins to unpack.

        Raises:
            torch.OutOfMemoryError: there is no such memory.
        """
        began = time.perf_counter()
        worker = ThreadPoolExecutor(1, "graphplan-unpack")
        self._graphs = tuple(
            worker.submit(self.saved.graph, number) for number in range(len(self.saved.header.graphs))
        )
        worker.shutdown(wait=False)
        self.device.workspaces()
        self._claimed = self.device.claim(pool, self.saved.pool_sizes)
        self.times = evolve(self.times, memory=time.perf_counter() - began)

    def restore(
        self,
        entries: Iterable[PlanEntry],
        pool: GraphPool,
        outputs: Sequence[torch.Tensor],
        captured: Mapping[PlanEntry, EntryGraphs],
    ) -> dict[PlanEntry, EntryGraphs]:
        """The graphs of ``entries`` as far as they can be rebuilt; ``captured`` are those of the loaders."""
        began = time.perf_counter()
        regions, absent = self._regions(outputs)
        starts = torch.tensor([region.start for region in regions], dtype=torch.int64)
        search = KernelSearch(
            header=self.saved.header,
            device=self.device,
            pool=pool,
            address=next((region.start for region in reversed(regions) if region.start), 0),
            captured=captured,
            graph=lambda number: self._graphs[number].result(),
            starts=starts,
        )
        rows = tuple(self.saved.rows(entries))
        before = self.device.driver.seconds
        with (
            self._at_work(pool),
            GraphBuilder(device=self.device, graphs=self._graphs, starts=starts, absent=absent) as builder,
        ):
            self._build_what_is_known(search, builder, [row for _, row in rows if row is not None])
            searched = time.perf_counter()
            site = _Site(
                saved=self.saved,
                device=self.device,
                pool=pool,
                outputs=outputs,
                regions=regions,
                absent=absent,
                missing=search.missing,
                builder=builder,
                operations={each.name: each.run for each in map(operation_of, self.operations)},
            )
            found = self._assembled(site, rows)
        after = self.device.driver.seconds
        self.times = evolve(
            self.times,
            kernels=searched - began,
            waiting=time.perf_counter() - searched,
            patching=builder.patching,
            building=after[0] - before[0],
            instantiating=after[1] - before[1],
        )
        return found

    def _build_what_is_known(
        self, search: KernelSearch, builder: GraphBuilder, rows: Sequence[SavedEntry]
    ) -> None:
        """Looks for kernels, and has each graph of ``rows`` built as soon as its last one is found."""
        graphs = self.saved.header.graphs
        numbers = [step for row in rows for step in row.steps if isinstance(step, int)]
        lacking = {number: set(graphs[number].kernels) for number in numbers if 0 <= number < len(graphs)}
        for known in chain([()], search.steps()):  # graphs without a kernel need no search
            functions = tuple(search.functions)
            for number, kernels in tuple(lacking.items()):
                kernels.difference_update(each for each in known if each not in search.missing)
                if not kernels:
                    del lacking[number]
                    builder.submit(number, functions)

    @contextmanager
    def _at_work(self, pool: GraphPool) -> Iterator[None]:
        """Holds the pool, which would go with the recording that kernels are found in."""
        pool.joined()
        try:
            yield
        finally:
            pool.left()
            self._graphs = ()

    def _regions(self, outputs: Sequence[torch.Tensor]) -> tuple[list[Region], dict[int, str]]:
        """Where each saved region lies here, and why some do not."""
        registered = registered_regions(self.static, outputs, self.device.workspaces())
        here = {each.name: each for each in (*registered, *self._claimed)}
        found, absent = [], {}
        for number, saved in enumerate(self.saved.header.regions):
            own = here.get(saved.name)
            found.append(own or Region(saved.name, 0, 0))
            if own is None:
                absent[number] = f"{saved.name} is not there"
            elif own.layout != saved.layout or own.num_bytes < saved.num_bytes:
                absent[number] = (
                    f"{saved.name} is {own.layout} in {own.num_bytes} bytes, "
                    f"it was {saved.layout} in {saved.num_bytes} bytes"
                )
        return found, absent

    def _assembled(
        self, site: _Site, rows: Iterable[tuple[PlanEntry, SavedEntry | None]]
    ) -> dict[PlanEntry, EntryGraphs]:
        found = {}
        for entry, row in rows:
            try:
                found[entry] = site.entry(row)
            except CaptureError as error:
                self.refused[entry] = str(error)
        return found


@define(kw_only=True)
class _Site:
    """Where entries are rebuilt. ``absent`` and ``missing`` are regions and kernels that are not there."""

    saved: SavedCapture
    device: GraphDevice
    pool: GraphPool
    outputs: Sequence[torch.Tensor]
    regions: Sequence[Region]
    absent: Mapping[int, str]
    missing: Mapping[int, str]
    builder: GraphBuilder
    operations: Mapping[str, Callable[..., None]]

    def entry(self, row: SavedEntry | None) -> EntryGraphs:
        """The graphs of one entry.

        Raises:
            RefusedError: they cannot be rebuilt here.
        """
        if row is None:
            raise RefusedError("it was not captured when the graphs were saved")
        if row.obstacle is not None:
            raise RefusedError(row.obstacle)
        recordings: list[RestoredRecording] = []
        steps: list[Any] = []
        try:
            for step in row.steps:
                if isinstance(step, int):
                    recordings.append(self._recording(step))
                    steps.append(recordings[-1].launcher())
                else:
                    steps.append(self._call(step))
            outputs = decoded(row.outputs, self._output)
        except (CaptureError, *_MISREAD) as error:
            for recording in recordings:
                recording.release()
            known = isinstance(error, CaptureError)
            raise RefusedError(str(error) if known else "its steps are not what is written there") from None
        return EntryGraphs(tuple(steps), tuple(recordings), outputs)

    def _recording(self, number: int) -> RestoredRecording:
        about = self.saved.header.graphs[number]
        for kernel in about.kernels:
            if kernel in self.missing:
                raise RefusedError(self.missing[kernel])
        return RestoredRecording(self.builder.take(number), about.num_nodes, self.pool, self.device)

    def _call(self, step: Any) -> MarkedCall:
        run = self.operations.get(step["operation"])
        if run is None:
            raise RefusedError(f"the operation {step['operation']} is not registered")
        args, kwargs = decoded(step["args"], self._placed), decoded(step["kwargs"], self._placed)
        return MarkedCall(run, tuple(args), dict(kwargs))

    def _placed(self, data: Any) -> torch.Tensor:
        number, offset, kind, shape, strides = data
        if number in self.absent:
            raise RefusedError(self.absent[number])
        region, dtype = self.regions[number], getattr(torch, kind)
        last = sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
        num_bytes = (last + 1) * dtype.itemsize
        is_within = offset >= 0 and offset + num_bytes <= region.num_bytes
        if not is_within or offset % dtype.itemsize or min((*shape, *strides), default=1) < 0:
            raise RefusedError(f"{region.name}: a tensor beyond its end")
        return tensor_at(region.start + offset, num_bytes, dtype, self.pool.device, shape, strides)

    def _output(self, data: Any) -> torch.Tensor:
        index, rows = data
        buffer: torch.Tensor = self.outputs[index]
        if rows is not None and not 0 <= rows <= len(buffer):
            raise RefusedError(f"output.{index}: {rows} rows of {len(buffer)}")
        return buffer if rows is None else buffer[:rows]
