"""Saving the graphs of a captured family, so that another process rebuilds them.

Every entry is recorded once more with the pool at another address, which tells addresses from numbers.
What speaks against rebuilding an entry is kept in its place: it is captured wherever the file is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from attrs import define, evolve, field, frozen

from executor.backends.base import GraphPool, Recording
from executor.calls import AtenCall
from executor.capture_loop import reason_of
from executor.errors import CaptureError
from executor.manager import CudaGraphManager
from executor.materialize.device import GraphDevice
from executor.materialize.driver import GraphDriver
from executor.materialize.gaps import MarkedGaps
from executor.materialize.recipes import Bench, FromCall, FromEntry, recipes_from_calls, recipes_from_entries
from executor.materialize.regions import AddressMap, registered_regions
from executor.materialize.relocation import (
    ExchangedError,
    NotRestorableError,
    Places,
    Relocation,
    relocated,
)
from executor.materialize.saved import (
    SavedEntry,
    SavedGraph,
    SavedHeader,
    SavedKernel,
    SavedRegion,
    block_of,
    packed,
)
from executor.materialize.tree_data import encoded
from executor.materialize.words import nodes_of
from executor.pieces import EntryGraphs, MarkedCall
from planner.descriptors import PlanEntry
from planner.documents.data import entry_data

ATTEMPTS = 4
"""How often an entry is recorded twice until its recordings agree."""


@frozen(kw_only=True)
class Saving:
    """A file with the graphs of a family, and why entries are not in it."""

    content: bytes
    num_entries: int
    obstacles: Mapping[PlanEntry, str]


def save(
    manager: CudaGraphManager,
    static: Mapping[str, torch.Tensor],
    device: GraphDevice,
    about: Mapping[str, str],
    calls: Sequence[AtenCall] = (),
) -> Saving:
    """The graphs that ``manager`` captured, as a file; ``static`` are all tensors that they may name.

    ``calls`` are the ATen calls of the forwards, among which the kernels are looked for.

    While this runs, the pool's memory and the graphs are there twice.

    Raises:
        CaptureError: nothing is captured.
    """
    if not manager.captured_entries:
        raise CaptureError(f"{manager.family}: no graphs to save; capture them first")
    return _Save(manager=manager, device=device, static=static, noted=calls).run(about)


@define(kw_only=True)
class _Save:
    manager: CudaGraphManager
    device: GraphDevice
    static: Mapping[str, torch.Tensor]
    noted: Sequence[AtenCall]
    graphs: dict[tuple[int, int], Relocation] = field(factory=dict)
    twins: list[EntryGraphs] = field(factory=list)
    failures: dict[PlanEntry, str] = field(factory=dict)
    suspects: dict[tuple[int, int], torch.Tensor] = field(factory=dict)

    def run(self, about: Mapping[str, str]) -> Saving:
        entries = self.manager.captured_entries
        twin = self.device.backend.new_pool()
        try:
            with torch.no_grad(), self.device.backend.session():
                recorded = [(entry, self._again(entry, twin)) for entry in entries]
                places = self._places(twin)
                saved = [self._entry(number, *pair, places, twin) for number, pair in enumerate(recorded)]
                functions = {key: _functions(graph.words) for key, graph in self.graphs.items()}
                calls, kernels = self._kernels(places, functions)
        finally:
            for graphs in self.twins:
                graphs.release()
        return self._file(about, places, calls, kernels, functions, saved)

    # Recording

    def _again(self, entry: PlanEntry, pool: GraphPool) -> EntryGraphs | None:
        """Records an entry once more; None where that fails, for the reason in ``failures``."""
        try:
            graphs = self.manager.record_twin(entry, pool)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever cannot be recorded costs its entry, not the file
            self.failures[entry] = f"it could not be recorded once more: {reason_of(error)}"
            return None
        self.twins.append(graphs)
        return graphs

    def _places(self, twin: GraphPool) -> Places:
        workspaces = self.device.workspaces()
        static = registered_regions(self.static, self.manager.output_buffers, workspaces)
        first, second = self.device.pool_regions(self.manager.pool), self.device.pool_regions(twin)
        known = {region.start for region in (*first, *second, *workspaces)}
        held = self.device.held_regions()
        return Places(
            first=AddressMap((*static, *first)),
            second=AddressMap((*static, *second)),
            num_static=len(static),
            foreign=AddressMap(tuple(region for region in held if region.start not in known)),
            owner_of=self.device.driver.owner_of,
        )

    # Entries

    def _entry(
        self, number: int, entry: PlanEntry, twin: EntryGraphs | None, places: Places, twin_pool: GraphPool
    ) -> SavedEntry:
        pair = None if twin is None else (self.manager.graphs_of(entry), twin)
        why = self.failures.get(entry, "")
        for _ in range(ATTEMPTS):
            if pair is None:
                break
            try:
                return self._saved(number, entry, *pair, places)
            except (NotRestorableError, TypeError, ValueError) as error:
                why = str(error)
                self.graphs = {key: graph for key, graph in self.graphs.items() if key[0] != number}
            pair = self._back_to_back(entry, twin_pool)
        return SavedEntry(fields=entry_data(entry), obstacle=why)

    def _saved(
        self, number: int, entry: PlanEntry, own: EntryGraphs, twin: EntryGraphs, places: Places
    ) -> SavedEntry:
        if len(own.recordings) != len(twin.recordings):
            raise NotRestorableError("recorded twice, the entry was cut into other pieces")
        for index, pair in enumerate(zip(own.recordings, twin.recordings, strict=True)):
            self.graphs[number, index] = self._graph((number, index), *pair, places)
        return SavedEntry(
            fields=entry_data(entry),
            steps=[self._step(part, places) for part in own.parts()],
            outputs=encoded(own.outputs, self._output),
        )

    def _back_to_back(self, entry: PlanEntry, twin_pool: GraphPool) -> tuple[EntryGraphs, EntryGraphs] | None:
        """The entry recorded into both pools with marked gaps; None if that is not what was captured.

        Neither may the pools grow by it, nor may it launch other kernels than it did without the marks.
        """
        pools = self.manager.pool, twin_pool
        before = [self.device.pool_regions(pool) for pool in pools]
        with MarkedGaps(self.device.driver.mark_stack):
            own, twin = (self._again(entry, pool) for pool in pools)
        if own is None or twin is None or before != [self.device.pool_regions(pool) for pool in pools]:
            return None
        captured = self._kernels_of(self.manager.graphs_of(entry))  # none of a graph that was restored
        return (own, twin) if captured in ([], self._kernels_of(own)) else None

    def _kernels_of(self, graphs: EntryGraphs) -> list[list[int | None]]:
        handles = [self.device.graph_of(recording) for recording in graphs.recordings]
        return [_functions(self.device.driver.read(handle)) for handle in handles if handle is not None]

    def _graph(self, key: tuple[int, int], own: Recording, twin: Recording, places: Places) -> Relocation:
        driver = self.device.driver
        graphs = [self.device.graph_of(own), self.device.graph_of(twin)]
        if graphs[0] is None or graphs[1] is None:
            raise NotRestorableError("it was restored itself; only what was captured here is saved")
        first, second = driver.read(graphs[0]), driver.read(graphs[1])
        try:
            return relocated(first, second, places, _Names(driver), self.suspects.get(key))
        except ExchangedError as error:
            self.suspects[key] = error.words
            raise

    def _step(self, part: Any, places: Places) -> Any:
        if not isinstance(part, MarkedCall):
            return None
        operation = getattr(part.operation, "__self__", None)

        def placed(tensor: torch.Tensor) -> list[Any]:
            address = torch.tensor([tensor.data_ptr()])
            region = int(places.first.find(address))
            if region < 0 or not tensor.numel():
                raise NotRestorableError(f"{getattr(operation, 'name', '')} is given a tensor of no region")
            offset = tensor.data_ptr() - places.first.regions[region].start
            kind = str(tensor.dtype).removeprefix("torch.")
            return [region, offset, kind, list(tensor.shape), list(tensor.stride())]

        return {
            "operation": getattr(operation, "name", ""),
            "args": encoded(part.args, placed),
            "kwargs": encoded(part.kwargs, placed),
        }

    def _output(self, tensor: torch.Tensor) -> list[Any]:
        for index, buffer in enumerate(self.manager.output_buffers):
            if tensor.data_ptr() == buffer.data_ptr() and tensor.shape[1:] == buffer.shape[1:]:
                return [index, tensor.shape[0] if tensor.dim() else None]
        raise NotRestorableError("an output lies in a buffer that was replaced by a longer one")

    # Kernels

    def _kernels(
        self, places: Places, functions: Mapping[tuple[int, int], Sequence[int | None]]
    ) -> tuple[list[AtenCall], dict[int, SavedKernel]]:
        used = sorted({each for row in functions.values() for each in row if each is not None})
        handles = {self.device.driver.functions[number]: number for number in used}
        regions = places.first.regions
        bench = Bench(device=self.device, pool=self.manager.pool, address=regions[-1].start if regions else 0)
        calls, by_call = recipes_from_calls(handles, self.noted, bench)
        lost = [number for handle, number in handles.items() if handle not in by_call]
        by_entry = recipes_from_entries(lost, functions)
        return calls, {
            number: self._kernel(handle, by_call.get(handle), by_entry.get(number))
            for handle, number in handles.items()
        }

    def _kernel(self, handle: int, call: FromCall | None, entry: FromEntry | None) -> SavedKernel:
        return SavedKernel(
            identity=self.device.driver.identity(handle),
            dynamic_shared=self.device.driver.dynamic_shared(handle),
            call=call,
            entry=entry,
        )

    # The file

    def _file(
        self,
        about: Mapping[str, str],
        places: Places,
        calls: Sequence[AtenCall],
        kernels: Mapping[int, SavedKernel],
        functions: Mapping[tuple[int, int], Sequence[int | None]],
        saved: Sequence[SavedEntry],
    ) -> Saving:
        numbers = {function: number for number, function in enumerate(kernels)}
        order = sorted(self.graphs)
        blocks, graphs = [], []
        loaders = {kernel.entry.entry for kernel in kernels.values() if kernel.entry is not None}
        for key in order:
            graph = _renumbered(self.graphs[key], numbers)
            if key[0] not in loaders:  # nobody compares it with a recording
                graph = evolve(graph, volatile=graph.volatile[:0])
            block = block_of(graph)
            blocks.append(block)
            graphs.append(
                SavedGraph(
                    num_words=len(graph.words),
                    num_addresses=len(graph.positions),
                    num_volatile=len(graph.volatile),
                    num_nodes=int(graph.words[0]),
                    num_bytes=len(block),
                    kernels=sorted({numbers[each] for each in functions[key] if each is not None}),
                )
            )
        place = {key: number for number, key in enumerate(order)}
        header = SavedHeader(
            about=about,
            regions=[
                SavedRegion(name=each.name, num_bytes=each.num_bytes, layout=each.layout)
                for each in places.first.regions
            ],
            num_static=places.num_static,
            kernels=list(kernels.values()),
            calls=[call.as_json() for call in calls],
            entries=[_with_graphs(entry, number, place) for number, entry in enumerate(saved)],
            graphs=graphs,
        )
        obstacles = {
            entry: row.obstacle
            for entry, row in zip(self.manager.captured_entries, saved, strict=True)
            if row.obstacle is not None
        }
        return Saving(content=packed(header, blocks), num_entries=len(saved), obstacles=obstacles)


class _Names(Sequence[str]):
    """Names of the driver's functions by number, asked for only when one is shown."""

    def __init__(self, driver: GraphDriver) -> None:
        self._driver = driver

    def __len__(self) -> int:
        return len(self._driver.functions)

    def __getitem__(self, number: Any) -> Any:
        return self._driver.identity(self._driver.functions[number]).name


def _functions(words: torch.Tensor) -> list[int | None]:
    return [node.function for node in nodes_of(words)]


def _renumbered(graph: Relocation, numbers: Mapping[int, int]) -> Relocation:
    """The graph with functions numbered as the file does."""
    words = graph.words.clone()
    for node in nodes_of(graph.words):
        if node.function is not None:
            words[node.start + 1] = numbers[node.function]
    return evolve(graph, words=words)


def _with_graphs(entry: SavedEntry, number: int, place: Mapping[tuple[int, int], int]) -> SavedEntry:
    """The entry with the numbers of its graphs in place of its recordings."""
    index, steps = 0, []
    for step in entry.steps:
        if step is None:
            steps.append(place[number, index])
            index += 1
        else:
            steps.append(step)
    return evolve(entry, steps=steps)
