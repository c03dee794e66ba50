"""Calls of PyTorch's Python interface that no ATen operation tells of on a CPU, or tells of otherwise.

``tensor.cpu()`` does nothing on a CPU and ``torch.tensor(values, device=...)`` makes its tensor there
at once, so they are looked at by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from executor.check.memory import address_of
from executor.check.observer import Observer
from executor.check.report import Code
from executor.trees import tensors_of

Call = Callable[..., Any]

_READS = frozenset({"tolist", "numpy", "__array__", "__repr__", "__str__", "__format__"})
_FROM_VALUES = frozenset({"tensor", "as_tensor", "asarray", "new_tensor"})
_MOVES = frozenset({"set_", "resize_", "resize_as_", "__set__"})


def call(observer: Observer, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls ``func`` as a GPU would have it, and takes down what is wrong with it there."""
    name = getattr(func, "__name__", "")
    special = _SPECIAL.get(name)
    if special is not None and args and isinstance(args[0], torch.Tensor):
        return special(observer, func, args, kwargs)
    if name in _READS and args and isinstance(args[0], torch.Tensor):
        return _read(observer, func, args, kwargs)
    if name in _MOVES:
        return _move(observer, func, args, kwargs)
    if name == "one_hot" and _number_of_classes(args, kwargs) != -1:
        # Only the implementation for CPUs looks at the values (PyTorch 2.11 to 2.13).
        with observer.quiet():
            return func(*args, **kwargs)
    if name in _FROM_VALUES:
        return _from_values(observer, func, args, kwargs)
    if kwargs.get("pin_memory"):
        observer.fault(Code.HOST_ALLOCATION, f"{name}(pin_memory=True)")
        kwargs = kwargs | {"pin_memory": False}
    output = func(*args, **on_cpu(kwargs))
    if isinstance(output, torch.Tensor) and _is_left_on_host(args, kwargs):
        observer.place_on(output, name, host=True)
    return output


def on_cpu(kwargs: dict[str, Any]) -> dict[str, Any]:
    """``kwargs`` with a device that this machine lacks replaced by the CPU."""
    device = kwargs.get("device")
    if device is None or _is_here(device):
        return kwargs
    return kwargs | {"device": "cpu"}


def _is_here(device: Any) -> bool:
    kind = _device(device).type
    return kind in ("cpu", "meta") or (kind == "cuda" and torch.cuda.is_available())


def _device(device: Any) -> torch.device:
    return device if isinstance(device, torch.device) else torch.device(device)


