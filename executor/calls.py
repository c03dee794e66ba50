"""ATen calls as data: noted while a forward runs, and made again on scratch tensors to load their kernels.

A GPU's kernels are loaded when they are first launched, one module at a time. A process that knows which
calls are coming loads them ahead, without running the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from math import prod
from typing import Any, TypeAlias

import torch
from attrs import frozen
from torch._ops import OpOverloadPacket
from torch.utils._python_dispatch import TorchDispatchMode

from executor.backends.base import Backend, GraphPool, backend_for
from executor.capture_loop import CreateForward
from executor.pieces import record_whole
from planner.descriptors import PlanEntry
from planner.modes import CUDAGraphMode

Json: TypeAlias = Any

MAX_CALLS = 20_000
"""Most calls that are noted or made again; a forward of many layers has some dozen distinct ones."""

MAX_RANK = 16
ALIGNMENT = 512
VECTOR = 16
"""Bytes that a kernel loads at once, at most."""

SCRATCH_BYTES = 1 << 34
"""Most memory that the tensors of one call may take."""

_TEXT_DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}
_ENUMS: Mapping[str, Mapping[str, Any]] = {
    "dtype": _TEXT_DTYPES,
    "layout": {"strided": torch.strided},
    "memory_format": {
        name: getattr(torch, name) for name in ("contiguous_format", "preserve_format", "channels_last")
    },
}
_FACTORIES = frozenset({"arange", "full", "ones", "zeros", "scalar_tensor"})
"""Calls that take no tensor and are made again all the same; others without one might touch files."""


@frozen
class AtenCall:
    """One call by name and overload; tensors among its arguments are shapes, strides and types."""

    name: str
    overload: str
    args: Json
    kwargs: Json

    def as_json(self) -> Json:
        """The call as JSON has it."""
        return [self.name, self.overload, self.args, self.kwargs]


class CallLog(TorchDispatchMode):
    """Notes each distinct ATen call that computes something; views and allocations are none."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[str, AtenCall] = {}

    @property
    def calls(self) -> tuple[AtenCall, ...]:
        """What was noted, in the order of first use."""
        return tuple(self._calls.values())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if not func.is_view and func.namespace == "aten" and len(self._calls) < MAX_CALLS:
            with suppress(TypeError):
                name, overload = str(func).removeprefix("aten.").split(".")
                named = {key: _written(value) for key, value in (kwargs or {}).items()}
                call = AtenCall(name, overload, _written(args), named)
                self._calls.setdefault(json.dumps(call.as_json()), call)
        return output


def _written(value: Any) -> Json:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        on_cpu = value.device.type == "cpu"
        # Kernels that load several elements at once are not chosen for memory that begins between them.
        offset = 0 if on_cpu or not value.numel() else value.data_ptr() % VECTOR
        written = [kind, list(value.shape), list(value.stride()), on_cpu]
        return {"tensor": [*written, offset] if offset else written}
    if isinstance(value, tuple | list):
        return [_written(item) for item in value]
    if isinstance(value, torch.device):
        return {"device": value.type == "cpu"}
    for kind, values in _ENUMS.items():
        for name, known in values.items():
            if value is known:
                return {kind: name}
    raise TypeError(f"a {type(value).__name__} is not written down")


def calls_from_json(data: Json) -> tuple[AtenCall, ...]:
    """The calls in ``data``, which may come from anywhere; what is none is left out."""
    return tuple(_calls(data)) if isinstance(data, list) else ()


def _calls(data: Sequence[Json]) -> Iterator[AtenCall]:
    for item in data[:MAX_CALLS]:
        if (
            isinstance(item, list)
            and len(item) == 4
            and isinstance(item[2], list)
            and isinstance(item[3], dict)
        ):
            name, overload, args, kwargs = item
            if isinstance(name, str) and isinstance(overload, str):
                yield AtenCall(name, overload, args, kwargs)


def noted(create_forward_fn: CreateForward, entries: Iterable[PlanEntry]) -> tuple[AtenCall, ...]:
    """The distinct calls of a warm-up forward of each of ``entries``, in the order of first use."""
    log = CallLog()
    with torch.no_grad():
        for entry in entries:
            forward = create_forward_fn(entry.execution_descriptor, True)
            with log:
                forward(CUDAGraphMode.NONE)
    return log.calls


def one_a_kernel(calls: Iterable[AtenCall], device: torch.device) -> tuple[AtenCall, ...]:
    """Those of ``calls`` that launch a kernel which none before launches; all where that is not known."""
    backend = backend_for(device)
    pool = backend.new_pool()
    scratch = Scratch(device)
    seen: set[str] = set()
    kept: list[AtenCall] = []
    with torch.no_grad(), _same_random_numbers(device), backend.session():
        for call in calls:
            if not make(call, scratch):
                continue
            kernels = _kernels_of(call, scratch, backend, pool)
            if kernels is None or not kernels <= seen:
                kept.append(call)
            seen |= kernels or frozenset()
    return tuple(kept)


