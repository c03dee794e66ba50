"""Carries a cache to and from a folder at a URL: only what is missing moves, and a cut-off transfer goes on.

Nothing that a remote says is believed: sizes are bounded, names are digests, and content counts once its
SHA-256 is right. A reader of the receiving cache finds a capture with all its artifacts, or nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

from attrs import frozen

from cache.archive import has_sound, refused, stranger_record
from cache.blobs import FOLDER, Unnamed
from cache.captures import CaptureRecordV1
from cache.directory import Access, name_of
from cache.errors import CacheError, Fault
from cache.keys import Key
from cache.records import ArtifactRecord, Record
from cache.transfer_index import (
    INDEX,
    MAX_INDEX_BYTES,
    OBJECTS,
    Index,
    IndexedBlob,
    IndexedRecord,
    index_in,
)
from cache.transfer_parts import Sender, Tally, fetched, receive
from cache.transfer_remote import Remote, locked
from planner.documents.digest import canonical_json

if TYPE_CHECKING:
    from cache.store import PlanCache

PUT_AT_ONCE = 500
"""Records of one transaction, which has to end within the time that a call may take."""


@frozen(kw_only=True)
class Moved:
    """What a transfer came to: records and bytes that are new where they went, and those that were there.

    Parts of a file that an earlier, cut-off transfer left count as there already.
    """

    added: int
    kept: int
    num_bytes: int
    kept_bytes: int


# Out.


def export_to(cache: PlanCache, url: str, keys: Iterable[Key] | None = None) -> Moved:
    """Writes records, by default all, and their files into the folder at ``url``, beside what is there.

    Records of the same keys give way. One export at a time to a folder: on this machine a second one is
    refused, elsewhere it is found out at the end.

    Raises:
        CacheError: a record is not what was put, or the folder cannot be written.
    """
    remote = Remote(url)
    remote.require_writable()
    chosen = [summary.key for summary in cache.find()] if keys is None else list(keys)
    with _naming(remote), remote.alone():
        before = _index_of(remote)
        sender = Sender(remote=remote, present=remote.sizes(OBJECTS))
        records = [record for key in sorted(set(chosen), key=str) if (record := cache.look(key)) is not None]
        rows = [_sent(sender, record) for record in records]
        files = sorted({record.blob for record in records if record.blob is not None})
        after = before.updated(rows, [sender.put_file(cache.blobs, sha256) for sha256 in files])
        if after != before or not before.records:
            remote.write(INDEX, after.as_bytes())
            _require_written(remote, after)
    known = set(before.records)
    added = sum(row not in known for row in rows)
    return Moved(
        added=added,
        kept=len(rows) - added,
        num_bytes=sender.tally.moved,
        kept_bytes=sender.tally.kept,
    )


def _index_of(remote: Remote) -> Index:
    """The index that is there, or an empty one."""
    try:
        return index_in(remote.read(INDEX, MAX_INDEX_BYTES))
    except CacheError as error:
        if error.fault is Fault.MISSING:
            return Index()
        raise


def _sent(sender: Sender, record: Record) -> IndexedRecord:
    text = canonical_json(record.as_json())
    return IndexedRecord(
        kind=record.key.kind,
        key=record.key.digest,
        sha256=sender.put(text),
        num_bytes=len(text),
        blob=record.blob,
    )


def _require_written(remote: Remote, index: Index) -> None:
    """Object stores have no locks: what another export wrote meanwhile is seen afterwards."""
    if remote.read(INDEX, MAX_INDEX_BYTES) != index.as_bytes():
        raise CacheError("another export was written at the same time; export once more", fault=Fault.LOCKED)


# In.


def require_folder(url: str) -> None:
    """Refuses a URL that nothing can be imported from, as far as its index shows.

    Raises:
        CacheError: the folder is not what ``export_to`` writes or cannot be read.
    """
    remote = Remote(url)
    with _naming(remote):
        index_in(remote.read(INDEX, MAX_INDEX_BYTES))


def import_from(cache: PlanCache, url: str) -> Moved:
    """Takes in what the folder at ``url`` holds and ``cache`` does not. Records that are there stay.

    All new records are verified before the first is stored. A capture, with its artifacts, is stored as
    soon as all of it is here. After an error, what is stored stays, and the next import goes on from there.

    Raises:
        CacheError: the folder is not what ``export_to`` writes or cannot be read, or the cache cannot be
            written.
    """
    if cache.access is not Access.WRITE:
        raise CacheError("the cache can be read only", fault=Fault.READ_ONLY, path=name_of(cache.directory))
    remote = Remote(url)
    tally = Tally()
    with _naming(remote), locked(cache.directory / FOLDER, "another import is under way; wait for its end"):
        index = index_in(remote.read(INDEX, MAX_INDEX_BYTES))
        files = {blob.sha256: blob for blob in index.blobs}
        rows = [row for row in index.records if not has_sound(cache, row.place)]
        records = [_received(remote, row, files) for row in rows]
        for together in _together(records):
            _store(cache, remote, together, files, tally)
    return Moved(
        added=len(rows),
        kept=len(index.records) - len(rows),
        num_bytes=tally.moved + sum(row.num_bytes for row in rows),
        kept_bytes=tally.kept,
    )


@contextmanager
def _naming(remote: Remote) -> Iterator[None]:
    """Names the folder in errors that name no other place."""
    try:
        yield
    except CacheError as error:
        error.path = error.path or remote.name
        raise


def _received(remote: Remote, row: IndexedRecord, files: dict[str, IndexedBlob]) -> Record:
    record = stranger_record(row.place, fetched(remote, row.sha256, row.num_bytes), str(row.place))
    if record.blob != row.blob:
        raise refused(f"{row.place} has another file than the index says")
    if isinstance(record, ArtifactRecord) and files[record.sha256].num_bytes != record.num_bytes:
        raise refused(f"{row.place} has a file of another size than the index says")
    return record


def _together(records: Sequence[Record]) -> Iterator[list[Record]]:
    """The records in groups that belong together: a capture and its artifacts, or some of the others."""
    captures: dict[str, list[Record]] = {}
    others = []
    for record in records:
        if isinstance(record, CaptureRecordV1):
            captures.setdefault(record.key.digest, []).insert(0, record)
        elif isinstance(record, ArtifactRecord):
            captures.setdefault(record.capture, []).append(record)
        else:
            others.append(record)
    left = iter(others)
    while some := list(islice(left, PUT_AT_ONCE)):
        yield some
    yield from captures.values()


def _store(
    cache: PlanCache,
    remote: Remote,
    records: Sequence[Record],
    files: dict[str, IndexedBlob],
    tally: Tally,
) -> None:
    """Stores records with their files in one transaction, once all the files are here."""
    here: dict[str, Unnamed | None] = {}
    for record in records:
        if record.blob is not None and record.blob not in here:
            here[record.blob] = _file(cache, remote, files[record.blob], tally)
    with cache.connection.transaction():  # in which nobody sweeps
        for sha256, unnamed in here.items():
            if unnamed is not None:
                cache.blobs.adopt(unnamed)
            elif sha256 not in cache.blobs.named():
                raise CacheError("a file was removed meanwhile; import once more", fault=Fault.MISSING)
        for record in records:
            cache.put(record)


def _file(cache: PlanCache, remote: Remote, blob: IndexedBlob, tally: Tally) -> Unnamed | None:
    """The content of ``blob``, under no name yet; ``None`` where it has its name already."""
    try:
        cache.blobs.verify(blob.sha256)
    except CacheError as error:
        if error.fault not in (Fault.ALTERED, Fault.MISSING):
            raise
        return receive(remote, cache.blobs, blob, tally)
    tally.kept += blob.num_bytes
    return None
