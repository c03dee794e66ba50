"""Files as parts: sent where they are missing, and put together again from where a transfer was cut off."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from attrs import define, field

from cache.archive import refused
from cache.blobs import Blobs, Unnamed
from cache.directory import unreachable
from cache.transfer_index import OBJECTS, PART_BYTES, IndexedBlob, part_sizes
from cache.transfer_remote import Remote


@define(kw_only=True)
class Tally:
    """What a transfer has done so far: bytes that moved, and bytes that were there already."""

    moved: int = 0
    kept: int = 0


@define(kw_only=True)
class Sender:
    """Puts objects into ``remote`` that are not there; ``present`` are the sizes of those that are."""

    remote: Remote
    present: dict[str, int]
    tally: Tally = field(factory=Tally)

    def put(self, data: bytes) -> str:
        """Makes sure of an object; returns its SHA-256.

        Raises:
            CacheError: it cannot be written.
        """
        sha256 = hashlib.sha256(data).hexdigest()
        if self.present.get(sha256) == len(data):
            self.tally.kept += len(data)
            return sha256
        self.remote.write(f"{OBJECTS}/{sha256}", data)
        self.present[sha256] = len(data)
        self.tally.moved += len(data)
        return sha256

    def put_file(self, blobs: Blobs, sha256: str) -> IndexedBlob:
        """Makes sure of all parts of a file, which is verified on the way.

        Raises:
            CacheError: it is not what was put, or a part cannot be written.
        """
        whole, size, parts = hashlib.sha256(), 0, []
        for part in _in_parts(blobs.chunks(sha256)):
            whole.update(part)
            size += len(part)
            parts.append(self.put(part))
        if whole.hexdigest() != sha256:
            blobs.verify(sha256)  # tells of it
        return IndexedBlob(sha256=sha256, num_bytes=size, parts=tuple(parts))


def _in_parts(chunks: Iterable[bytes]) -> Iterator[bytes]:
    held = bytearray()
    for chunk in chunks:
        held += chunk
        while len(held) >= PART_BYTES:
            yield bytes(held[:PART_BYTES])
            del held[:PART_BYTES]
    if held:
        yield bytes(held)


def fetched(remote: Remote, sha256: str, num_bytes: int) -> bytes:
    """The object with this SHA-256 and size.

    Raises:
        CacheError: it is not there, is something else, or cannot be read.
    """
    name = f"{OBJECTS}/{sha256}"
    data = remote.read(name, num_bytes)
    if len(data) != num_bytes or hashlib.sha256(data).hexdigest() != sha256:
        raise refused(f"{name} is not what was exported: its SHA-256 differs; remove it and export again")
    return data


def receive(remote: Remote, blobs: Blobs, blob: IndexedBlob, tally: Tally) -> Unnamed:
    """Puts a file together, going on where an earlier attempt was cut off. ``adopt`` comes next.

    Raises:
        CacheError: a part or the whole is something else, or the system refuses.
    """
    path = blobs.unfinished(blob.sha256)
    whole = hashlib.sha256()
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with open(handle, "r+b", buffering=0) as file:
            os.utime(handle)  # a sweep of abandoned files begins to count anew
            sizes = part_sizes(blob.num_bytes)
            number = 0
            for part in _sound(file, blob, sizes):
                whole.update(part)
                number += 1
            tally.kept += sum(sizes[:number])
            file.seek(sum(sizes[:number]))
            file.truncate()
            for sha256, size in zip(blob.parts[number:], sizes[number:], strict=True):
                part = fetched(remote, sha256, size)
                _write(file, part)
                whole.update(part)
                tally.moved += size
            os.fsync(handle)
        if whole.hexdigest() != blob.sha256:
            path.unlink()
            raise refused(f"the file {blob.sha256} is not what its parts make; export it again")
    except OSError as error:
        raise unreachable(path, "an artifact cannot be written", error) from None
    return Unnamed(path, blob.sha256, blob.num_bytes)


def _sound(file: BinaryIO, blob: IndexedBlob, sizes: tuple[int, ...]) -> Iterator[bytes]:
    """The parts at the beginning of ``file`` that are what they should be."""
    for sha256, size in zip(blob.parts, sizes, strict=True):
        part = file.read(size)
        if len(part) != size or hashlib.sha256(part).hexdigest() != sha256:
            return
        yield part


def _write(file: BinaryIO, data: bytes) -> None:
    """Writes all of ``data``; an unbuffered file may take a piece of it at a time."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
