"""Keeping a cache sound and small: check, prune, clear."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from cache import catalogue
from cache.catalogue import Summary
from cache.connection import TIMEOUT
from cache.directory import (
    DATABASE,
    Access,
    databases_set_aside,
    directory_of,
    identity,
    name_of,
    set_aside,
)
from cache.errors import OF_THE_DATABASE, CacheError, Fault
from cache.keys import Key
from cache.records import ArtifactRecord, Record
from planner.describe import counted

if TYPE_CHECKING:
    from cache.store import PlanCache

MOST_FAULTS = 20
"""Faults of the database's structure that are told."""


@frozen
class Problem:
    """Something that is not as it was put, and what was done about it."""

    where: str
    what: str
    fix: str | None = None


@frozen(kw_only=True)
class CheckReport:
    """What reading everything found.

    ``leftovers`` counts files that nothing names: a killed process leaves them, and they harm nothing.
    """

    records: int
    problems: tuple[Problem, ...] = ()
    leftovers: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether all is as it was put, now that what could be fixed is."""
        return all(problem.fix is not None for problem in self.problems)


@frozen
class Pruned:
    """What was removed; ``num_bytes`` includes artifacts."""

    records: int
    num_bytes: int


def check_directory(
    directory: Path | str | None = None, *, fix: bool = False, timeout: float = TIMEOUT
) -> CheckReport:
    """``PlanCache.check`` of a directory whose database may be beyond opening: ``fix`` sets that aside.

    Raises:
        CacheError: there is no cache, or it cannot be reached.
    """
    from cache.store import PlanCache

    directory = directory_of(directory)
    found = identity(directory / DATABASE)
    try:
        with PlanCache(directory, timeout=timeout, create=False) as cache:
            return cache.check(fix=fix)
    except CacheError as error:
        if error.fault not in OF_THE_DATABASE:
            raise
        aside = set_aside(directory, found=found) if fix else None
        done = None if aside is None else f"set aside as {name_of(aside)}; a new one is begun when needed"
        return CheckReport(records=0, problems=(Problem(DATABASE, str(error), done),))


def check(cache: PlanCache, *, fix: bool) -> CheckReport:
    """Reads the database, every record and every file."""
    problems = [Problem(DATABASE, what) for what in _structural(cache)]
    if problems and fix:
        raise CacheError(problems[0].what, fault=Fault.CORRUPT, path=name_of(cache.directory / DATABASE))
    keys = sorted(
        catalogue.keys_in_tables(cache.connection) | catalogue.keys_in_catalogue(cache.connection), key=str
    )
    problems.extend(
        Problem(str(key), what, _mend(cache, key) if fix else None)
        for key in keys
        if (what := _fault_of(cache, key)) is not None
    )
    if strays := catalogue.count_strays(cache.connection):
        fixed = fix and cache.access is Access.WRITE
        if fixed:
            catalogue.remove_strays(cache.connection)
        what = f"has {counted(strays, 'line')} under no key that a record can have"
        problems.append(Problem(DATABASE, what, "removed" if fixed else None))
    if fix:
        sweep(cache)
    return CheckReport(records=len(keys), problems=tuple(problems), leftovers=len(_leftovers(cache)))


def _structural(cache: PlanCache) -> Iterator[str]:
    rows = cache.connection.select(f"PRAGMA integrity_check({MOST_FAULTS})")
    yield from (f"is damaged: {row[0]}" for row in rows if row[0] != "ok")


def _fault_of(cache: PlanCache, key: Key) -> str | None:
    """What is wrong with one record, its line in the catalogue, or its file."""
    try:
        with cache.connection.snapshot():
            record = cache.look(key)
            lines = catalogue.summaries(cache.connection, kind=str(key.kind), key=key.digest)
            size = catalogue.stored_bytes(cache.connection, key)
        if record is None:
            return "is in the catalogue, but there is no record" if lines else None
        if isinstance(record, ArtifactRecord):
            size += record.num_bytes
        if not lines or not _describes(lines[0], record, size):
            return "the catalogue has it wrong"
        if isinstance(record, ArtifactRecord):
            cache.blobs.verify(record.sha256)
    except CacheError as error:
        # Another process may have removed the record, and with it the file, a moment ago.
        gone = error.fault is Fault.MISSING and key not in catalogue.keys_in_tables(cache.connection)
        return None if gone else str(error)
    return None


def _describes(line: Summary, record: Record, size: int) -> bool:
    """Whether the catalogue's line says of a record what is so; what was used when, only the line knows."""
    told = (line.labels, line.blob, line.created, line.num_bytes)
    return told == (record.labels, record.blob, record.created, size)


