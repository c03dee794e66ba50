"""Recipes: how another process comes by the kernels of a graph.

A handle of a kernel holds in one process only. Most kernels are launched by one ATen call that can be
made again on memory that nobody reads, inside a recording that is thrown away. Kernels without such a
call are taken from an entry that is really captured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from attrs import frozen

from executor.backends.base import GraphPool
from executor.backends.cuda_memory import tensor_at
from executor.calls import AtenCall, Scratch, make
from executor.materialize.device import GraphDevice
from executor.materialize.words import nodes_of

CHUNK = 256
"""Calls that are recorded together; where one of them spoils a recording, each is tried alone."""


@frozen
class FromCall:
    """The kernel is that of node ``node`` among the nodes that call ``call`` records."""

    call: int
    node: int


@frozen
class FromEntry:
    """The kernel is that of node ``node`` of graph ``graph`` of entry ``entry``, once that is captured."""

    entry: int
    graph: int
    node: int


Recipe = FromCall | FromEntry


class Unread(Scratch):
    """Tensors over memory that is never touched: what is recorded and thrown away never runs."""

    def __init__(self, device: torch.device, address: int) -> None:
        super().__init__(device)
        self._address = address

    def memory(self, begin: int, end: int, dtype: torch.dtype) -> torch.Tensor:
        """The bytes from ``begin`` to ``end``, wherever they lie."""
        count = (end - begin) // dtype.itemsize
        return tensor_at(self._address + begin, end - begin, dtype, self.device, (count,), (1,))


@frozen(kw_only=True)
class Bench:
    """What calls are recorded on: ``address`` is where their tensors are said to lie."""

    device: GraphDevice
    pool: GraphPool
    address: int

    def functions_of(self, calls: Sequence[AtenCall]) -> list[list[int | None]] | None:
        """The function of each node that each call records; None for nodes of another kind.

        None for all where one of the calls cannot be recorded.
        """
        scratch = Unread(self.pool.device, self.address)
        driver, stream = self.device.driver, self.device.stream
        recorder = self.device.backend.recorder(self.pool)
        ends = []
        recorder.begin()
        try:
            for call in calls:
                make(call, scratch)
                ends.append(driver.num_captured(stream))
            recording = recorder.end()
        except Exception:  # noqa: BLE001 - whatever it is, these calls cannot be had together
            recorder.abort()
            return None
        graph = self.device.graph_of(recording)
        try:
            words = None if graph is None else driver.read(graph)
        finally:
            recording.release()
        if words is None:
            return None
        functions = [node.function for node in nodes_of(words)]
        if ends and len(functions) != ends[-1]:
            return None
        starts = [0, *ends[:-1]] if ends else []
        return [
            [None if each is None else driver.functions[each] for each in functions[start:end]]
            for start, end in zip(starts, ends, strict=True)
        ]

    def functions_of_each(self, calls: Sequence[AtenCall]) -> list[list[int | None]]:
        """The same for calls of which some may spoil a recording; they have no functions."""
        found: list[list[int | None]] = []
        for start in range(0, len(calls), CHUNK):
            chunk = calls[start : start + CHUNK]
            together = self.functions_of(chunk)
            found += together if together is not None else [self._alone(call) for call in chunk]
        return found

    def _alone(self, call: AtenCall) -> list[int | None]:
        found = self.functions_of([call])
        return [] if found is None else found[0]


def recipes_from_calls(
    wanted: Iterable[int], calls: Sequence[AtenCall], bench: Bench
) -> tuple[list[AtenCall], dict[int, FromCall]]:
    """The calls that are needed for as many functions in ``wanted`` as can be, and which gives which.

    The calls are recorded once more by themselves, as the other process will, to prove them.
    """
    missing = set(wanted)
    kept = []
    for call, functions in zip(calls, bench.functions_of_each(calls), strict=True):
        gives = missing.intersection(each for each in functions if each is not None)
        if gives:
            kept.append(call)
            missing -= gives
    proved = bench.functions_of(kept) or []
    found: dict[int, FromCall] = {}
    needed = set(wanted)
    for number, functions in enumerate(proved):
        for node, function in enumerate(functions):
            if function in needed and function is not None:
                found.setdefault(function, FromCall(number, node))
    return kept, found


def recipes_from_entries(
    wanted: Iterable[int], graphs: Mapping[tuple[int, int], Sequence[int | None]]
) -> dict[int, FromEntry]:
    """For each function in ``wanted`` an entry that has it, with few entries in all.

    ``graphs`` has the function of each node by entry and graph.
    """
    missing, found = set(wanted), {}
    while missing:
        gains: dict[int, set[int]] = {}
        for (entry, _), functions in graphs.items():
            gains.setdefault(entry, set()).update(
                each for each in functions if each is not None and each in missing
            )
        best = max(gains, key=lambda entry: len(gains[entry]), default=None)
        if best is None or not gains[best]:
            break
        for (entry, graph), functions in graphs.items():
            for node, function in enumerate(functions):
                if entry == best and function is not None and function in missing:
                    found[function] = FromEntry(entry, graph, node)
                    missing.discard(function)
    return found
