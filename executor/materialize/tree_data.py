"""Trees of tensors as JSON, each tensor as whatever a function makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def encoded(tree: Any, leaf: Callable[[torch.Tensor], Any]) -> Any:
    """``tree`` as JSON.

    Raises:
        TypeError: something in it is neither a tensor nor plain data in plain containers.
    """
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    if isinstance(tree, torch.Tensor):
        return {"tensor": leaf(tree)}
    if type(tree) in (tuple, list):
        return {type(tree).__name__: [encoded(item, leaf) for item in tree]}
    if type(tree) is dict and all(isinstance(key, str) for key in tree):
        return {"map": {key: encoded(item, leaf) for key, item in tree.items()}}
    raise TypeError(f"a {type(tree).__name__}")


def decoded(data: Any, leaf: Callable[[Any], torch.Tensor]) -> Any:
    """What ``encoded`` wrote.

    Raises:
        ValueError: it is none of that.
    """
    if not isinstance(data, Mapping):
        if data is None or isinstance(data, bool | int | float | str):
            return data
        raise ValueError("no tree")
    kind, value = next(iter(data.items())) if len(data) == 1 else ("", None)
    if kind == "tensor":
        return leaf(value)
    if kind in ("tuple", "list") and isinstance(value, list):
        items = [decoded(item, leaf) for item in value]
        return tuple(items) if kind == "tuple" else items
    if kind == "map" and isinstance(value, Mapping):
        return {key: decoded(item, leaf) for key, item in value.items()}
    raise ValueError("no tree")
