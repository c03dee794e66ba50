"""Recording on a CPU: a tape of ATen calls on fixed storages.

At replay the recorded calls run again on the addresses that they were recorded with and the model's
Python does not run, so that a value that was baked in at capture goes stale here as it would on a
GPU. Results lie in an arena that all recordings of a pool share from its first byte on: one that is
read after another recording was replayed has been overwritten, again as on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from attrs import define, field, frozen
from torch.utils._python_dispatch import TorchDispatchMode

from executor.backends.base import Backend, Digests, GraphPool, MemoryBudgetError, Recorder, Recording
from executor.backends.collectives import carry_out, is_collective, pending
from executor.errors import CaptureError, ReplayError
from executor.trees import tensors_of

ALIGNMENT = 64
CHUNK_BYTES = 1 << 20

_UNWRITTEN = frozenset(
    {
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.empty_strided.default,
        torch.ops.aten.empty_like.default,
        torch.ops.aten.new_empty.default,
        torch.ops.aten.new_empty_strided.default,
    }
)
"""Calls whose result has no contents yet: there is nothing to run again."""

_LIFTING = frozenset({torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default})

_INDEXING = frozenset(
    {
        torch.ops.aten.index.Tensor,
        torch.ops.aten.index_put.default,
        torch.ops.aten.index_put_.default,
        torch.ops.aten._index_put_impl_.default,
    }
)


class TapePool(GraphPool):
    """An arena of chunks; a recording takes its memory from the first chunk on."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.device = torch.device("cpu")
        self.limit_bytes = limit_bytes
        self._chunks: list[torch.Tensor] = []
        self._chunk = 0
        self._offset = 0
        self.allowed_bytes: int | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of all chunks."""
        return sum(chunk.numel() for chunk in self._chunks)

    def rewind(self) -> None:
        """From here on, memory is handed out anew."""
        self._chunk = self._offset = 0

    def take(self, like: torch.Tensor) -> torch.Tensor:
        """Memory of the arena in the shape, strides and type of ``like``.

        Raises:
            MemoryBudgetError: the arena may not grow that far.
            OutOfMemoryError: the arena is at its limit.
        """
        if not like.numel():
            return like.clone()
        strides = _writable_strides(like)
        num_elements = 1 + sum((size - 1) * step for size, step in zip(like.shape, strides, strict=True))
        num_bytes = num_elements * like.element_size()
        chunk = self._room_for(num_bytes)
        raw = chunk[self._offset : self._offset + num_bytes]
        self._offset += -(-num_bytes // ALIGNMENT) * ALIGNMENT
        return raw.view(like.dtype).as_strided(like.shape, strides)

    def _room_for(self, num_bytes: int) -> torch.Tensor:
        while self._chunk < len(self._chunks):
            if self._offset + num_bytes <= self._chunks[self._chunk].numel():
                return self._chunks[self._chunk]
            self._chunk, self._offset = self._chunk + 1, 0
        size = -(-max(num_bytes, CHUNK_BYTES) // ALIGNMENT) * ALIGNMENT
        if self.allowed_bytes is not None and size > self.allowed_bytes:
            raise MemoryBudgetError(f"needs {size} bytes more, the budget leaves {self.allowed_bytes}")
        if self.limit_bytes is not None and self.num_bytes + size > self.limit_bytes:
            raise torch.OutOfMemoryError(f"the arena is limited to {self.limit_bytes} bytes")
        if self.allowed_bytes is not None:
            self.allowed_bytes -= size
        self._chunks.append(torch.empty(size, dtype=torch.uint8))
        return self._chunks[-1]


def _writable_strides(like: torch.Tensor) -> tuple[int, ...]:
    """The strides of ``like``, or contiguous ones where elements of it share their memory."""
    if all(step > 0 or size == 1 for size, step in zip(like.shape, like.stride(), strict=True)):
        return like.stride()
    return torch.empty(like.shape, device="meta").stride()


@frozen(eq=False)
class _Call:
    """One ATen call: ``results`` are the fixed storages of what it returns anew."""

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[tuple[int, torch.Tensor], ...]

    def run(self) -> None:
        if is_collective(self.function):
            carry_out(self.function, self.args, self.kwargs)
            return
        output = self.function(*self.args, **self.kwargs)
        if self.results:
            found = output if isinstance(output, tuple | list) else (output,)
            for index, result in self.results:
                result.copy_(found[index])


class _TapeMode(TorchDispatchMode):
    """Writes down every ATen call and moves its results into the arena."""

    def __init__(self, pool: TapePool) -> None:
        super().__init__()
        self.pool = pool
        self.calls: list[_Call] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(_takes_calls(kind) for kind in types):
            return NotImplemented  # its own calls come here next, such as those on one rank's part of it
        if is_collective(func):
            self.calls.append(_Call(func, tuple(args), kwargs, ()))
            return pending(func, args)
        _refuse(func, args, kwargs)
        output = func(*args, **kwargs)
        if func.is_view:
            return output
        known = {_storage(tensor) for tensor in tensors_of((args, dict(kwargs)))}
        results: list[tuple[int, torch.Tensor]] = []
        placed = [self._place(index, item, known, results) for index, item in enumerate(_items(output))]
        if func not in _UNWRITTEN:
            self.calls.append(_Call(func, tuple(args), kwargs, tuple(results)))
        if isinstance(output, tuple | list):
            return type(output)(placed)
        return placed[0]

    def _place(self, index: int, item: Any, known: set[int], results: list[tuple[int, torch.Tensor]]) -> Any:
        if not isinstance(item, torch.Tensor) or _storage(item) in known:
            return item
        fixed = self.pool.take(item)
        fixed.copy_(item)
        results.append((index, fixed))
        return fixed


def _takes_calls(kind: Any) -> bool:
    """Whether tensors of a class carry out calls themselves, as those do that lie on several ranks."""
    return kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def _items(output: Any) -> Sequence[Any]:
    return output if isinstance(output, tuple | list) else (output,)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _refuse(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuses what no CUDA graph can hold: the CPU backend is as strict as a GPU.

    Raises:
        CaptureError: the call needs a value or a shape that is known at replay only, or makes a tensor
            of Python's values.
    """
    name = str(func)
    if func in _LIFTING:
        if args[0].dim() == 0:
            return  # a number that stays on the host, as a graph's kernels take it
        raise CaptureError(
            "torch.tensor(...) of Python values copies from the host, which no graph can hold; "
            "make the tensor ahead of the capture"
        )
    if func in _INDEXING:
        indices = args[1] if len(args) > 1 else kwargs.get("indices", ())
        masks = [
            index
            for index in indices
            if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
        ]
        is_fill = len(args) > 2 and isinstance(args[2], torch.Tensor) and args[2].numel() == 1
        if masks and not is_fill:
            raise CaptureError(f"{name} with a mask has a shape that depends on data; use torch.where")
        return
    if func is torch.ops.aten.repeat_interleave.Tensor and kwargs.get("output_size") is not None:
        return
    if torch.Tag.data_dependent_output in func.tags:
        raise CaptureError(f"{name} reads a value back to the host, which no graph can hold")
    if torch.Tag.dynamic_output_shape in func.tags:
        raise CaptureError(f"{name} has a shape that depends on data; use an operation of fixed shape")


