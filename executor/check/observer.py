"""What the check has seen so far, call by call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch
from attrs import define, field

from executor.check.memory import Birth, Memory, address_of
from executor.check.operations import draws, is_masked_fill, reads_host, waits_for_device
from executor.check.places import Place, Places
from executor.check.report import Code
from executor.check.trace import Operation, Read, form_of, leaves
from executor.trees import tensors_of

WARM_UP = 0
"""The call ahead of the capture: what it does is remembered and is no fault."""


@define(eq=False)
class Observer:
    """Takes down the operations and the faults of each call of a forward.

    ``outermost`` is the code of the function that calls the forward: frames outside of it do not
    count as places.
    """

    places: Places
    outermost: CodeType
    memory: Memory = field(factory=Memory)
    run: int = WARM_UP
    operations: list[Operation] = field(factory=list)
    busy: bool = False
    """Whether the check itself is at work: its own calls are none of the model's."""
    paused: bool = False
    """Whether what runs now is not part of any graph."""
    _allocations: int = 0
    autograd_seen: bool = False
    """Whether autograd was reported: once says it for the whole forward."""
    _quiet: int = 0
    _found: Counter[tuple[Code, Place]] = field(factory=Counter)
    _details: dict[tuple[Code, Place], str] = field(factory=dict)
    _counts: dict[tuple[Code, Place], int] = field(factory=dict)

    def begin(self, run: int) -> None:
        """The next call of the forward begins."""
        self.run = run
        self.operations = []
        self.memory.next_run()
        self._allocations = 0
        self.autograd_seen = False
        self._found = Counter()

    def end(self) -> None:
        """The call has ended."""
        for key, count in self._found.items():
            self._counts[key] = max(count, self._counts.get(key, 0))

    def findings(self) -> Iterator[tuple[Code, str, Place, int]]:
        """Each kind of fault at each place once, with how often one call does it."""
        for key, count in self._counts.items():
            yield key[0], self._details[key], key[1], count

    def here(self) -> Place:
        """The line of the model that runs now."""
        return self.places.here(self.outermost)

    def fault(self, code: Code, detail: str, place: Place | None = None) -> None:
        """Takes down a fault, at the line that runs now unless ``place`` is given."""
        if self._quiet or self.paused or self.run == WARM_UP:
            return
        key = code, place or self.here()
        self._details.setdefault(key, detail)
        self._found[key] += 1

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """What runs inside is no fault: it was reported as a whole, or a GPU does it otherwise."""
        self._quiet += 1
        try:
            yield
        finally:
            self._quiet -= 1

    @contextmanager
    def between_pieces(self) -> Iterator[None]:
        """What runs inside is not part of any graph."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    def operation(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        """Takes down one ATen operation that has just run."""
        tensors = list(tensors_of((tuple(args), dict(kwargs))))
        hosts = [tensor for tensor in tensors if self.memory.on_host(tensor)]
        only_host = bool(tensors) and len(hosts) == len(tensors)
        place = self.here()
        if func is torch.ops.aten.lift_fresh.default:
            self._births("a tensor of Python values", (), output, place, on_host=True)
            return
        if not self.paused and not only_host:
            self._judge(func, args, kwargs, [tensor for tensor in hosts if tensor.numel()], place)
            self._note(str(func), tensors, hosts, (args, kwargs), place)
        self._births(str(func), tensors, output, place, on_host=only_host)

    def marked_operation(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Takes down an operation that runs between two pieces, with arguments that stay as they are."""
        tensors = list(tensors_of((tuple(args), dict(kwargs))))
        self._note(name, tensors, (), (args, kwargs), self.here())

    def place_on(self, tensor: torch.Tensor, what: str, *, host: bool) -> None:
        """The memory of ``tensor`` is new and lies on the host, or on the device."""
        self.memory.add(tensor, Birth(self.run, self._next(), self.here(), what, host))

    def _judge(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        hosts: Sequence[torch.Tensor],
        place: Place,
    ) -> None:
        waits = waits_for_device(func, args, kwargs)
        if is_masked_fill(func, args, kwargs) and any(tensor is args[2] for tensor in hosts):
            hosts, waits = [tensor for tensor in hosts if tensor is not args[2]], None
        for problem in (waits, reads_host(func, args, hosts), draws(func, args, kwargs)):
            if problem:
                self.fault(*problem, place)

    def _note(
        self,
        name: str,
        tensors: Sequence[torch.Tensor],
        hosts: Sequence[torch.Tensor],
        arguments: Any,
        place: Place,
    ) -> None:
        reads = tuple(self._read(tensor) for tensor in tensors)
        values = [leaf for leaf in leaves(arguments) if not isinstance(leaf, torch.Tensor)]
        values += [tensor.item() for tensor in hosts if tensor.dim() == 0]
        self.operations.append(Operation(name, place, reads, tuple(values)))

    def _read(self, tensor: torch.Tensor) -> Read:
        birth = self.memory.born(tensor)
        if birth is not None and birth.run == self.run:
            return Read(form_of(tensor), birth.number, 0, is_derived=True)
        is_derived = self.memory.is_view(tensor)
        if birth is not None and birth.run > WARM_UP and not birth.on_host:
            self.fault(Code.REBOUND_TENSOR, birth.what, birth.place)
            return Read(form_of(tensor), None, 0, is_derived)
        return Read(form_of(tensor), None, address_of(tensor) and tensor.data_ptr(), is_derived)

    def _births(
        self, what: str, tensors: Sequence[torch.Tensor], output: Any, place: Place, *, on_host: bool
    ) -> None:
        known = {address_of(tensor) for tensor in tensors}
        for tensor in tensors_of(output):
            if address_of(tensor) not in known:
                self.memory.add(tensor, Birth(self.run, self._next(), place, what, on_host))
            elif not any(tensor is each for each in tensors):
                self.memory.add_view(tensor)
            self.memory.watch(tensor)

    def _next(self) -> int:
        self._allocations += 1
        return self._allocations
