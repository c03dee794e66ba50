"""Checks forwards: one warm-up call, then calls that are looked at and compared."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import evolve

from executor.capture_loop import CreateForward
from executor.check.memory import Memory, address_of
from executor.check.modes import observed
from executor.check.observer import WARM_UP, Observer
from executor.check.places import Places
from executor.check.report import CaptureFault, CheckReport, Code, fault, merged
from executor.check.trace import differences
from executor.errors import InputError
from planner.describe import label
from planner.descriptors import PlanEntry
from planner.modes import CUDAGraphMode

Forward = Callable[[], Any]


def check_forward(
    forward: Forward,
    *,
    root: Path | None = None,
    repeats: int = 2,
    static: Mapping[str, torch.Tensor] | None = None,
) -> CheckReport:
    """What would break or poison a CUDA graph of ``forward``, found on the CPU.

    ``forward`` runs once to warm up, which may do anything, and ``repeats`` times more under the eyes
    of the check; a fault does not end it. Tensors that exist already stand for tensors of the device,
    and so does any that is made with an explicit ``device=``. Code beneath ``root`` is preferred as
    the place of a fault, and told relative to it. ``static`` names tensors that must keep their
    address; where the forward returns a mapping, its value under such a name must be that tensor.

    Raises:
        InputError: ``repeats`` is less than 2, so that nothing could be compared.
    """
    if repeats < 2:
        raise InputError(f"repeats: {repeats} calls cannot be compared; use 2 or more")
    observer = _observer(root)
    findings, length = _checked(observer, forward, lambda: forward, repeats, static or {}, pieces=False)
    return CheckReport(findings=merged(findings), num_operations=length)


def check_factory(
    create_forward_fn: CreateForward,
    entries: Iterable[PlanEntry],
    *,
    root: Path | None = None,
) -> CheckReport:
    """What would break or poison the capture of ``entries``, through a manager's factory.

    Each entry's forward is made and run as the manager does: afresh for the warm-up and for the
    capture, without autograd, PIECEWISE entries with their marked operations outside of the graph. The
    same place is told once, with the entries that it concerns.
    """
    findings: list[CaptureFault] = []
    longest = 0
    with torch.no_grad():
        for entry in entries:
            found, length = _checked_entry(_observer(root), create_forward_fn, entry)
            findings += [evolve(each, entries=(label(entry),)) for each in found]
            longest = max(longest, length)
    return CheckReport(findings=merged(findings), num_operations=longest)


def _checked_entry(
    observer: Observer, create: CreateForward, entry: PlanEntry
) -> tuple[list[CaptureFault], int]:
    is_pieces = entry.mode is CUDAGraphMode.PIECEWISE
    mode = CUDAGraphMode.PIECEWISE if is_pieces else CUDAGraphMode.NONE

    def made(warm_up: bool, mode: CUDAGraphMode) -> Forward:
        forward = create(entry.execution_descriptor, warm_up)
        return lambda: forward(mode)

    warm_up = made(True, CUDAGraphMode.NONE)
    return _checked(observer, warm_up, lambda: made(False, mode), 2, {}, pieces=is_pieces)


def _observer(root: Path | None) -> Observer:
    return Observer(Places(root), called.__code__)


def called(forward: Forward) -> Any:
    """Calls ``forward``. Frames outside of this call are none of the model's."""
    return forward()


def _checked(
    observer: Observer,
    warm_up: Forward,
    create: Callable[[], Forward],
    repeats: int,
    static: Mapping[str, torch.Tensor],
    *,
    pieces: bool,
) -> tuple[list[CaptureFault], int]:
    """The findings of one forward, and how many operations a call has."""
    found: list[CaptureFault] = []
    try:
        _run(observer, WARM_UP, warm_up, {}, pieces=False)
        # What is made between here and the first checked call is not seen: it may lie anywhere.
        observer.memory = Memory()
        forward = create()
        for run in range(1, repeats + 1):
            before = observer.operations
            _run(observer, run, forward, static, pieces=pieces)
            if run > 1:
                names = {tensor.data_ptr(): name for name, tensor in static.items()}
                found += [fault(*each) for each in differences(before, observer.operations, names)]
    except Exception as error:  # noqa: BLE001 - the forward is anyone's code; what it raises is a finding
        place = observer.places.of_error(error, called.__code__)
        detail = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        observer.run = max(observer.run, WARM_UP + 1)
        found.append(fault(Code.RAISES, detail, place))
    seen = [fault(*each) for each in observer.findings()]
    return seen + _kept(observer, seen) + found, len(observer.operations)


def _run(
    observer: Observer, run: int, forward: Forward, static: Mapping[str, torch.Tensor], *, pieces: bool
) -> None:
    addresses = {name: address_of(tensor) for name, tensor in static.items()}
    observer.begin(run)
    try:
        with observed(observer, pieces=pieces):
            output = called(forward)
        for code, detail, place in _moved(observer, forward, output, static, addresses):
            observer.fault(code, detail, place)
    finally:
        observer.end()


def _moved(
    observer: Observer,
    forward: Forward,
    output: Any,
    static: Mapping[str, torch.Tensor],
    addresses: Mapping[str, int],
) -> Iterator[tuple[Code, str, Any]]:
    """Static tensors that the call moved, and results that should lie in one and do not."""
    for name, tensor in static.items():
        if address_of(tensor) != addresses[name]:
            yield Code.MOVED_TENSOR, f"{name} after the call", observer.places.of_function(forward)
    if not isinstance(output, Mapping):
        return
    for name in static.keys() & output.keys():
        result = output[name]
        if isinstance(result, torch.Tensor) and address_of(result) != address_of(static[name]):
            birth = observer.memory.born(result)
            place = birth.place if birth else observer.places.of_function(forward)
            yield Code.MOVED_OUTPUT, name, place


def _kept(observer: Observer, seen: Iterable[CaptureFault]) -> list[CaptureFault]:
    """What the last call made and did not let go of, beside what was told as read by the next call."""
    if observer.memory.kept():
        gc.collect()
    told = {(each.file, each.line) for each in seen if each.code == Code.REBOUND_TENSOR.code}
    births = {birth.place: birth for birth in observer.memory.kept()}
    return [
        fault(Code.KEPT_TENSOR, birth.what, place)
        for place, birth in births.items()
        if (place.file, place.line) not in told
    ]