def _kernels_of(call: AtenCall, scratch: Scratch, backend: Backend, pool: GraphPool) -> frozenset[str] | None:
    """The kernels of a call that could be made, recorded alone; None where they cannot be known."""
    scratch.rewind()
    function, args, kwargs = function_of(call), scratch.read(call.args), scratch.read_named(call.kwargs)

    def run() -> None:
        function(*args, **kwargs)

    try:
        graphs = record_whole(backend, pool, run)
    except Exception:  # noqa: BLE001 - what cannot be recorded is made all the same
        return None
    kernels = graphs.recordings[0].kernel_names()
    graphs.release()
    return kernels


@frozen
class Preloaded:
    """How many calls were made, and how many could not be: they load their kernels when they come."""

    made: int
    left_out: int


NOTHING = Preloaded(0, 0)
"""Nothing was loaded ahead."""


def preload(
    calls: Iterable[AtenCall], device: torch.device, *, limit_bytes: int = SCRATCH_BYTES
) -> Preloaded:
    """Makes ``calls`` on scratch tensors of ``device``, so that their kernels are loaded.

    Numbers in the scratch tensors are zeros, or ones where they are fractions; nothing else is touched,
    random generators included. Calls whose tensors need more than ``limit_bytes`` are left out.
    """
    made = left_out = 0
    scratch = Scratch(device, limit_bytes)
    with torch.no_grad(), _same_random_numbers(device):
        for call in calls:
            if make(call, scratch):
                made += 1
            else:
                left_out += 1
    return Preloaded(made, left_out)


def _same_random_numbers(device: torch.device) -> AbstractContextManager[None]:
    """Random generators are afterwards as they were before."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def make(call: AtenCall, scratch: Scratch) -> bool:
    """Makes a call on scratch tensors; whether it could be made."""
    function = function_of(call)
    if function is None:
        return False
    scratch.rewind()
    try:
        function(*scratch.read(call.args), **scratch.read_named(call.kwargs))
    except Exception:  # noqa: BLE001 - a call that this PyTorch does not take loads nothing, and harms nothing
        return False
    return True


def function_of(call: AtenCall) -> Any:
    """The ATen function of ``call``, unless it reads values back, or takes no tensor and may do anything."""
    packet = getattr(torch.ops.aten, call.name, None) if call.name.isidentifier() else None
    if not isinstance(packet, OpOverloadPacket) or call.overload not in packet.overloads():
        return None
    function = getattr(packet, call.overload)
    if torch.Tag.data_dependent_output in function.tags:
        return None
    takes_tensor = any("Tensor" in str(argument.type) for argument in function._schema.arguments)  # noqa: SLF001
    return function if takes_tensor or call.name in _FACTORIES else None


class Scratch:
    """Memory that one call after the other uses, filled with numbers that are safe to compute with."""

    def __init__(self, device: torch.device, limit_bytes: int = SCRATCH_BYTES) -> None:
        self.device = device
        self._limit = limit_bytes
        self._memory = torch.empty(0, dtype=torch.uint8, device=device)
        self._used = 0

    def rewind(self) -> None:
        """Begins the next call."""
        self._used = 0

    def read(self, value: Json) -> Any:
        """What ``_written`` wrote, over scratch memory.

        Raises:
            ValueError: it is nothing that ``_written`` writes, or larger than allowed.
        """
        if isinstance(value, list):
            return [self.read(item) for item in value]
        if not isinstance(value, dict):
            return value
        ((kind, of),) = value.items()
        if kind == "tensor":
            return self._tensor(*of)
        if kind == "device":
            return torch.device("cpu") if of else self.device
        return _ENUMS[kind][of]

    def read_named(self, values: Mapping[str, Json]) -> dict[str, Any]:
        """The same for arguments by name."""
        return {name: self.read(value) for name, value in values.items()}

    def _tensor(
        self, kind: str, shape: list[int], strides: list[int], on_cpu: bool, offset: int = 0
    ) -> torch.Tensor:
        dtype = _TEXT_DTYPES[kind]
        numbers = [*shape, *strides]
        if (
            len(shape) > MAX_RANK
            or len(shape) != len(strides)
            or any(type(n) is not int or n < 0 for n in numbers)
        ):
            raise ValueError("no shape")
        if on_cpu and self.device.type != "cpu":
            if prod(shape) > 1:
                raise ValueError("a tensor of the host")
            return torch.ones(shape, dtype=dtype)
        last = (
            sum((size - 1) * step for size, step in zip(shape, strides, strict=True)) if prod(shape) else -1
        )
        num_bytes = (1 + last) * dtype.itemsize
        if type(offset) is not int or not 0 <= offset < VECTOR or offset % dtype.itemsize:
            raise ValueError("no offset")
        begin = self._used + offset
        end = begin + num_bytes
        if end > self._limit:
            raise ValueError("larger than allowed")
        self._used = -(-end // ALIGNMENT) * ALIGNMENT
        return self.memory(begin, end, dtype).as_strided(shape, strides)

    def memory(self, begin: int, end: int, dtype: torch.dtype) -> torch.Tensor:
        """The bytes from ``begin`` to ``end`` of the scratch memory, as ``dtype``."""
        if end > self._memory.numel():
            # Tensors of this call keep the shorter memory alive.
            self._memory = torch.empty(
                max(end, 2 * self._memory.numel()), dtype=torch.uint8, device=self.device
            )
        flat = self._memory[begin:end].view(dtype)
        return flat.fill_(1 if dtype.is_floating_point else 0)
