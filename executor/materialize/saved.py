"""One file with the graphs of a family: what is in it, and how it is written and read.

Behind a magic number and the SHA-256 of all that follows stand the length of a JSON header, the header,
and for each graph one compressed block: its words, then the positions of its addresses, then the number
of the region that each counts from. Nothing in it is code.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import cattrs
import torch
from attrs import frozen

from executor.errors import CaptureError
from executor.materialize.driver import KernelIdentity
from executor.materialize.recipes import FromCall, FromEntry
from executor.materialize.relocation import Relocation
from planner.descriptors import PlanEntry
from planner.documents.data import entry_data

MAGIC = b"gpgraph2"
MAX_HEADER = 1 << 26
MAX_WORDS = 1 << 26
"""Most words of all graphs: 512 MiB, far more than any family takes."""

MAX_BYTES = 1 << 48
"""Most bytes of a region: what an address of today's machines can tell apart."""

MAX_SHARED = 1 << 31
"""Shared memory is less than what a C ``int`` holds."""

_DIGEST = 32
_WORD, _NUMBER = 8, 4


class DamagedError(CaptureError):
    """A file of graphs that is not what was written, or not for these circumstances."""


@frozen(kw_only=True)
class SavedKernel:
    """A kernel, what it may be launched with, and how to come by it."""

    identity: KernelIdentity
    dynamic_shared: int
    call: FromCall | None = None
    entry: FromEntry | None = None


@frozen(kw_only=True)
class SavedRegion:
    """A region by its name; ``layout`` has to be the same, and ``num_bytes`` at least as many."""

    name: str
    num_bytes: int
    layout: str


@frozen(kw_only=True)
class SavedGraph:
    """How many words, addresses and volatile words the block of a graph has, and how many bytes it takes.

    ``kernels`` are the numbers of those that it launches.
    """

    num_words: int
    num_addresses: int
    num_volatile: int
    num_nodes: int
    num_bytes: int
    kernels: Sequence[int]


@frozen(kw_only=True)
class SavedEntry:
    """An entry: its fields, its ``steps`` as numbers of graphs and calls between them, and its outputs.

    ``obstacle`` says why it has to be captured; it then has no graphs.
    """

    fields: Mapping[str, Any]
    steps: Sequence[Any] = ()
    outputs: Any = None
    obstacle: str | None = None


@frozen(kw_only=True)
class SavedHeader:
    """All but the graphs. ``about`` tells what the file is of; another's is refused."""

    about: Mapping[str, str]
    regions: Sequence[SavedRegion]
    num_static: int
    kernels: Sequence[SavedKernel]
    calls: Sequence[Any]
    entries: Sequence[SavedEntry]
    graphs: Sequence[SavedGraph]


def key_of(fields: Mapping[str, Any]) -> str:
    """What entries are found by.

    Raises:
        DamagedError: they are nested too deeply to be those of an entry.
    """
    try:
        return json.dumps(fields, sort_keys=True)
    except RecursionError:
        raise DamagedError("an entry of the file of graphs is nested too deeply") from None


def packed(header: SavedHeader, blocks: Sequence[bytes]) -> bytes:
    """The file."""
    text = json.dumps(cattrs.unstructure(header), separators=(",", ":")).encode()
    body = b"".join((len(text).to_bytes(8, "little"), text, *blocks))
    return b"".join((MAGIC, hashlib.sha256(body).digest(), body))


def block_of(graph: Relocation) -> bytes:
    """The compressed block of one graph."""
    numbers = (graph.positions, graph.regions, graph.volatile)
    parts = (graph.words, *(each.to(torch.int32) for each in numbers))
    return zlib.compress(b"".join(ctypes.string_at(part.data_ptr(), part.nbytes) for part in parts), 1)


