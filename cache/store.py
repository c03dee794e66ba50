"""PlanCache: what the verbs of a cache do, each to its end or not at all."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from attrs import frozen

from cache import catalogue, maintenance
from cache.archive import Imported, export_archive, import_archive
from cache.blobs import Blobs
from cache.captures import CaptureLookup, CaptureRecordV1
from cache.catalogue import Summary
from cache.connection import TIMEOUT, Connection
from cache.directory import (
    DATABASE,
    JOURNALS,
    Access,
    access_to,
    databases_set_aside,
    directory_of,
    name_of,
    prepare_directory,
)
from cache.errors import CacheError, Fault
from cache.fingerprint import EnvironmentFingerprint, ModelFingerprint
from cache.keys import Key, artifact_key, as_digest, capture_key, plan_key, traffic_key
from cache.kinds import record_under
from cache.maintenance import CheckReport, Pruned
from cache.records import ArtifactRecord, PlanRecord, Record, TrafficRecord
from cache.tables import JsonTable, Kind, set_up
from planner.descriptors import PlanEntry
from planner.documents.deployment import Deployment
from planner.documents.digest import PREFIX
from planner.documents.plan import Plan

Content = bytes | bytearray | memoryview | Iterable[bytes]
"""An artifact as a whole, or piece by piece."""


@frozen(kw_only=True)
class Stats:
    """What a cache holds; sizes in bytes. ``records`` counts by kind."""

    directory: str
    access: str
    records: Mapping[str, int]
    record_bytes: int
    database_bytes: int
    num_blobs: int
    blob_bytes: int
    set_aside: tuple[str, ...]


class PlanCache:
    """Plans, captures, traffic and artifacts in one directory. Usable from all threads, and after a fork.

    ``timeout`` bounds each call, in seconds, waiting for other processes included; only a system whose
    disk does not answer can exceed it. Files of artifacts take as long as their bytes do. ``create``
    makes the directory; ``read_only`` leaves everything as it is.

    Raises:
        CacheError: the directory is refused, or its database cannot be used.
    """

    def __init__(
        self,
        directory: Path | str | None = None,
        *,
        timeout: float = TIMEOUT,
        create: bool = True,
        read_only: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.directory = directory_of(directory)
        prepare_directory(self.directory, create=create and not read_only)
        self.access = access_to(self.directory, read_only=read_only)
        if not os.path.lexists(self.directory / DATABASE) and (self.access is not Access.WRITE or not create):
            raise CacheError("there is no cache here", fault=Fault.MISSING, path=name_of(self.directory))
        self.clock = clock
        self.blobs = Blobs(self.directory)
        self.connection = Connection(self.directory / DATABASE, self.access, timeout, set_up)
        self._uses: Counter[Key] = Counter()
        self.tables = {kind: JsonTable(self.connection, kind) for kind in Kind}

    def __enter__(self) -> PlanCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Notes what was used, if that is possible, and closes the database; a later call opens it again."""
        with suppress(CacheError):
            self.flush_uses()
        self.connection.close()

    # Any record.

    def get(self, key: Key) -> Record | None:
        """The record under ``key``, ``None`` where there is none.

        Raises:
            CacheError: it is not what was put, or the database cannot be read.
        """
        record = self.look(key)
        if record is not None:
            self._uses[key] += 1
        return record

    def look(self, key: Key) -> Record | None:
        """``get`` that does not count as a use.

        Raises:
            CacheError: it is not what was put, or the database cannot be read.
        """
        try:
            data = self.tables[key.kind][key.digest]
            return record_under(key, data)
        except KeyError:
            return None
        except CacheError as error:
            error.path = error.path or f"{name_of(self.directory / DATABASE)}: {key}"
            raise

    def put(self, record: Record) -> Key:
        """Stores a record in the place of any that has its key; it is on disk once this returns.

        Raises:
            CacheError: it cannot be stored; nothing has changed then.
        """
        key = record.key
        extra = record.num_bytes if isinstance(record, ArtifactRecord) else 0
        with self.connection.transaction():
            self._writable(key.kind)[key.digest] = record.as_json()
            catalogue.enter(self.connection, record, self.clock(), extra)
            self.flush_uses()
        return key

    def remove(self, keys: Iterable[Key]) -> None:
        """Removes records, and files that no record names any more.

        Raises:
            CacheError: the database cannot be written.
        """
        with self.connection.transaction():
            catalogue.remove(self.connection, keys)
        maintenance.sweep(self)

    def flush_uses(self) -> None:
        """Notes which records were used since the last time; reading itself writes nothing.

        Raises:
            CacheError: the database cannot be written.
        """
        if not self._uses or self.access is not Access.WRITE:
            return
        uses, self._uses = self._uses, Counter()
        with self.connection.transaction():
            catalogue.count_uses(self.connection, uses, self.clock())

    # Plans.

    def put_plan(self, plan: Plan) -> Key:
        """Stores a plan as ``compile_plan`` returned it.

        Raises:
            CacheError: it cannot be stored.
        """
        return self.put(PlanRecord.of(plan, created=self.clock()))

    def get_plan(self, deployment: Deployment) -> Plan | None:
        """The plan that ``compile_plan`` returns for ``deployment``, if it is stored.

        Raises:
            CacheError: it is not what was put, or the database cannot be read.
        """
        record = self.get(plan_key(deployment))
        return record.plan(deployment) if isinstance(record, PlanRecord) else None

    # Captures.

    def put_capture(self, record: CaptureRecordV1) -> Key:
        """Stores a capture; those that it differs from only in what was not known give way to it.

        Raises:
            CacheError: it cannot be stored.
        """
        with self.connection.transaction():
            key = self.put(record)
            superseded = [
                other.key
                for other in self._captures(record.plan, record.family, record.rank)
                if other.key != key
                and not any(one.is_hard for one in other.mismatches(record.environment, record.model))
            ]
            catalogue.remove(self.connection, superseded)
        return key

    def find_capture(
        self,
        plan: str,
        environment: EnvironmentFingerprint,
        model: ModelFingerprint,
        family: str,
        rank: int = 0,
    ) -> CaptureLookup:
        """The capture of a plan's family on one rank under these circumstances, or what speaks against it.

        ``plan`` is the plan's ``stable_digest``.

        Raises:
            CacheError: it is not what was put, or the database cannot be read.
        """
        key = capture_key(plan, environment.digest, model.digest, family, rank)
        record = self.get(key)
        if isinstance(record, CaptureRecordV1) and not record.mismatches(environment, model):
            return CaptureLookup(record)
        differing = [other.mismatches(environment, model) for other in self._captures(plan, family, rank)]
        return CaptureLookup(None, min(differing, key=len, default=()))

    def _captures(self, plan: str, family: str, rank: int) -> tuple[CaptureRecordV1, ...]:
        """All readable captures of a plan's family on one rank, the last used first."""
        found = []
        for summary in catalogue.summaries(
            self.connection, kind=str(Kind.CAPTURE), plan=plan.removeprefix(PREFIX), family=family, rank=rank
        ):
            with suppress(CacheError):
                record = self.look(summary.key)
                if isinstance(record, CaptureRecordV1):
                    found.append(record)
        return tuple(found)

    # Traffic.

    def add_usage(
        self, plan: str, family: str, counts: Mapping[PlanEntry, int], *, eager: int = 0, model_name: str = ""
    ) -> None:
        """Adds up how often entries were replayed; from several processes at once, nothing is lost.

        ``eager`` counts batches without a graph.

        Raises:
            CacheError: it cannot be stored.
        """
        with self.connection.transaction():
            record = self._traffic(plan, family) or TrafficRecord(
                plan=plan, family=family, model_name=model_name, created=self.clock()
            )
            self.put(record.plus(counts, eager, self.clock()))

    def _traffic(self, plan: str, family: str) -> TrafficRecord | None:
        try:
            return self.usage(plan, family)
        except CacheError as error:
            if error.fault is Fault.ALTERED:
                return None
            raise

    def usage(self, plan: str, family: str) -> TrafficRecord | None:
        """What was replayed of a plan's family, if anything is known.

        Raises:
            CacheError: it is not what was put, or the database cannot be read.
        """
        record = self.get(traffic_key(plan, family))
        return record if isinstance(record, TrafficRecord) else None

    # Artifacts.

    def put_artifact(self, capture: CaptureRecordV1, name: str, content: Content) -> ArtifactRecord:
        """Stores a file that belongs to a capture; it is on disk once this returns.

        Raises:
            CacheError: it cannot be stored; nothing has changed then.
        """
        self._writable(Kind.ARTIFACT)
        if isinstance(content, bytes | bytearray | memoryview):
            content = (bytes(content),)
        unnamed = self.blobs.write(content)
        record = ArtifactRecord(
            capture=capture.key.digest,
            name=name,
            sha256=unnamed.sha256,
            num_bytes=unnamed.num_bytes,
            plan=capture.plan,
            model_name=capture.model_name,
            created=self.clock(),
        )
        try:
            with self.connection.transaction():  # in which nobody sweeps
                self.blobs.adopt(unnamed)
                self.put(record)
        except BaseException:
            self.blobs.discard(unnamed)
            raise
        return record

    def get_artifact(self, capture: Key, name: str) -> bytes | None:
        """The file ``name`` of a capture, verified; ``None`` where none was put.

        Raises:
            CacheError: it is gone or altered, or the database cannot be read.
        """
        record = self.get(artifact_key(capture, name))
        return (
            self.blobs.read(record.sha256, record.num_bytes) if isinstance(record, ArtifactRecord) else None
        )

    # The cache as a whole.

    def find(
        self,
        *,
        kind: Kind | None = None,
        model: str | None = None,
        gpu: str | None = None,
        engine: str | None = None,
        digest_prefix: str | None = None,
    ) -> tuple[Summary, ...]:
        """Records whose words contain these, in any case, and whose key or plan's digest begins so.

        The last used comes first.

        Raises:
            CacheError: ``digest_prefix`` is none, or the database cannot be read.
        """
        words = {"model": model, "gpu": gpu, "engine": engine}
        return catalogue.summaries(
            self.connection,
            containing={name: word for name, word in words.items() if word is not None},
            start=as_digest(digest_prefix) if digest_prefix is not None else "",
            **({"kind": str(kind)} if kind is not None else {}),
        )

    def list(self) -> tuple[Summary, ...]:
        """All records, the last used first.

        Raises:
            CacheError: the database cannot be read.
        """
        return self.find()

    def stats(self) -> Stats:
        """Numbers and sizes.

        Raises:
            CacheError: the database cannot be read.
        """
        records = self.find()
        blobs = self.blobs.named()
        pages = [self.connection.select_one(f"PRAGMA {name}") for name in ("page_count", "page_size")]
        return Stats(
            directory=name_of(self.directory),
            access=self.access.name.lower(),
            records={str(kind): sum(one.key.kind is kind for one in records) for kind in Kind},
            record_bytes=sum(one.num_bytes for one in records),
            database_bytes=pages[0][0] * pages[1][0] if pages[0] and pages[1] else 0,
            num_blobs=len(blobs),
            blob_bytes=sum(blobs.values()),
            set_aside=tuple(
                path.name for path in databases_set_aside(self.directory) if not path.name.endswith(JOURNALS)
            ),
        )

    def check(self, *, fix: bool = False) -> CheckReport:
        """Reads everything and says what is not as it was put; ``fix`` removes that.

        Raises:
            CacheError: the database cannot be read.
        """
        return maintenance.check(self, fix=fix)

    def prune(
        self, *, max_bytes: int | None = None, max_age: float | None = None, max_records: int | None = None
    ) -> Pruned:
        """Removes the least recently used records until what is left is within the limits.

        ``max_bytes`` includes artifacts, ``max_age`` is in seconds since the last use. Also removes
        files that nothing names.

        Raises:
            CacheError: the database cannot be written.
        """
        return maintenance.prune(self, max_bytes=max_bytes, max_age=max_age, max_records=max_records)

    def clear(self) -> Pruned:
        """Removes all records and files, and databases that were set aside.

        Raises:
            CacheError: the database cannot be written.
        """
        return maintenance.clear(self)

    def export(self, file: Path, keys: Iterable[Key] | None = None) -> int:
        """Writes records, by default all, with their files into one file; returns their number.

        Raises:
            CacheError: a record is not what was put, or the file cannot be written.
        """
        return export_archive(self, file, keys)

    def import_(self, file: Path) -> Imported:
        """Takes in what ``export`` wrote, after verifying all of it. Records that are there stay.

        Raises:
            CacheError: the file is not what ``export`` writes, or cannot be stored; of the records,
                none is stored then.
        """
        return import_archive(self, file)

    def _writable(self, kind: Kind) -> JsonTable:
        if self.access is not Access.WRITE:
            raise CacheError(
                "the cache can be read only", fault=Fault.READ_ONLY, path=name_of(self.directory)
            )
        return self.tables[kind]