def _mend(cache: PlanCache, key: Key) -> str | None:
    """Makes the catalogue's line anew if the record is good, and removes both if it is not."""
    if cache.access is not Access.WRITE:
        return None
    with cache.connection.transaction():
        record = _sound(cache, key)
        if record is None:
            catalogue.remove(cache.connection, (key,))
            return "removed"
        catalogue.forget(cache.connection, key)
        cache.put(record)
        return "entered anew"


def _sound(cache: PlanCache, key: Key) -> Record | None:
    try:
        record = cache.look(key)
        if isinstance(record, ArtifactRecord):
            cache.blobs.verify(record.sha256)
    except CacheError:
        return None
    return record


def prune(
    cache: PlanCache, *, max_bytes: int | None, max_age: float | None, max_records: int | None
) -> Pruned:
    """Removes the least recently used records beyond the limits."""

    def surplus() -> tuple[Summary, ...]:
        return beyond_limits(
            catalogue.summaries(cache.connection),
            cache.clock(),
            max_bytes=max_bytes,
            max_age=max_age,
            max_records=max_records,
        )

    with suppress(CacheError):
        cache.flush_uses()
    sweep(cache)
    try:
        removed = _remove(cache, surplus)
    except CacheError as error:
        if error.fault is not Fault.FULL:
            raise
        removed = surplus()
        _remove_with_little_room(cache, removed)
    sweep(cache)
    return Pruned(len(removed), sum(summary.num_bytes for summary in removed))


def _remove(cache: PlanCache, choose: Callable[[], tuple[Summary, ...]]) -> tuple[Summary, ...]:
    with cache.connection.transaction():
        surplus = choose()
        catalogue.remove(cache.connection, [summary.key for summary in surplus])
    return surplus


def _remove_with_little_room(cache: PlanCache, surplus: Sequence[Summary]) -> None:
    """Removes records on a full disk, where even taking out needs room for a journal.

    Files need none, so those that only these records name go first; then the records go one by one,
    each with a small journal, and each makes room for the next.
    """
    going = {summary.key for summary in surplus}
    staying = {one.blob for one in catalogue.summaries(cache.connection) if one.key not in going}
    for summary in surplus:
        if summary.blob is not None and summary.blob not in staying:
            cache.blobs.remove(summary.blob)
    for summary in reversed(surplus):
        _remove(cache, lambda summary=summary: (summary,))  # type: ignore[misc]


def beyond_limits(
    records: Sequence[Summary],
    now: float,
    *,
    max_bytes: int | None = None,
    max_age: float | None = None,
    max_records: int | None = None,
) -> tuple[Summary, ...]:
    """Those of ``records``, the last used first, that have to go.

    A record from the future, which a clock that was put back leaves, is of no age. One that is too
    large goes, and smaller ones that were used less recently go with it.
    """
    surplus, kept_bytes, kept, is_full = [], 0, 0, False
    for summary in records:
        is_full = (
            is_full
            or (max_bytes is not None and kept_bytes + summary.num_bytes > max_bytes)
            or (max_records is not None and kept >= max_records)
        )
        if is_full or (max_age is not None and now - summary.used > max_age):
            surplus.append(summary)
        else:
            kept_bytes += summary.num_bytes
            kept += 1
    return tuple(surplus)


def clear(cache: PlanCache) -> Pruned:
    """Removes everything, databases that were set aside included."""
    try:
        pruned = prune(cache, max_bytes=None, max_age=None, max_records=0)
    except CacheError as error:
        if error.fault is not Fault.FULL:
            raise
        records = catalogue.summaries(cache.connection)
        pruned = Pruned(len(records), sum(summary.num_bytes for summary in records))
        cache.connection.close()
        set_aside(cache.directory)
    for path in databases_set_aside(cache.directory):
        with suppress(OSError):
            path.unlink()
    return pruned


def sweep(cache: PlanCache) -> None:
    """Removes files that no record names; nobody can name one meanwhile."""
    if not _leftovers(cache):
        return
    with cache.connection.transaction():
        used = catalogue.blobs_in_use(cache.connection)
        for name in cache.blobs.named():
            if name not in used:
                cache.blobs.remove(name)
    for path in cache.blobs.abandoned():
        with suppress(OSError):
            path.unlink()


def _leftovers(cache: PlanCache) -> tuple[str, ...]:
    used = catalogue.blobs_in_use(cache.connection)
    unnamed = [name for name in cache.blobs.named() if name not in used]
    return (*unnamed, *(path.name for path in cache.blobs.abandoned()))