@frozen(eq=False)
class SavedCapture:
    """A file that was read; its blocks are unpacked when they are asked for."""

    header: SavedHeader
    content: memoryview
    starts: tuple[int, ...]

    @property
    def pool_sizes(self) -> tuple[int, ...]:
        """Bytes of each region of the pool."""
        return tuple(region.num_bytes for region in self.header.regions[self.header.num_static :])

    def rows(self, entries: Iterable[PlanEntry]) -> Iterator[tuple[PlanEntry, SavedEntry | None]]:
        """``entries`` with what is saved of each."""
        known = {key_of(row.fields): row for row in self.header.entries}
        for entry in entries:
            yield entry, known.get(key_of(entry_data(entry)))

    def graph(self, number: int) -> Relocation:
        """Graph ``number``.

        Raises:
            DamagedError: its block is not what the header says.
        """
        about = self.header.graphs[number]
        counts = (about.num_addresses, about.num_addresses, about.num_volatile)
        size = about.num_words * _WORD + sum(counts) * _NUMBER
        block = self.content[self.starts[number] : self.starts[number] + about.num_bytes]
        try:
            raw = bytearray(zlib.decompressobj().decompress(block, size + 1))
        except zlib.error as error:
            raise DamagedError(f"graph {number}: {error}") from None
        if len(raw) != size:
            raise DamagedError(f"graph {number}: {len(raw)} bytes instead of {size}")
        words = torch.frombuffer(raw, dtype=torch.int64, count=about.num_words)
        numbers = torch.empty(0, dtype=torch.int64)
        if sum(counts):
            numbers = torch.frombuffer(raw, dtype=torch.int32, offset=about.num_words * _WORD).long()
        positions, regions, volatile = numbers.split(counts)
        for each, limit in (
            (positions, about.num_words),
            (regions, len(self.header.regions)),
            (volatile, about.num_words),
        ):
            if len(each) and not 0 <= int(each.min()) <= int(each.max()) < limit:
                raise DamagedError(f"graph {number}: addresses beyond its words or regions")
        return Relocation(words, positions, regions, volatile)


def unpacked(content: bytes) -> SavedCapture:
    """What ``packed`` wrote.

    Raises:
        DamagedError: it is not.
    """
    view = memoryview(content)
    start = len(MAGIC) + _DIGEST
    if view[: len(MAGIC)] != MAGIC:
        raise DamagedError("not a file of graphs, or of another version")
    if hashlib.sha256(view[start:]).digest() != view[len(MAGIC) : start]:
        raise DamagedError("the file of graphs is damaged: its digest does not fit")
    size = int.from_bytes(view[start : start + 8], "little")
    at = start + 8 + size
    if size > MAX_HEADER or at > len(view):
        raise DamagedError("the file of graphs has a header beyond its end")
    header = _header(bytes(view[start + 8 : at]))
    _check_regions(header)
    if any(not 0 <= kernel.dynamic_shared < MAX_SHARED for kernel in header.kernels):
        raise DamagedError("a kernel with more shared memory than there is")
    starts, num_words = [], 0
    for graph in header.graphs:
        starts.append(at)
        at += graph.num_bytes
        num_words += graph.num_words
        if graph.num_bytes < 1 or graph.num_words < 2 or num_words > MAX_WORDS or at > len(view):
            raise DamagedError("the file of graphs ends before its graphs do")
        if any(not 0 <= count <= graph.num_words for count in (graph.num_addresses, graph.num_volatile)):
            raise DamagedError("a graph with more addresses than words")
        if any(not 0 <= number < len(header.kernels) for number in graph.kernels):
            raise DamagedError("a graph with a kernel that is not in the file")
    return SavedCapture(header, view, tuple(starts))


def _check_regions(header: SavedHeader) -> None:
    names = [region.name for region in header.regions[max(header.num_static, 0) :]]
    if len(names) != len(header.regions) - header.num_static or names != [
        f"pool:{number}" for number in range(len(names))
    ]:
        raise DamagedError("the file's regions are not what this version writes")
    if any(not 0 < region.num_bytes < MAX_BYTES for region in header.regions):
        raise DamagedError("a region of a size that cannot be")


def _header(text: bytes) -> SavedHeader:
    converter = cattrs.Converter(forbid_extra_keys=True)
    try:
        return converter.structure(json.loads(text), SavedHeader)
    except RecursionError:
        raise DamagedError("the header of the file of graphs is nested too deeply") from None
    except Exception as error:  # noqa: BLE001 - cattrs raises groups of whatever its hooks raise
        raise DamagedError(
            f"the header of the file of graphs is not what is written there: {type(error).__name__}"
        ) from None
