"""One file with a cache's records and artifacts, for baking into an image or carrying elsewhere.

A zip file: ``manifest.json`` names every other member with its SHA-256 and size; records are
``plans/KEY.json`` and so on, artifacts ``blobs/SHA256``. The same content gives the same bytes. What is
imported is verified as a whole before anything is stored, and goes where its content says: no name in
the file is ever used as a path.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zipfile
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO

from attrs import field, frozen

from cache.blobs import CHUNK, FOLDER, MAX_BLOB_BYTES, Unnamed, sync_folder
from cache.directory import name_of, unreachable
from cache.errors import CacheError, Fault
from cache.keys import HEX_DIGEST, Key
from cache.kinds import record_under
from cache.records import ArtifactRecord, PlanRecord, Record, record_of
from cache.tables import MAX_RECORD_BYTES, Kind
from planner.documents.data import plain
from planner.documents.deployment import Json
from planner.documents.digest import canonical_json
from planner.documents.tree import printable

if TYPE_CHECKING:
    from cache.store import PlanCache

FORMAT = "graphplan-cache"
VERSION = 1
MANIFEST = "manifest.json"

MAX_MEMBERS = 100_000
MAX_MANIFEST_BYTES = 32 * 2**20

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of all members: the earliest that zip files know."""

_ZIP = b"PK\x03\x04"
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_RECORD = re.compile(f"({'|'.join(map(str, Kind))})/({HEX_DIGEST.pattern})[.]json")
_BLOB = re.compile(f"{FOLDER}/({HEX_DIGEST.pattern})")


@frozen(kw_only=True)
class Member:
    """One file in an archive."""

    name: str
    sha256: str
    num_bytes: int = field(metadata={"minimum": 0})


@frozen(kw_only=True)
class Manifest:
    """What an archive says that it holds."""

    format: str = FORMAT
    version: int = VERSION
    members: tuple[Member, ...] = ()


@frozen
class Imported:
    """How many records were taken in, and how many were there already."""

    added: int
    kept: int


# Out.


def export_archive(cache: PlanCache, file: Path, keys: Iterable[Key] | None) -> int:
    """Writes records, by default all, and their artifacts into ``file``, whole or not at all."""
    _keep_foreign(file)
    chosen = [summary.key for summary in cache.find()] if keys is None else list(keys)
    temporary = file.with_name(f".{file.name[:100]}.{os.urandom(4).hex()}.tmp")
    try:
        with open(temporary, "xb") as stream:
            count = _write(cache, stream, sorted(set(chosen), key=str))
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
        sync_folder(file.parent)
    except BaseException as error:
        with suppress(OSError, ValueError):
            temporary.unlink()
        if isinstance(error, OSError | ValueError):
            raise unreachable(file, "the export cannot be written", error) from None
        raise
    return count


def _keep_foreign(file: Path) -> None:
    """Refuses to replace what is no export."""
    try:
        if not file.exists():
            return
        if not file.is_file():
            raise CacheError("is no file; give the name of one", fault=Fault.INVALID, path=name_of(file))
        with file.open("rb") as stream:
            beginning = stream.read(len(_ZIP))
    except (OSError, ValueError) as error:
        raise unreachable(file, "the export cannot be written", error) from None
    if beginning not in (b"", _ZIP):
        raise CacheError(
            "holds something else, which is kept; give another file", fault=Fault.INVALID, path=name_of(file)
        )


def _write(cache: PlanCache, stream: BinaryIO, keys: Iterable[Key]) -> int:
    records = [record for key in keys if (record := cache.look(key)) is not None]
    if len(records) * 2 >= MAX_MEMBERS:
        raise CacheError(
            f"{len(records)} records are more than an export takes; prune the cache, or name records",
            fault=Fault.INVALID,
        )
    blobs = {record.sha256: record.num_bytes for record in records if isinstance(record, ArtifactRecord)}
    texts = {f"{record.key}.json": canonical_json(record.as_json()) for record in records}
    members = [
        *(
            Member(name=name, sha256=hashlib.sha256(text).hexdigest(), num_bytes=len(text))
            for name, text in texts.items()
        ),
        *(
            Member(name=f"{FOLDER}/{sha256}", sha256=sha256, num_bytes=size)
            for sha256, size in sorted(blobs.items())
        ),
    ]
    manifest = {"format": FORMAT, "version": VERSION, "members": plain(members)}
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(_info(MANIFEST, compressed=True), canonical_json(manifest))
        for name, text in texts.items():
            archive.writestr(_info(name, compressed=True), text)
        for sha256, size in sorted(blobs.items()):
            cache.blobs.verify(sha256)
            with archive.open(_info(f"{FOLDER}/{sha256}", size=size), "w") as member:
                for chunk in cache.blobs.chunks(sha256):
                    member.write(chunk)
    return len(records)


