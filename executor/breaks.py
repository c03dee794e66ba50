"""Marked operations: where a forward is cut into pieces without a compiler.

In a PIECEWISE recording one piece ends ahead of a marked operation and the next begins behind it; at
replay the operation itself runs eagerly between the two, on the same tensors. Everywhere else it is a
plain call. The idea of breaking at run time is that of vLLM's breakable CUDA graphs.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, Protocol

from attrs import define

from executor.errors import CaptureError

P = ParamSpec("P")


class Breaker(Protocol):
    """Who is told that a marked operation would run: a recording of pieces."""

    def break_at(self, operation: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Ends the piece, keeps the call for replays, and begins the next piece."""


class _Recording:
    """The one recording of pieces that a process may have, and the thread that it runs on."""

    def __init__(self) -> None:
        self.breaker: Breaker | None = None
        self.thread = 0
        self.lock = threading.Lock()


_recording = _Recording()
_inside = threading.local()


@contextmanager
def recording_pieces(breaker: Breaker) -> Iterator[None]:
    """Marked operations of this thread break ``breaker``'s recording.

    Raises:
        CaptureError: pieces are being recorded already, by this or by another thread.
    """
    with _recording.lock:
        if _recording.breaker is not None:
            raise CaptureError("pieces are being recorded already; one PIECEWISE recording at a time")
        _recording.breaker, _recording.thread = breaker, threading.get_ident()
    try:
        yield
    finally:
        with _recording.lock:
            _recording.breaker = None


def graph_break(function: Callable[P, None]) -> Callable[P, None]:
    """Marks ``function``: it writes into tensors that it is given, and returns nothing.

    What changes from step to step it reads from the forward context, never from its arguments, which
    are those of the recording at every replay.

    The marked operation raises CaptureError where another thread is recording pieces, where it is called
    from within another marked operation, and where the function returns something.
    """
    operation = Operation(f"{function.__module__}.{function.__qualname__}", function)

    @wraps(function)
    def marked(*args: P.args, **kwargs: P.kwargs) -> None:
        operation.undisturbed()(*args, **kwargs)

    marked.operation = operation  # type: ignore[attr-defined]
    # TorchDynamo breaks its graph at a function with this mark; importing it to say so takes seconds.
    marked._torchdynamo_disable = True  # type: ignore[attr-defined]  # noqa: SLF001
    return marked


def operation_of(marked: Callable[..., None]) -> Operation:
    """The operation behind a function that ``graph_break`` marked.

    Raises:
        CaptureError: the function was not marked.
    """
    operation = getattr(marked, "operation", None)
    if not isinstance(operation, Operation):
        raise CaptureError(f"{marked}: not a marked operation; put graph_break on it")
    return operation


@define(eq=False)
class Operation:
    """A marked operation, and what a call of it means at the moment."""

    name: str
    function: Callable[..., object]
    disabled: Callable[..., None] | None = None

    def undisturbed(self) -> Callable[..., None]:
        """``call``, out of TorchDynamo's reach once that is loaded at all."""
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is None or not hasattr(dynamo, "disable"):
            return self.call
        if self.disabled is None:
            self.disabled = dynamo.disable(self.call)
        return self.disabled

    def call(self, *args: Any, **kwargs: Any) -> None:
        """Runs now, or breaks the recording that is under way."""
        breaker = _recording.breaker
        if breaker is None:
            self.run(*args, **kwargs)
        elif _recording.thread != threading.get_ident():
            raise CaptureError(
                f"{self.name}: called on another thread than the one that records pieces; "
                "call marked operations from the forward itself"
            )
        else:
            breaker.break_at(self.run, args, kwargs)

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Runs now."""
        if getattr(_inside, "operation", False):
            raise CaptureError(f"{self.name}: called from within a marked operation; mark the outer only")
        _inside.operation = True
        try:
            returned = self.function(*args, **kwargs)
        finally:
            _inside.operation = False
        if returned is not None:
            raise CaptureError(f"{self.name}: returns a value; write into a tensor that it is given")
