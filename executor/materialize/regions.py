"""Regions: the memory that graphs may name, each with a name that another process knows as well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from attrs import frozen
from torch import nn

MAX_DEPTH = 6


@frozen
class Region:
    """A range of device memory. ``layout`` tells what it holds, so that a changed tensor is noticed."""

    name: str
    start: int
    num_bytes: int
    layout: str = ""

    @property
    def end(self) -> int:
        """The address behind the last byte."""
        return self.start + self.num_bytes


class AddressMap:
    """Which region an address lies in; regions do not overlap."""

    def __init__(self, regions: Sequence[Region]) -> None:
        self.regions = tuple(regions)
        order = sorted(range(len(regions)), key=lambda index: regions[index].start)
        self._order = torch.tensor(order or [0], dtype=torch.int64)
        self._starts = torch.tensor([regions[index].start for index in order], dtype=torch.int64)
        self._ends = torch.tensor([regions[index].end for index in order] or [0], dtype=torch.int64)

    def find(self, words: torch.Tensor) -> torch.Tensor:
        """The number of the region that each of ``words`` points into; -1 where it is none."""
        place = torch.searchsorted(self._starts, words, right=True) - 1
        inside = (place >= 0) & (words < self._ends[place.clamp(min=0)])
        return torch.where(inside, self._order[place.clamp(min=0)], -1)

    def starts(self) -> torch.Tensor:
        """First addresses by the number of the region."""
        return torch.tensor([region.start for region in self.regions], dtype=torch.int64)


def static_regions(named: Mapping[str, torch.Tensor]) -> tuple[Region, ...]:
    """A region for each storage, under the first name of a tensor in it; empty tensors have none."""
    seen: dict[int, Region] = {}
    for name, tensor in named.items():
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in seen:
            layout = (
                f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} {list(tensor.stride())}"
            )
            seen[storage.data_ptr()] = Region(name, storage.data_ptr(), storage.nbytes(), layout)
    return tuple(seen.values())


def registered_regions(
    static: Mapping[str, torch.Tensor], outputs: Sequence[torch.Tensor], workspaces: Sequence[Region]
) -> tuple[Region, ...]:
    """All memory outside the pool that graphs may name: saved and found again by the same names."""
    named = {f"output.{index}": each for index, each in enumerate(outputs)}
    return (*static_regions({**static, **named}), *workspaces)


def static_tensors(device: torch.device, **holders: Any) -> dict[str, torch.Tensor]:
    """The tensors on ``device`` that ``holders`` keep for good, named by where they are found.

    Holders are models, containers, and objects of plain or attrs classes whose attributes hold tensors.
    """
    return {
        path: tensor
        for name, holder in holders.items()
        for path, tensor in _walk(name, holder, MAX_DEPTH)
        if tensor.device == device
    }


def _walk(path: str, value: Any, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, nn.Module):
        for name, tensor in (*value.named_parameters(), *value.named_buffers()):
            yield f"{path}.{name}", tensor
    elif depth and value is not None and not isinstance(value, str | bytes | int | float | type):
        for name, item in _items(value):
            yield from _walk(f"{path}.{name}", item, depth - 1)


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, tuple | list):
        return enumerate(value)
    if attrs.has(type(value)):
        return ((each.name, getattr(value, each.name)) for each in attrs.fields(type(value)))
    return vars(value).items() if hasattr(value, "__dict__") and not callable(value) else ()