def _info(name: str, *, size: int = 0, compressed: bool = False) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    info.external_attr = 0o600 << 16
    info.create_system = 3
    info.file_size = size
    return info


# In.


def import_archive(cache: PlanCache, file: Path) -> Imported:
    """Verifies all of ``file``, then stores what of it is new."""
    unnamed: list[Unnamed] = []
    try:
        with _opened(file) as archive:
            members = _members(archive)
            records = [_record(archive, member) for member in members if _RECORD.fullmatch(member.name)]
            _require_blobs(records, members)
            new = [record for record in records if not has_sound(cache, record.key)]
            wanted = {record.blob for record in new if record.blob is not None}
            for member in members:
                if not _BLOB.fullmatch(member.name):
                    continue
                chunks = _chunks(archive, member)
                if member.sha256 in wanted:
                    unnamed.append(cache.blobs.write(chunks))
                else:
                    deque(chunks, maxlen=0)  # only verified
        with cache.connection.transaction():
            for content in unnamed:
                cache.blobs.adopt(content)
            for record in new:
                cache.put(record)
    except BaseException as error:
        for content in unnamed:
            cache.blobs.discard(content)
        if isinstance(error, CacheError):
            error.path = error.path or name_of(file)
        raise
    return Imported(len(new), len(records) - len(new))


def require_archive(file: Path) -> None:
    """Refuses what cannot be imported, as far as its manifest shows.

    Raises:
        CacheError: it cannot be read, or is no export of a cache.
    """
    try:
        with _opened(file) as archive:
            _members(archive)
    except CacheError as error:
        error.path = error.path or name_of(file)
        raise


