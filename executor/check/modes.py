"""The modes under which a forward runs while it is checked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from executor.breaks import recording_pieces
from executor.check.functions import call
from executor.check.observer import Observer
from executor.check.report import Code
from executor.trees import tensors_of


class _Operations(TorchDispatchMode):
    """Tells the observer of each ATen operation."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self.observer = observer

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        before, self.observer.busy = self.observer.busy, True
        try:
            output = func(*args, **(kwargs or {}))
            self.observer.operation(func, args, kwargs or {}, output)
            return output
        finally:
            self.observer.busy = before


class _Functions(TorchFunctionMode):
    """Tells the observer of each call of PyTorch's Python interface."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self.observer = observer

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        observer = self.observer
        if observer.busy or observer.paused:
            return func(*args, **(kwargs or {}))
        output = call(observer, func, tuple(args), dict(kwargs or {}))
        if torch.is_grad_enabled() and any(tensor.grad_fn is not None for tensor in tensors_of(output)):
            self._report_autograd(func)
        return output

    def _report_autograd(self, func: Any) -> None:
        if not self.observer.autograd_seen:
            self.observer.autograd_seen = True
            self.observer.fault(Code.AUTOGRAD, getattr(func, "__name__", str(func)))


class _Pieces:
    """Stands for a recording of pieces: marked operations run, and are part of none."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer

    def break_at(self, operation: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.observer.marked_operation("a marked operation", args, kwargs)
        with self.observer.between_pieces():
            operation(*args, **kwargs)


@contextmanager
def observed(observer: Observer, *, pieces: bool) -> Iterator[None]:
    """Tells ``observer`` of all that runs inside; of marked operations as between pieces, if ``pieces``."""
    with ExitStack() as stack:
        for each in _host_calls(observer):
            stack.enter_context(each)
        stack.enter_context(_no_compiler())
        if pieces:
            stack.enter_context(recording_pieces(_Pieces(observer)))
        stack.enter_context(_Functions(observer))
        stack.enter_context(_Operations(observer))
        yield


def _no_compiler() -> AbstractContextManager[Any]:
    """A compiled model runs as the Python that it was made from, whose lines can be told."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def _host_calls(observer: Observer) -> Iterator[AbstractContextManager[Any]]:
    """Functions that are called on no tensor, replaced for a while by ones that tell the observer."""

    def reported(code: Code, name: str, instead: Callable[..., Any]) -> Callable[..., Any]:
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            observer.fault(code, name)
            with observer.quiet():
                return instead(*args, **kwargs)

        return stand_in

    def nothing(*args: Any, **kwargs: Any) -> None:
        """Waits for no device: there may be none."""

    for owner, name in ((torch.cuda, "synchronize"), (torch.accelerator, "synchronize")):
        yield _replaced(owner, name, reported(Code.HOST_SYNC, f"{owner.__name__}.{name}", nothing))
    seeding = ((torch, "manual_seed"), (torch, "seed"), (torch.cuda, "manual_seed"))
    for owner, name in (*seeding, (torch.cuda, "manual_seed_all")):
        instead = getattr(owner, name)
        yield _replaced(owner, name, reported(Code.SEEDED, f"{owner.__name__}.{name}", instead))


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
