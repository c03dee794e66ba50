"""The one SQLite connection of a cache: errors at the call, and no call without an end.

It keeps a rollback journal (``journal_mode=TRUNCATE``) instead of a write-ahead log: a cache is then
one file that read-only mounts and images can hold, needs no shared memory, which network file systems
lack, and a commit is on disk when it returns. What a log would gain, writers that do not wait for
readers, is nothing to a cache that is written a few times a start.

Nothing else may open the database's file in this process: POSIX drops all of a process's locks on a
file as soon as any of its descriptors is closed.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote
from weakref import WeakSet

from cache.directory import Access, identity, name_of, unreachable
from cache.errors import CacheError, Fault

TIMEOUT = 30.0
"""Seconds that a call may take, waiting for other processes included."""

PAUSE_FOR_FORK = 1.0
"""Seconds that a fork waits for a call in another thread."""

STEPS_BETWEEN_LOOKS = 10_000
"""Steps of SQLite's machine between two looks at the clock."""

SET_ASIDE = "planner cache check --fix sets it aside"

Setup = Callable[["Connection"], None]


class Connection:
    """A connection that opens itself, and opens anew in a forked process or after it broke.

    It has the methods that ``SqliteDict`` calls on its own. ``setup`` is run on each new connection;
    ``timeout`` is the limit of a call in seconds.
    """

    autocommit = True

    def __init__(self, path: Path, access: Access, timeout: float, setup: Setup) -> None:
        self.path = path
        self.access = access
        self.timeout = timeout
        self.identity: tuple[int, int] | None = None
        self._setup = setup
        self._begin()
        _OPEN.add(self)

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._pid = os.getpid()
        self._depth = 0
        self._deadline = 0.0
        self._is_paused = False
        self._is_stranded = False

    # What SqliteDict calls.

    def execute(self, statement: str, arguments: Sequence[Any] = ()) -> None:
        """Runs one statement, in a transaction of its own where none is open.

        Raises:
            CacheError: it failed.
        """
        with self._call() as db:
            db.execute(statement, arguments)

    def executemany(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Runs one statement for each of ``rows``, all or none.

        Raises:
            CacheError: it failed.
        """
        with self.transaction(), self._call() as db:
            db.executemany(statement, rows)

    def select(self, statement: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query, read to the end, so that no lock stays.

        Raises:
            CacheError: it failed.
        """
        with self._call() as db:
            return db.execute(statement, arguments).fetchall()

    def select_one(self, statement: str, arguments: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """The first row of a query, if there is one.

        Raises:
            CacheError: it failed.
        """
        rows = self.select(statement, arguments)
        return rows[0] if rows else None

    def commit(self, blocking: bool = True) -> None:
        """Nothing: a transaction ends where its ``with`` block does, and single statements by themselves."""

    def close(self, force: bool = False) -> None:  # noqa: ARG002 - SqliteDict's signature
        """Closes the connection; a later call opens a new one."""
        with suppress(CacheError), self._alone():
            self._drop()

    # What the cache calls.

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside happens or nothing does; nested ones join the outer.

        The right to write is taken at the start, so that nothing read inside can change meanwhile.

        Raises:
            CacheError: the right to write is not to be had in time, or the commit failed.
        """
        with self._block("BEGIN IMMEDIATE"):
            yield

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Everything read inside is of one moment.

        Raises:
            CacheError: the database cannot be read.
        """
        with self._block("BEGIN"):
            yield

    @contextmanager
    def _block(self, begin: str) -> Iterator[None]:
        with self._call() as db:
            if db.in_transaction:
                yield
                return
            db.execute(begin)
            try:
                yield
                self._wait_within_limit(db)
                db.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        db = self._db
        try:
            if db is not None and db.in_transaction:
                db.set_progress_handler(None, 0)  # the deadline may have passed; undoing is not subject to it
                db.execute("ROLLBACK")
                self._watch(db)
        except sqlite3.Error:
            # Whoever opens the database next, this process included, rolls back from the journal.
            self._drop()

    @contextmanager
    def _call(self) -> Iterator[sqlite3.Connection]:
        """The connection for one call, with all that can go wrong said in one way."""
        deadline = time.monotonic() + self.timeout
        with self._alone():
            if self._depth == 0:
                self._deadline = deadline
            self._depth += 1
            try:
                db = self._opened()
                self._wait_within_limit(db)
                yield db
            except sqlite3.Error as error:
                raise self._fault_of(error) from None
            except UnicodeEncodeError:
                # Half a surrogate pair, or bytes on a command line that are no text.
                raise self._error("stores no text that is no Unicode", Fault.INVALID) from None
            except MemoryError:
                raise self._error("needs more memory than there is", Fault.CORRUPT) from None
            finally:
                self._depth -= 1

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._pid != os.getpid():
            self._leave_to_the_parent()
        lock = self._lock
        if not lock.acquire(timeout=self.timeout):
            raise self._error(
                f"another thread has used the cache for more than {self.timeout:g} s", Fault.LOCKED
            )
        try:
            yield
        finally:
            lock.release()

    def _opened(self) -> sqlite3.Connection:
        if self._is_stranded:
            raise self._error(
                "the process was forked in the middle of a call; open the cache after the fork", Fault.LOCKED
            )
        if self._db is None:
            self._db = self._connect()
            try:
                self._prepare(self._db)
                self._setup(self)
            except BaseException:
                self._drop()
                raise
            self.identity = identity(self.path)
        return self._db

    def _connect(self) -> sqlite3.Connection:
        refuse_other_than_file(self.path)
        db = sqlite3.connect(
            f"file:{quote(str(self.path))}?mode={self.access.value}",
            uri=True,
            timeout=self.timeout,
            isolation_level=None,
            check_same_thread=False,
        )
        # A flipped bit may make text no UTF-8; its checksum tells, and says it better than sqlite3.
        db.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        self._watch(db)
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        if self.access is Access.IMMUTABLE and _has_content(Path(f"{self.path}-journal")):
            raise self._error(
                "was left in the middle of a write, and cannot be put right on a read-only file system; "
                "copy it when nobody writes, or use planner cache export",
                Fault.CORRUPT,
            )
        db.execute("PRAGMA trusted_schema=OFF")
        db.execute("PRAGMA cell_size_check=ON")
        if self.access is Access.WRITE:
            db.execute("PRAGMA journal_mode=TRUNCATE")
            db.execute("PRAGMA synchronous=FULL")

    def _watch(self, db: sqlite3.Connection) -> None:
        db.set_progress_handler(lambda: time.monotonic() > self._deadline, STEPS_BETWEEN_LOOKS)

    def _wait_within_limit(self, db: sqlite3.Connection) -> None:
        left = max(0, int(1000 * (self._deadline - time.monotonic())))
        db.execute(f"PRAGMA busy_timeout={left}")

    def _drop(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with suppress(sqlite3.Error):
                db.close()

    # Forks. SQLite's connections do not survive one: not even closing is safe in the child.

    def pause(self) -> None:
        """Waits for the end of a call, and lets none begin."""
        self._is_paused = self._lock.acquire(timeout=PAUSE_FOR_FORK)

    def resume(self) -> None:
        """Lets calls begin again, in the process that forked."""
        if self._is_paused:
            self._is_paused = False
            self._lock.release()

    def _leave_to_the_parent(self) -> None:
        """Forgets the connection of the parent process without closing it, in the child."""
        was_in_a_call = not self._is_paused or self._depth > 0
        if self._db is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._db))
        self._begin()
        self._is_stranded = was_in_a_call

    def after_fork(self) -> None:
        """Begins anew in a forked process."""
        if self._pid != os.getpid():
            self._leave_to_the_parent()

    # Faults.

    def _fault_of(self, error: sqlite3.Error) -> CacheError:
        code = getattr(error, "sqlite_errorcode", None)
        name = getattr(error, "sqlite_errorname", None) or type(error).__name__
        if code is None:
            return self._error(f"{error} ({name})", Fault.CORRUPT, SET_ASIDE)
        primary = code & 0xFF
        if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            what = f"another process has held it for more than {self.timeout:g} s; try again when it is done"
            return self._error(what, Fault.LOCKED)
        if primary == sqlite3.SQLITE_INTERRUPT:
            return self._error(f"this took more than {self.timeout:g} s", Fault.LOCKED)
        if primary == sqlite3.SQLITE_FULL or code in _WRITING:
            what = "the disk is full, or a quota or a limit on the size of files is reached"
            return self._error(f"{what} ({error}); nothing of it was stored: make room", Fault.FULL)
        if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
            return self._error(f"can be read only ({name})", Fault.READ_ONLY)
        if primary == sqlite3.SQLITE_NOTADB:
            return self._error("is no SQLite database", Fault.CORRUPT, SET_ASIDE)
        if primary in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOLFS):
            return self._error(f"cannot be reached: {error} ({name})", Fault.UNREACHABLE)
        if primary == sqlite3.SQLITE_TOOBIG:
            return self._error("a record is too large", Fault.INVALID)
        return self._error(f"is damaged: {error} ({name})", Fault.CORRUPT, SET_ASIDE)

    def _error(self, message: str, fault: Fault, fix: str | None = None) -> CacheError:
        return CacheError(message, fault=fault, path=name_of(self.path), fix=fix)


_WRITING = frozenset(
    {
        sqlite3.SQLITE_IOERR_WRITE,
        sqlite3.SQLITE_IOERR_FSYNC,
        sqlite3.SQLITE_IOERR_DIR_FSYNC,
        sqlite3.SQLITE_IOERR_TRUNCATE,
    }
)

_OPEN: WeakSet[Connection] = WeakSet()
"""All connections of this process: a fork concerns the process as a whole."""


def _each(act: Callable[[Connection], None]) -> Callable[[], None]:
    def hook() -> None:
        for connection in list(_OPEN):
            act(connection)

    return hook


os.register_at_fork(
    before=_each(Connection.pause),
    after_in_parent=_each(Connection.resume),
    after_in_child=_each(Connection.after_fork),
)


def refuse_other_than_file(path: Path) -> None:
    """Refuses what has the database's name and is none: opening a pipe would wait for somebody to write.

    Raises:
        CacheError: there is such a thing.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise unreachable(path, "cannot be reached", error) from None
    if not stat.S_ISREG(mode):
        raise CacheError(
            "is no file of its own but a link, a folder or a device", fault=Fault.FOREIGN, path=name_of(path)
        )


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False