def _stream_of(file: Path) -> BinaryIO:
    try:
        # Without O_NONBLOCK, opening a pipe would wait for somebody to write.
        stream = open(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb")  # noqa: SIM115 - the caller closes it
    except FileNotFoundError:
        raise CacheError("no such file", fault=Fault.MISSING, path=name_of(file)) from None
    except (OSError, ValueError) as error:
        why = unreachable(file, "cannot be imported", error).message
        raise CacheError(why, fault=Fault.INVALID, path=name_of(file)) from None
    if not stream.seekable():
        stream.close()
        raise CacheError(
            "is a pipe; give a file, or - to planner cache import", fault=Fault.INVALID, path=name_of(file)
        )
    return stream


@contextmanager
def _opened(file: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with _stream_of(file) as stream, zipfile.ZipFile(stream) as archive:
            yield archive
    except (OSError, ValueError) as error:
        raise unreachable(file, "cannot be imported", error) from None
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        RuntimeError,
        NotImplementedError,
        MemoryError,
    ) as error:
        raise refused(f"is damaged, or no export of a cache: {error}") from None


def _members(archive: zipfile.ZipFile) -> tuple[Member, ...]:
    """The members that the manifest names, once they are known to be all that there are."""
    if any(info.compress_type not in _METHODS for info in archive.infolist()):
        raise refused("is compressed in a way that no export is")
    present = [info.filename for info in archive.infolist()]
    if len(present) > MAX_MEMBERS:
        raise refused(f"has {len(present)} members; no export has more than {MAX_MEMBERS}")
    if len(set(present)) != len(present):
        raise refused("has two members of one name")
    for name in present:
        if name != MANIFEST and not _RECORD.fullmatch(name) and not _BLOB.fullmatch(name):
            raise refused(f"{printable(name)!r} is no place inside a cache; nothing was imported")
    if MANIFEST not in present:
        raise refused(f"has no {MANIFEST}, so it is no export of a cache")
    manifest = _manifest(_read(archive, MANIFEST, MAX_MANIFEST_BYTES))
    if sorted([MANIFEST, *(member.name for member in manifest.members)]) != sorted(present):
        raise refused("its manifest does not name what is in it")
    return manifest.members


def _manifest(text: bytes) -> Manifest:
    data = json_in(text, MANIFEST)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise refused("is no export of a cache")
    if data.get("version") != VERSION:
        raise refused(f"was exported by another graphplan (format {data.get('version')}, not {VERSION})")
    try:
        return record_of(Manifest, data)
    except CacheError as error:
        raise refused(f"its manifest is wrong: {error}") from None


def _record(archive: zipfile.ZipFile, member: Member) -> Record:
    text = _read(archive, member.name, min(member.num_bytes, MAX_RECORD_BYTES))
    if len(text) != member.num_bytes or hashlib.sha256(text).hexdigest() != member.sha256:
        raise refused(f"{member.name} is not what was exported: its SHA-256 differs")
    found = _RECORD.fullmatch(member.name)
    if found is None:
        raise refused(f"{member.name} is no record")
    return stranger_record(Key(Kind(found[1]), found[2]), text, member.name)


def stranger_record(key: Key, text: bytes, name: str) -> Record:
    """The record ``key`` out of a stranger's ``text``, which messages call ``name``.

    Raises:
        CacheError: it is none, or a plan that is not what it says.
    """
    try:
        record = record_under(key, json_in(text, name))
        if isinstance(record, PlanRecord):
            record.checked()
    except CacheError as error:
        raise refused(f"{name}: {error}") from None
    return record


def _require_blobs(records: Iterable[Record], members: Iterable[Member]) -> None:
    """Each artifact has its file, of its size, under its hash, and each file an artifact."""
    sizes = {record.sha256: record.num_bytes for record in records if isinstance(record, ArtifactRecord)}
    files = {member.name: member for member in members if _BLOB.fullmatch(member.name)}
    if {f"{FOLDER}/{sha256}" for sha256 in sizes} != set(files):
        raise refused("its artifacts and its files do not belong to each other")
    for name, member in files.items():
        if name != f"{FOLDER}/{member.sha256}" or member.num_bytes != sizes[member.sha256]:
            raise refused(f"{name} is not named by its SHA-256, or has another size")


def has_sound(cache: PlanCache, key: Key) -> bool:
    """Whether a record is there that can be used, with its file; a damaged one gives way.

    Raises:
        CacheError: the database cannot be read.
    """
    try:
        record = cache.look(key)
        if isinstance(record, ArtifactRecord):
            cache.blobs.verify(record.sha256)
    except CacheError as error:
        if error.fault in (Fault.ALTERED, Fault.MISSING):
            return False
        raise
    return record is not None


def _chunks(archive: zipfile.ZipFile, member: Member) -> Iterator[bytes]:
    """The content of an artifact, verified once it is read to the end."""
    if member.num_bytes > MAX_BLOB_BYTES:
        raise refused(f"{member.name} is larger than {MAX_BLOB_BYTES // 2**30} GiB")
    digest, left = hashlib.sha256(), member.num_bytes
    with archive.open(member.name) as stream:
        while left > 0 and (chunk := stream.read(min(CHUNK, left))):
            digest.update(chunk)
            left -= len(chunk)
            yield chunk
        if left > 0 or stream.read(1) or digest.hexdigest() != member.sha256:
            raise refused(f"{member.name} is not what was exported: its SHA-256 differs")


def _read(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """A member of at most ``most`` bytes, whatever it says of its own size."""
    stream: IO[bytes]
    with archive.open(name) as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise refused(f"{name} is larger than {most} bytes")
    return data


def json_in(text: bytes, name: str) -> Json:
    """The JSON value of a stranger's ``text``, which messages call ``name``.

    Raises:
        CacheError: it is none.
    """
    try:
        data: Json | Mapping[str, Json] = json.loads(text)
    except (ValueError, RecursionError):
        raise refused(f"{name} is no JSON") from None
    return data


def refused(why: str) -> CacheError:
    """The error of something that cannot be imported."""
    return CacheError(why, fault=Fault.INVALID)