@define(eq=False)
class TapeRecording(Recording):
    """Recorded calls. ``None`` once released."""

    calls: tuple[_Call, ...] | None

    @property
    def num_nodes(self) -> int:
        """Recorded calls; views are not among them."""
        return len(self.calls or ())

    def replay(self) -> None:
        """Runs the calls on their storages."""
        if self.calls is None:
            raise ReplayError("the graph was released; capture it again")
        with torch.no_grad():
            for call in self.calls:
                call.run()

    def launcher(self) -> Callable[[], None]:
        """``replay`` itself."""
        return self.replay

    def digests(self) -> Digests:
        """Over the calls' names, and over their shapes, types, scalars and which results they read."""
        calls = self.calls or ()
        return Digests.of((str(call.function) for call in calls), _lines(calls))

    def kernel_names(self) -> frozenset[str]:
        """Names of the calls."""
        return frozenset(str(call.function) for call in self.calls or ())

    def release(self) -> None:
        """Drops the calls."""
        self.calls = None


def _lines(calls: Sequence[_Call]) -> Iterator[str]:
    made: dict[int, int] = {}

    def shown(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            origin = made.get(_data(value), "outside")
            return f"{value.dtype}{tuple(value.shape)}{tuple(value.stride())}<{origin}>"
        if isinstance(value, tuple | list):
            return [shown(item) for item in value]
        return type(value) if isinstance(value, torch.ScriptObject) else value

    for number, call in enumerate(calls):
        yield f"{call.function} {shown(call.args)} {[(key, shown(call.kwargs[key])) for key in call.kwargs]}"
        made.update((_data(result), number) for _, result in call.results)


def _data(tensor: torch.Tensor) -> int:
    return tensor.data_ptr()


@define(eq=False)
class TapeRecorder(Recorder):
    """Records the calls of this thread while its mode is on."""

    pool: TapePool
    mode: _TapeMode = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.mode = _TapeMode(self.pool)

    def begin(self) -> None:
        """Turns the mode on."""
        self.mode.__enter__()

    def end(self) -> TapeRecording:
        """Turns the mode off; what it wrote down is the recording."""
        self.mode.__exit__(None, None, None)
        return TapeRecording(tuple(self.mode.calls))

    def abort(self) -> None:
        """Turns the mode off and forgets."""
        self.mode.__exit__(None, None, None)
        self.mode.calls.clear()


class TapeBackend(Backend):
    """Recording on the CPU."""

    name = "tape"
    device = torch.device("cpu")

    def new_pool(self) -> TapePool:
        """An empty arena."""
        return TapePool()

    def session(self) -> AbstractContextManager[None]:
        """Nothing is needed around recordings."""
        return _nothing()

    def begin_entry(self, pool: GraphPool, allowed_bytes: int | None) -> None:
        """Hands the arena out anew."""
        arena = _arena(pool)
        arena.allowed_bytes = allowed_bytes
        arena.rewind()

    def recorder(self, pool: GraphPool) -> TapeRecorder:
        """A recorder whose results lie in ``pool``."""
        return TapeRecorder(_arena(pool))

    def used_bytes(self, pool: GraphPool) -> int:
        """Bytes of the arena."""
        return pool.num_bytes

    def detached(self, tree: Any, pool: GraphPool) -> Any:  # noqa: ARG002 - the arena is never given back
        """``tree`` itself, as the arena stays."""
        return tree

    def synchronize(self) -> None:
        """A CPU has nothing pending."""


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _arena(pool: GraphPool) -> TapePool:
    if not isinstance(pool, TapePool):
        raise CaptureError("the pool belongs to another device; share pools among managers of one device")
    return pool
