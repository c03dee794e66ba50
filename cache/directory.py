"""Where the cache lies, and which directories are refused."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

from cache.errors import CacheError, Fault
from planner.documents.tree import printable

VARIABLE = "GRAPHPLAN_CACHE"
NAME = "graphplan"
DATABASE = "cache-v1.sqlite"
"""The number is that of the schema: a program with another one has a database of its own."""

JOURNALS = ("-journal", "-wal", "-shm")

MOST_SET_ASIDE = 9
"""Databases that are kept; the last one gives way to the next."""

LONGEST_RENAME = 2.0
"""Seconds to wait for another process that renames."""

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Access(Enum):
    """How a database is opened. ``IMMUTABLE`` takes no locks: nobody can write to it."""

    WRITE = "rwc"
    READ = "ro"
    IMMUTABLE = "ro&immutable=1"


def directory_of(named: Path | str | None) -> Path:
    """The directory ``named``, or the default one for ``None``.

    Raises:
        CacheError: the name is empty, which ``Path`` would take for the current directory, or no home
            directory is known.
    """
    if named is None:
        return default_directory()
    if isinstance(named, str) and not named.strip():
        raise CacheError("the name of the cache's directory is empty; give a directory", fault=Fault.INVALID)
    return Path(named)


def default_directory(environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """``GRAPHPLAN_CACHE``, or else, also where it is empty, the platform's own place for caches.

    Raises:
        CacheError: no home directory is known.
    """
    if (named := environ.get(VARIABLE, "")).strip():
        return Path(named)
    base = environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification has relative paths ignored.
    if os.path.isabs(base):
        return Path(base) / NAME
    home = environ.get("HOME") or os.path.expanduser("~")
    if not os.path.isabs(home):
        raise CacheError(
            f"no home directory is known; name a directory with --cache or {VARIABLE}",
            fault=Fault.UNREACHABLE,
        )
    return Path(home) / ("Library/Caches" if platform == "darwin" else ".cache") / NAME


def prepare_directory(directory: Path, *, create: bool) -> None:
    """Makes sure that ``directory`` is there and is nobody else's; a new one has mode 0700.

    Raises:
        CacheError: it is refused, cannot be made, or is not there with ``create=False``.
    """
    try:
        found = _status(directory)
        if found is None and create:
            directory.parent.mkdir(parents=True, exist_ok=True)
            directory.mkdir(mode=0o700, exist_ok=True)
            found = _status(directory)
    except (OSError, ValueError) as error:
        raise unreachable(directory, "the cache cannot be made", error) from None
    if found is None:
        raise CacheError("there is no cache here", fault=Fault.MISSING, path=name_of(directory))
    if reason := refusal(found, os.geteuid()):
        raise CacheError(reason, fault=Fault.UNSAFE, path=name_of(directory))


def _status(path: Path) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def refusal(found: os.stat_result, user: int) -> str | None:
    """Why a directory with this status is no place for the cache of ``user``, if it is not.

    What is cached is run on the GPU or shown as a plan, so nobody else may have a hand in it but root,
    who bakes images.
    """
    if stat.S_ISLNK(found.st_mode):
        return "is a symbolic link, which may lead anywhere; give the directory itself"
    if not stat.S_ISDIR(found.st_mode):
        return "is no directory; give another place with --cache or GRAPHPLAN_CACHE"
    if found.st_uid not in (user, 0):
        return f"belongs to user {found.st_uid}, not to you (user {user}); give a directory of your own"
    if found.st_mode & stat.S_IWOTH:
        return "everybody may write to it; take that right away with chmod o-w, or give another directory"
    return None


def access_to(directory: Path, *, read_only: bool = False) -> Access:
    """How the database in ``directory`` can be opened; ``read_only`` asks for no more than reading."""
    database = directory / DATABASE
    try:
        if os.statvfs(directory).f_flag & os.ST_RDONLY:
            return Access.IMMUTABLE
        is_writable = os.access(directory, os.W_OK | os.X_OK) and (
            not os.path.lexists(database) or os.access(database, os.W_OK)
        )
    except OSError as error:
        raise unreachable(directory, "the cache cannot be reached", error) from None
    return Access.WRITE if is_writable and not read_only else Access.READ


def set_aside(directory: Path, *, found: tuple[int, int] | None = None) -> Path | None:
    """Renames the database, so that a new one can be begun; the new name, or ``None`` if there was none.

    ``found`` is the ``identity`` of the database that is unusable: where another process was quicker,
    and a different file has the name by now, that one stays.

    Raises:
        CacheError: it cannot be renamed.
    """
    database = directory / DATABASE
    try:
        with _one_at_a_time(directory):
            if found is not None and identity(database) != found:
                return None
            return _rename(database)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreachable(database, "cannot be set aside", error) from None


def _rename(database: Path) -> Path:
    number = 1
    while number < MOST_SET_ASIDE and os.path.lexists(_aside(database, number)):
        number += 1
    target = _aside(database, number)
    # Journals first: a new database must not find the old one's and roll it back.
    for suffix in JOURNALS:
        journal = database.with_name(database.name + suffix)
        if os.path.lexists(journal):
            journal.replace(f"{target}{suffix}")
    database.replace(target)
    return target


@contextmanager
def _one_at_a_time(directory: Path) -> Iterator[None]:
    """Lets one process rename; the others wait for it, but not for long."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        deadline = time.monotonic() + LONGEST_RENAME
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        yield
    finally:
        os.close(handle)


def _aside(database: Path, number: int) -> Path:
    return database.with_name(f"{database.name}.set-aside-{number}")


def databases_set_aside(directory: Path) -> list[Path]:
    """What earlier runs could not use, with their journals."""
    try:
        return sorted(directory.glob(f"{DATABASE}.set-aside-*"))
    except OSError as error:
        raise unreachable(directory, "cannot be listed", error) from None


def identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file that has this name now; ``None`` where nothing is known of one."""
    try:
        found = _status(path)
    except (OSError, ValueError):
        return None
    return None if found is None else (found.st_dev, found.st_ino)


def name_of(path: Path) -> str:
    """How messages call a path."""
    return printable(str(path))


def unreachable(path: Path, what: str, error: OSError | ValueError) -> CacheError:
    """The error of an operation that the system refused."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    fault = Fault.FULL if isinstance(error, OSError) and error.errno in _NO_ROOM else Fault.UNREACHABLE
    return CacheError(f"{what}: {printable(reason)}", fault=fault, path=name_of(path))
