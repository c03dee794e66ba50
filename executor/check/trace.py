"""The operations of one call, and what differs between two calls of the same forward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from attrs import frozen

from executor.check.places import Place
from executor.check.report import Code

Difference = tuple[Code, str, Place]


@frozen
class Read:
    """A tensor that an operation was given.

    ``number`` counts the allocation of this call that it lies in; for memory that the call did not
    make it is ``None``, and ``address`` says where it lies (0: not known, or told otherwise).
    ``is_derived`` says that an operation of this call returned the tensor.
    """

    form: tuple[Any, ...]
    number: int | None
    address: int
    is_derived: bool


@frozen
class Operation:
    """One operation: its tensors, and its other arguments, which a graph bakes in."""

    name: str
    place: Place
    reads: tuple[Read, ...]
    values: tuple[Any, ...]


def leaves(tree: Any) -> Iterator[Any]:
    """All that is in nested sequences and mappings, keys included."""
    if isinstance(tree, tuple | list):
        for item in tree:
            yield from leaves(item)
    elif isinstance(tree, Mapping):
        for key in tree:
            yield key
            yield from leaves(tree[key])
    else:
        yield tree


def form_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What has to be the same about a tensor at each replay, besides its address."""
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    return tensor.dtype, tuple(tensor.shape), strides


def differences(
    before: Sequence[Operation], after: Sequence[Operation], names: Mapping[int, str]
) -> Iterator[Difference]:
    """What a graph of the call ``before`` would do otherwise than the call ``after``.

    Each difference is told where it arises and not again where it spreads. ``names`` are those of
    static tensors, by address.
    """
    for old, new in zip(before, after, strict=False):
        if old.name != new.name or len(old.reads) != len(new.reads):
            yield Code.CHANGING_OPERATIONS, f"{new.name} where the call before ran {old.name}", new.place
            return
        if any(_is_spread(*pair) for pair in zip(old.reads, new.reads, strict=True)):
            continue
        yield from _changed_reads(old, new, names)
        yield from _changed_values(old, new)
    if len(before) != len(after):
        longer = max(before, after, key=len)
        extra = longer[min(len(before), len(after))]
        yield Code.CHANGING_OPERATIONS, f"{extra.name}, which only one of two calls runs", extra.place


def _is_spread(old: Read, new: Read) -> bool:
    """Whether a result of the call itself differs: the operation that returned it is to blame."""
    if not (old.is_derived and new.is_derived):
        return False
    return old.form != new.form or old.address != new.address


def _changed_reads(old: Operation, new: Operation, names: Mapping[int, str]) -> Iterator[Difference]:
    for was, now in zip(old.reads, new.reads, strict=True):
        if was.number != now.number:
            yield Code.CHANGING_OPERATIONS, f"{new.name} on another tensor than the call before", new.place
        elif was.form != now.form:
            yield Code.CHANGING_SHAPE, _named(new.name, was, names), new.place
        elif was.address != now.address and was.address and now.address:
            yield Code.MOVED_TENSOR, _named(new.name, was, names), new.place


def _named(operation: str, read: Read, names: Mapping[int, str]) -> str:
    name = names.get(read.address)
    return f"{operation} of {name}" if name else f"{operation} of a tensor from outside of the forward"


def _changed_values(old: Operation, new: Operation) -> Iterator[Difference]:
    if len(old.values) != len(new.values):
        yield Code.BAKED_VALUE, f"{new.name} with other arguments", new.place
        return
    for was, now in zip(old.values, new.values, strict=True):
        if not _same(was, now):
            yield Code.BAKED_VALUE, f"{new.name} with {_shown(was)}, then {_shown(now)}", new.place


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and repr(one) == repr(other))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
