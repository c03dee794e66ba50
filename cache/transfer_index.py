"""What a folder at a URL says that it holds: records, the files that belong to them, and their parts.

Everything but the index itself is an object named by the SHA-256 of its content, and never changes. A
file is cut into parts of one size, so that a transfer that was cut off goes on at the next part, and
parts that two files share are there once. The index is written last: whoever reads it finds all that it
names.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve, field, frozen

from cache.archive import MAX_MEMBERS, json_in, refused
from cache.blobs import MAX_BLOB_BYTES
from cache.errors import CacheError
from cache.keys import HEX_DIGEST, Key
from cache.records import record_of
from cache.tables import MAX_RECORD_BYTES, Kind
from planner.documents.data import plain
from planner.documents.digest import canonical_json
from planner.documents.tree import printable, shown

INDEX = "graphplan-cache.json"
OBJECTS = "objects"
FORMAT = "graphplan-cache-folder"
VERSION = 1

PART_BYTES = 8 * 2**20
"""Of every part of a file but the last; another size would be another version of the format."""

MAX_INDEX_BYTES = 32 * 2**20
MAX_RECORDS = MAX_MEMBERS // 2
MAX_ALL_RECORDS_BYTES = 2**30
"""Records are held in memory until all of them are known to be good."""

_SIZE = {"minimum": 0}


@frozen(kw_only=True)
class IndexedRecord:
    """A record: its key, the object with its text, and the file that belongs to it, if one does."""

    kind: Kind
    key: str
    sha256: str
    num_bytes: int = field(metadata=_SIZE)
    blob: str | None = None

    @property
    def place(self) -> Key:
        """Where the record is in a cache."""
        return Key(self.kind, self.key)


@frozen(kw_only=True)
class IndexedBlob:
    """A file by its SHA-256, and the objects that are its parts, in order."""

    sha256: str
    num_bytes: int = field(metadata=_SIZE)
    parts: tuple[str, ...] = ()


@frozen(kw_only=True)
class Index:
    """What a folder holds."""

    format: str = FORMAT
    version: int = VERSION
    records: tuple[IndexedRecord, ...] = ()
    blobs: tuple[IndexedBlob, ...] = ()

    def updated(self, records: Iterable[IndexedRecord], blobs: Iterable[IndexedBlob]) -> Index:
        """This index with ``records`` in the place of those under the same keys, and no blob unused.

        Raises:
            CacheError: it would be larger than a reader takes.
        """
        by_key = {(str(row.kind), row.key): row for row in (*self.records, *records)}
        by_sha256 = {row.sha256: row for row in (*self.blobs, *blobs)}
        used = {row.blob for row in by_key.values() if row.blob is not None}
        index = evolve(
            self,
            records=tuple(by_key[key] for key in sorted(by_key)),
            blobs=tuple(by_sha256[sha256] for sha256 in sorted(used)),
        )
        _require_bounds(index)
        return index

    def as_bytes(self) -> bytes:
        """The index as it is written; equal ones give equal bytes.

        Raises:
            CacheError: it is larger than a reader takes.
        """
        text = canonical_json({"format": FORMAT, "version": VERSION, **plain(self)})
        if len(text) > MAX_INDEX_BYTES:
            raise refused(f"its index is larger than {MAX_INDEX_BYTES // 2**20} MiB; name fewer records")
        return text


def index_in(text: bytes) -> Index:
    """The index in a stranger's ``text``: every name a digest, every size within bounds.

    Raises:
        CacheError: it is none, or another graphplan's.
    """
    data = json_in(text, INDEX)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise refused(f"its {INDEX} is no index of a cache")
    if data.get("version") != VERSION:
        found = printable(str(data.get("version")))
        raise refused(f"was exported by another graphplan (format {found}, not {VERSION})")
    try:
        index = record_of(Index, data)
    except CacheError as error:
        raise refused(f"its {INDEX} is wrong: {error}") from None
    _require_digests(index)
    _require_bounds(index)
    _require_parts(index)
    return index


def part_sizes(num_bytes: int) -> tuple[int, ...]:
    """Sizes of the parts of a file."""
    whole, rest = divmod(num_bytes, PART_BYTES)
    return (PART_BYTES,) * whole + ((rest,) if rest else ())


def _require_digests(index: Index) -> None:
    names = [name for row in index.records for name in (row.key, row.sha256, row.blob)]
    names += [name for row in index.blobs for name in (row.sha256, *row.parts)]
    for name in names:
        if name is not None and HEX_DIGEST.fullmatch(name) is None:
            raise refused(f"its {INDEX} names {shown(name)}, which is no SHA-256")
    if len({row.place for row in index.records}) != len(index.records):
        raise refused(f"its {INDEX} has a record twice")
    if len({row.sha256 for row in index.blobs}) != len(index.blobs):
        raise refused(f"its {INDEX} has a file twice")


def _require_bounds(index: Index) -> None:
    if len(index.records) > MAX_RECORDS:
        raise refused(f"{len(index.records)} records; a folder has {MAX_RECORDS} at most: name fewer records")
    if any(row.num_bytes > MAX_RECORD_BYTES for row in index.records):
        raise refused(f"has a record of more than {MAX_RECORD_BYTES // 2**20} MiB")
    if sum(row.num_bytes for row in index.records) > MAX_ALL_RECORDS_BYTES:
        raise refused(f"its records are more than {MAX_ALL_RECORDS_BYTES // 2**20} MiB together")
    if any(row.num_bytes > MAX_BLOB_BYTES for row in index.blobs):
        raise refused(f"has a file of more than {MAX_BLOB_BYTES // 2**30} GiB")


def _require_parts(index: Index) -> None:
    """Each file has as many parts as its size takes, an artifact that it belongs to, and a line."""
    if {row.sha256 for row in index.blobs} != {row.blob for row in index.records} - {None}:
        raise refused("its artifacts and its files do not belong to each other")
    for row in index.records:
        if (row.blob is None) != (row.kind is not Kind.ARTIFACT):
            raise refused(f"{row.place} has a file, and is no artifact; or the other way around")
    for blob in index.blobs:
        if len(blob.parts) != len(part_sizes(blob.num_bytes)):
            raise refused(f"the file {blob.sha256} has {len(blob.parts)} parts, which is not its size")
