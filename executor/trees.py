"""Trees of tensors: what a forward returns and what a marked operation is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch

Tree: TypeAlias = Any
"""A tensor, or tuples, lists and mappings of tensors; any other value is kept as it is."""


def map_tensors(function: Callable[[torch.Tensor], Any], tree: Tree) -> Tree:
    """``tree`` with ``function`` applied to every tensor in it."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, tuple):
        items = [map_tensors(function, item) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    if isinstance(tree, list):
        return [map_tensors(function, item) for item in tree]
    if isinstance(tree, Mapping):
        return {key: map_tensors(function, item) for key, item in tree.items()}
    return tree


def tensors_of(tree: Tree) -> Iterator[torch.Tensor]:
    """The tensors in ``tree``, in order."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, tuple | list):
        for item in tree:
            yield from tensors_of(item)
    elif isinstance(tree, Mapping):
        for item in tree.values():
            yield from tensors_of(item)
