"""Finding the kernels of saved graphs in this process, and proving that they are the same."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from attrs import define, field

from executor.backends.base import GraphPool
from executor.calls import calls_from_json
from executor.errors import CaptureError
from executor.materialize.building import RefusedError
from executor.materialize.device import GraphDevice
from executor.materialize.recipes import Bench
from executor.materialize.relocation import Relocation
from executor.materialize.saved import SavedEntry, SavedHeader, SavedKernel, key_of
from executor.materialize.words import nodes_of
from executor.pieces import EntryGraphs
from planner.descriptors import PlanEntry
from planner.documents.data import entry_data

NO_HANDLE = 0
"""Stands for a kernel that was not found; no graph is built with it."""

_NO_CALL = -1

CALLS_AT_ONCE = 16
"""Calls that are made between two pauses, at which graphs whose kernels are all known may be built."""


@define(kw_only=True)
class KernelSearch:
    """Looks for the kernels of ``header``.

    ``captured`` are the entries that were captured here for their kernels, ``graph`` unpacks a saved graph,
    ``starts`` are where the regions lie. ``functions`` has the handle of each kernel, as far as it was
    found, and ``missing`` a reason for each that was not.
    """

    header: SavedHeader
    device: GraphDevice
    pool: GraphPool
    address: int
    captured: Mapping[PlanEntry, EntryGraphs]
    graph: Callable[[int], Relocation]
    starts: torch.Tensor
    functions: list[int] = field(init=False)
    missing: dict[int, str] = field(factory=dict, init=False)
    _by_call: dict[int, Sequence[int | None]] = field(factory=dict, init=False)
    _by_entry: dict[tuple[int, int], list[int | None] | str] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.functions = [NO_HANDLE] * len(self.header.kernels)

    def steps(self) -> Iterator[Sequence[int]]:
        """Looks for all kernels, and pauses with the numbers of those that it has done with since."""
        by_chunk: dict[int, list[int]] = {}
        calls = calls_from_json(list(self.header.calls))
        for number, kernel in enumerate(self.header.kernels):
            call = _NO_CALL if kernel.call is None else kernel.call.call
            chunk = call // CALLS_AT_ONCE if 0 <= call < len(calls) else _NO_CALL
            by_chunk.setdefault(chunk, []).append(number)
        bench = Bench(device=self.device, pool=self.pool, address=self.address)
        for chunk, kernels in sorted(by_chunk.items()):
            start = chunk * CALLS_AT_ONCE
            if chunk != _NO_CALL:
                with suppress(CaptureError):  # what is not found is missing
                    functions = bench.functions_of_each(calls[start : start + CALLS_AT_ONCE])
                    self._by_call.update(enumerate(functions, start))
            for number in kernels:
                self._look_at(number)
            yield kernels

    def _look_at(self, number: int) -> None:
        kernel = self.header.kernels[number]
        try:
            self.functions[number] = self._proved(kernel, self._found(kernel))
        except CaptureError as error:
            self.missing[number] = f"kernel {kernel.identity.name}: {error}"

    def _found(self, kernel: SavedKernel) -> int | None:
        if kernel.call is not None:
            handle: int | None = item(self._by_call.get(kernel.call.call), kernel.call.node)
            return handle
        if kernel.entry is None:
            return None
        key = kernel.entry.entry, kernel.entry.graph
        if key not in self._by_entry:
            self._by_entry[key] = self._of_loader(*key)
        functions = self._by_entry[key]
        if isinstance(functions, str):
            raise RefusedError(functions)
        from_entry: int | None = item(functions, kernel.entry.node)
        return from_entry

    def _proved(self, kernel: SavedKernel, handle: int | None) -> int:
        driver = self.device.driver
        if handle is None:
            raise RefusedError("what launched it launches another kernel here")
        if driver.identity(handle) != kernel.identity:
            raise RefusedError("its parameters or its code are not those that were saved")
        if driver.dynamic_shared(handle) < kernel.dynamic_shared:
            driver.allow_shared(handle, kernel.dynamic_shared)
        return handle

    def _captured_as(self, row: SavedEntry) -> EntryGraphs | None:
        key = key_of(row.fields)
        return next(
            (graphs for entry, graphs in self.captured.items() if key_of(entry_data(entry)) == key), None
        )

    def _of_loader(self, number: int, graph: int) -> list[int | None] | str:
        """The functions of an entry that was captured here, or how its graph differs from the saved one."""
        row = item(self.header.entries, number)
        own = None if row is None else self._captured_as(row)
        recording = None if own is None else item(own.recordings, graph)
        handle = None if recording is None else self.device.graph_of(recording)
        place = None if row is None else item([step for step in row.steps if isinstance(step, int)], graph)
        if place is None or handle is None:
            return "the entry that it comes from could not be captured"
        fresh = self.device.driver.read(handle)
        wanted = {
            index
            for index, kernel in enumerate(self.header.kernels)
            if kernel.entry is not None and (kernel.entry.entry, kernel.entry.graph) == (number, graph)
        }
        try:
            difference = difference_of(self.graph(place), fresh, self.starts, self.header.num_static, wanted)
        except ValueError as error:
            return f"its entry's words are damaged: {error}"
        if difference:
            return difference
        known = self.device.driver.functions
        return [None if node.function is None else known[node.function] for node in nodes_of(fresh)]


def difference_of(
    saved: Relocation, fresh: torch.Tensor, starts: torch.Tensor, num_static: int, wanted: Collection[int]
) -> str | None:
    """How a graph that was captured here differs from the saved one, but for where its memory lies.

    Nodes, launches and the order of kernels have to be the same, and the parameters of the ``wanted``
    kernels. Addresses in the pool are not compared, as its memory is handed out in another order, nor are
    parameters of other kernels, which have gaps with whatever lay there.
    """
    here = saved.at(starts)
    if len(here) != len(fresh):
        return "its entry is recorded with other nodes here"
    compared = torch.ones(len(fresh), dtype=torch.bool)
    if _kernel_order(here, wanted, compared) != _kernel_order(fresh, (), compared):
        return "its entry is recorded with other kernels here"
    compared[saved.positions[saved.regions >= num_static]] = False
    compared[saved.volatile] = False
    return (
        "its entry is launched with other numbers here" if bool(((here != fresh) & compared).any()) else None
    )


def _kernel_order(words: torch.Tensor, wanted: Collection[int], compared: torch.Tensor) -> list[int]:
    """The kernels by the order of first use, whatever their numbers are.

    Unmarks in ``compared`` the numbers, and the parameters of kernels that are not ``wanted``, if any are.
    """
    seen: dict[int, int] = {}
    order = []
    for node in nodes_of(words):
        if node.function is not None:
            compared[node.start + 1] = False
            order.append(seen.setdefault(node.function, len(seen)))
        if wanted and node.function not in wanted:
            for start, end in node.payload:
                compared[start:end] = False
    return order


def item(items: Any, number: int) -> Any:
    """``items[number]``, None where there is none."""
    return items[number] if items is not None and 0 <= number < len(items) else None
