"""Which ATen operations a capture cannot hold, decided from one call alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from executor.check.report import Code

_INDEX = "index.Tensor"
_INDEX_PUT = frozenset({"index_put.default", "index_put_.default", "_index_put_impl_.default"})
_DATA_DEPENDENT = frozenset({"is_nonzero.default"})

Problem = tuple[Code, str]


def short_name(func: Any) -> str:
    """``index.Tensor`` for ``torch.ops.aten.index.Tensor``; other libraries keep their prefix."""
    return str(func).removeprefix("aten.")


def waits_for_device(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Problem | None:
    """The fault of an operation that needs data of its arguments on the host."""
    name = short_name(func)
    if torch.Tag.data_dependent_output in func.tags or name in _DATA_DEPENDENT:
        return Code.HOST_SYNC, _SPOKEN.get(name, str(func))
    if name == _INDEX or name in _INDEX_PUT:
        return _mask_problem(name, args)
    if torch.Tag.dynamic_output_shape not in func.tags or _has_fixed_shape(func, args, kwargs):
        return None
    return Code.DATA_DEPENDENT_SHAPE, str(func)


_VALUE_READ = "item(), bool(), int(), float() or an index of a tensor"
_SPOKEN = {
    "_local_scalar_dense.default": _VALUE_READ,
    "item.default": _VALUE_READ,
    "equal.default": "torch.equal",
    "allclose.default": "torch.allclose",
}


def _mask_problem(name: str, args: Sequence[Any]) -> Problem | None:
    """A mask is turned into indices by ``nonzero``, unless one constant is stored wherever it is set."""
    if not any(index.dtype in (torch.bool, torch.uint8) for index in indices_of(args)):
        return None
    return Code.DATA_DEPENDENT_SHAPE, "indexing by a mask" if name == _INDEX else "storing by a mask"


def is_masked_fill(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an ``index_put`` of one value from the host is a ``masked_fill`` on a GPU.

    Source: PyTorch 2.11 to 2.13, the CUDA path of ``index_put_``: exactly one index, and that is a mask.
    """
    if short_name(func) not in _INDEX_PUT:
        return False
    indices = list(indices_of(args))
    accumulates = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    return (
        len(indices) == 1
        and indices[0].dtype in (torch.bool, torch.uint8)
        and not accumulates
        and args[2].numel() == 1
    )


def indices_of(args: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors among the indices of an ``index`` or ``index_put``."""
    return [index for index in args[1] if isinstance(index, torch.Tensor)]


def _has_fixed_shape(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    name = short_name(func)
    if name == "repeat_interleave.Tensor":
        return argument(func, "output_size", args, kwargs) is not None
    if name == "one_hot.default":
        return argument(func, "num_classes", args, kwargs) not in (None, -1)
    return False


def reads_host(func: Any, args: Sequence[Any], on_host: Sequence[torch.Tensor]) -> Problem | None:
    """The fault of an operation on the device that is given tensors which lie on the host.

    One number on the host is passed to the kernel by value, which a capture can hold; but not as an
    index, and not as what is stored at indices or copied.
    """
    if not on_host:
        return None
    name = short_name(func)
    if name in ("copy_.default", "copy.default"):
        return Code.HOST_TO_DEVICE, "copy_ of a tensor of the host"
    hosts = {id(tensor) for tensor in on_host}
    if name == _INDEX or name in _INDEX_PUT:
        if any(id(index) in hosts for index in indices_of(args)):
            return Code.HOST_TO_DEVICE, "an index that is a list or a tensor of the host"
        if name in _INDEX_PUT and id(args[2]) in hosts:
            return Code.HOST_TO_DEVICE, "a number or a tensor of the host stored at indices"
    if any(tensor.dim() > 0 for tensor in on_host):
        return Code.HOST_TENSOR, str(func)
    return None


def draws(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Problem | None:
    """The finding of an operation that draws random numbers."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return None
    generator = argument(func, "generator", args, kwargs)
    if generator is not None and generator is not torch.default_generator:
        return Code.OWN_GENERATOR, str(func)
    if "attention" in short_name(func) and not argument(func, "dropout_p", args, kwargs):
        return None
    return Code.RANDOM, str(func)


def argument(func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The value that a call gives to the parameter ``name``, or ``None``."""
    if name in kwargs:
        return kwargs[name]
    for position, parameter in enumerate(func._schema.arguments):  # noqa: SLF001 - there is no other way
        if parameter.name == name:
            return args[position] if position < len(args) else None
    return None
