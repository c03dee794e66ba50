"""Telling addresses from numbers: one piece of work recorded twice, with its memory at two places.

What moved with the memory is an address. What stayed is one where it lies in a static tensor, and a number
where it lies nowhere. What lies in memory of any kind and did neither speaks against rebuilding the graph
elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from attrs import frozen

from executor.errors import CaptureError
from executor.materialize.regions import AddressMap, Region
from executor.materialize.words import NodeWords, nodes_of, payload_mask, uses_host_memory

LOWEST_ADDRESS = 1 << 32
"""Numbers below are not looked up with the driver: GPU memory of 64-bit processes lies above."""


class NotRestorableError(CaptureError):
    """A graph that another process could not rebuild faithfully."""


class ExchangedError(NotRestorableError):
    """Words that lie in memory at one recording at least, and moved otherwise than that memory.

    ``words`` marks them. They are tensors that were exchanged, or gaps between parameters with addresses
    of no meaning left in them, which further recordings tell apart.
    """

    def __init__(self, message: str, words: torch.Tensor) -> None:
        super().__init__(message)
        self.words = words


@frozen(eq=False)
class Relocation:
    """A graph whose addresses are offsets at ``positions``, counted from the start of ``regions``.

    ``volatile`` are words that are no addresses, some bytes of which had another value when the graph was
    recorded again: gaps between parameters, which hold whatever lay there before. Those bytes are zero.
    """

    words: torch.Tensor
    positions: torch.Tensor
    regions: torch.Tensor
    volatile: torch.Tensor

    def at(self, starts: torch.Tensor) -> torch.Tensor:
        """The words for regions that begin at ``starts``."""
        placed = self.words.clone()
        placed[self.positions] += starts[self.regions]
        return placed


@frozen(kw_only=True, eq=False)
class Places:
    """Where the memory of two recordings lies.

    ``first`` and ``second`` have the same ``num_static`` static regions in front, then their own pool's.
    ``foreign`` are further ranges that the allocator holds, and ``owner_of`` asks the driver for a range.
    """

    first: AddressMap
    second: AddressMap
    num_static: int
    foreign: AddressMap
    owner_of: Callable[[int], Region | None]

    def unlisted(self, value: int) -> Region | None:
        """The memory that ``value`` lies in, of any allocator: asked of the driver, but for small numbers."""
        return self.owner_of(value) if value >= LOWEST_ADDRESS else None


def relocated(
    first: torch.Tensor,
    second: torch.Tensor,
    places: Places,
    names: Sequence[str],
    suspects: torch.Tensor | None = None,
) -> Relocation:
    """The graph of ``first``, recorded once more as ``second``; ``names`` are those of the functions.

    ``suspects`` are the words that were exchanged each time that the graph was recorded before: only
    those can be tensors, others are gaps. Without it any word can.

    Raises:
        ExchangedError: words that lie in memory and did not move as it did.
        NotRestorableError: a node that cannot be rebuilt, an address that has no region, or a difference
            that the two places do not explain.
    """
    nodes = list(nodes_of(first))
    for node in nodes:
        obstacle = node.obstacle or ("copies from or to the host" if uses_host_memory(first, node) else None)
        if obstacle:
            raise NotRestorableError(f"the graph {obstacle}")
    if len(first) != len(second):
        raise NotRestorableError("recorded twice, the graph was not the same; something in it changes")
    payload = payload_mask(first, nodes)
    same = first == second
    _refuse(~same & ~payload, nodes, names, "is launched otherwise when it is recorded again")
    one, other = places.first.find(first), places.second.find(second)
    in_static = (one >= 0) & (one < places.num_static)
    moved = (one >= places.num_static) & (other >= places.num_static)
    pointers = payload & ((same & in_static) | (~same & moved))
    foreign = places.foreign.find(first) >= 0, places.foreign.find(second) >= 0
    _refuse_foreign(payload & (one < 0) & (same | (foreign[0] & foreign[1])), first, nodes, names, places)
    held_first = (one >= 0) | (places.second.find(first) >= 0) | foreign[0]
    held_second = (other >= 0) | (places.first.find(second) >= 0) | foreign[1]
    exchanged = payload & ~pointers & (held_first | held_second)
    exchanged &= ~_numbers(first, exchanged & ~held_first, places)
    exchanged &= ~_numbers(second, exchanged & ~held_second, places)
    if suspects is not None and len(suspects) == len(exchanged):
        exchanged &= suspects
    why = "was given another tensor when it was recorded again"
    _refuse(exchanged & ~same, nodes, names, why, partial(ExchangedError, words=exchanged))
    why = "names memory of the pool that stayed in its place when the pool was another"
    _refuse(exchanged, nodes, names, why, partial(ExchangedError, words=exchanged))
    positions = pointers.nonzero().flatten()
    regions = one[positions]
    words = first.clone()
    words[positions] -= places.first.starts()[regions]
    volatile = (payload & ~same & ~moved).nonzero().flatten()
    same_bytes = first.view(torch.uint8) == second.view(torch.uint8)
    kept = words.view(torch.uint8) * same_bytes
    words[volatile] = kept.view(torch.int64)[volatile]
    return Relocation(words, positions, regions, volatile)


def _numbers(words: torch.Tensor, asked: torch.Tensor, places: Places) -> torch.Tensor:
    """Which of the words in ``asked`` are no address of anything, nor that of nothing: 0.

    A kernel has no use for an address in the place of such a number, so that it stands in a gap.
    """
    values = words[asked & (words != 0)].unique().tolist()
    numbers = [value for value in values if places.unlisted(value) is None]
    return asked & torch.isin(words, torch.tensor(numbers, dtype=torch.int64))


def _refuse_foreign(
    suspects: torch.Tensor, words: torch.Tensor, nodes: list[NodeWords], names: Sequence[str], places: Places
) -> None:
    values = words[suspects].unique()
    for value, number in zip(values.tolist(), places.foreign.find(values).tolist(), strict=True):
        region = places.foreign.regions[number] if number >= 0 else places.unlisted(value)
        if region is not None:
            where = f"{region.start:#x} to {region.end:#x}"
            why = f"uses memory at {where}, which is neither a registered static tensor nor the pool's"
            _refuse(suspects & (words == value), nodes, names, why)


def _refuse(
    mask: torch.Tensor,
    nodes: list[NodeWords],
    names: Sequence[str],
    why: str,
    error: Callable[[str], NotRestorableError] = NotRestorableError,
) -> None:
    """Refuses if any word is marked, in the name of the node that it belongs to."""
    marked = mask.nonzero()
    if len(marked):
        raise error(f"{_owner(int(marked[0]), nodes, names)} {why}")


def _owner(position: int, nodes: list[NodeWords], names: Sequence[str]) -> str:
    for number, node in enumerate(nodes):
        if node.start <= position < node.start + node.length:
            known = node.function is not None and node.function < len(names)
            what = names[node.function] if known and node.function is not None else f"kind {node.kind}"
            return f"node {number} ({what})"
    return "an edge"