def _is_left_on_host(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a tensor was made out of no other and without a device: then it lies on the host."""
    if kwargs.get("device") is not None or next(tensors_of((tuple(args), dict(kwargs))), None) is not None:
        return False
    return not _has_default_device()


def _has_default_device() -> bool:
    """Whether a ``with torch.device(...)`` or ``torch.set_default_device`` is in force."""
    stack = getattr(torch.overrides, "_get_current_function_mode_stack", list)
    return any(type(mode).__name__ == "DeviceContext" for mode in stack())


def _number_of_classes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return args[1] if len(args) > 1 else kwargs.get("num_classes", -1)


def _read(observer: Observer, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if observer.memory.on_host(args[0]):
        return func(*args, **kwargs)
    observer.fault(Code.HOST_SYNC, _READ_AS.get(func.__name__, f"{func.__name__}()"))
    with observer.quiet():
        # A copy, as on a GPU: what is made of the values again must not be taken for the tensor itself.
        return func(args[0].clone(), *args[1:], **kwargs)


_READ_AS = {"__repr__": "text of a tensor", "__str__": "text of a tensor", "__format__": "text of a tensor"}


def _to_host(observer: Observer, what: str, tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the host. On a GPU that is other memory, and so it is here."""
    if observer.memory.on_host(tensor):
        return tensor
    observer.fault(Code.HOST_SYNC, what)
    copy = tensor.clone()
    observer.place_on(copy, what, host=True)
    return copy


def _to_device(observer: Observer, what: str, tensor: torch.Tensor) -> torch.Tensor:
    if not observer.memory.on_host(tensor):
        return tensor
    if tensor.numel():
        observer.fault(Code.HOST_TO_DEVICE, what)
    copy = tensor.clone()
    observer.place_on(copy, what, host=False)
    return copy


def _cpu(observer: Observer, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
    return _to_host(observer, "cpu()", args[0])


def _cuda(observer: Observer, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
    return _to_device(observer, "cuda()", args[0])


def _pin(observer: Observer, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
    observer.fault(Code.HOST_ALLOCATION, "pin_memory()")
    return args[0]


def _to(observer: Observer, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, target = args[0], _target(args, kwargs)
    if target is None:
        return func(*args, **kwargs)
    if isinstance(target, torch.Tensor):
        is_host = observer.memory.on_host(target)
    else:
        is_host = _device(target).type == "cpu" and _is_spelled_out(observer, target)
        args, kwargs = _without(target, args, kwargs)
    tensor = (_to_host if is_host else _to_device)(observer, "to() of another device", tensor)
    rest = args[1:]
    return func(tensor, *rest, **kwargs) if rest or kwargs else tensor


def _target(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The device, or the tensor that lies on it, that ``Tensor.to`` is told; ``None`` without one."""
    first = args[1] if len(args) > 1 else kwargs.get("device", kwargs.get("other"))
    return None if isinstance(first, torch.dtype) else first


def _without(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of ``Tensor.to`` without the device."""
    if len(args) > 1 and args[1] is target:
        args = (args[0], *args[2:])
    return args, {key: value for key, value in kwargs.items() if key != "device"}


def _is_spelled_out(observer: Observer, target: Any) -> bool:
    """Whether the line names ``"cpu"`` itself.

    A model that was put on the CPU for this check holds the CPU as its own device, which stands for a
    GPU: ``x.to(self.device)`` is no copy to the host.
    """
    return isinstance(target, str) and observer.places.mentions("cpu", observer.outermost)


def _from_values(observer: Observer, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = func.__name__
    values = args[1:] if name == "new_tensor" else args[:1]
    values = values or tuple(kwargs[key] for key in ("data", "obj") if key in kwargs)
    inside = list(tensors_of(values))
    is_tensor = bool(values) and isinstance(values[0], torch.Tensor)
    on_device = any(not observer.memory.on_host(tensor) for tensor in inside)
    if inside and on_device and not is_tensor:
        observer.fault(Code.HOST_SYNC, f"{name}() of a list of tensors")
    output = func(*args, **on_cpu(kwargs))
    if not isinstance(output, torch.Tensor):
        return output
    goes_to_device = (
        _has_default_device()
        or kwargs.get("device") is not None
        or (name == "new_tensor" and not observer.memory.on_host(args[0]))
    )
    if is_tensor and on_device:
        if address_of(output) != address_of(values[0]):
            observer.place_on(output, name, host=False)
    elif goes_to_device:
        if output.numel():
            observer.fault(Code.HOST_TO_DEVICE, f"{name}() of Python values on the device")
        observer.place_on(output, name, host=False)
    return output


def _move(observer: Observer, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls that give a tensor other memory: one from outside of the forward must not be."""
    tensor = args[0] if args and isinstance(args[0], torch.Tensor) else None
    birth = observer.memory.born(tensor) if tensor is not None else None
    is_outside = tensor is not None and (birth is None or birth.run != observer.run)
    before = address_of(tensor) if tensor is not None else 0
    output = func(*args, **kwargs)
    if is_outside and tensor is not None and address_of(tensor) != before:
        observer.fault(Code.MOVED_TENSOR, "a tensor from outside of the forward is given other memory")
    return output


_SPECIAL: Mapping[str, Callable[[Observer, Call, tuple[Any, ...], dict[str, Any]], Any]] = {
    "cpu": _cpu,
    "cuda": _cuda,
    "to": _to,
    "pin_memory": _pin,
}
