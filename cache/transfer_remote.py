"""A folder at any URL that fsspec knows, read and written one whole object at a time."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from cache.blobs import sync_folder
from cache.directory import name_of, unreachable
from cache.errors import CacheError, Fault
from planner.documents.tree import printable

READ_ONLY = ("http", "https")

LONGEST_READ = 1 << 20
"""Bytes that are asked for at a time; more may come than an object should have."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.:-]*)://.*", re.DOTALL)
_USER = re.compile(r"(://)[^/@]*@")


def is_url(name: str) -> bool:
    """Whether ``name`` is a URL, and not the name of a file."""
    return _URL.fullmatch(name) is not None


class Remote:
    """The folder at ``url``. Whatever a file system raises comes out as a ``CacheError``.

    Raises:
        CacheError: fsspec, or what it needs for such a URL, is not installed, or there is no such URL.
    """

    def __init__(self, url: str) -> None:
        self.name = printable(_USER.sub(r"\1", url))
        """How messages call the folder: without a user's name and password."""
        found = _URL.fullmatch(url)
        self._scheme = "" if found is None else found[1].lower()
        if self._scheme in READ_ONLY and ("?" in url or "#" in url):
            raise self._error("a folder's URL has no ? and no #; leave that away", Fault.INVALID)
        self._fs, path = self._connected(url)
        self._path = path.rstrip("/")
        self._is_local = type(self._fs).__name__ == "LocalFileSystem"

    def _connected(self, url: str) -> tuple[Any, str]:
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            what = "URLs need fsspec: pip install 'graphplan[fleet]'"
            raise self._error(what, Fault.INVALID) from None
        try:
            found: tuple[Any, str] = url_to_fs(url)
        except ImportError as error:
            raise self._error(f"such a URL needs a package more: {error}", Fault.INVALID) from None
        except Exception as error:  # noqa: BLE001 - file systems raise what they like
            raise self._error(f"is no URL to transfer to or from: {error}", Fault.INVALID) from None
        return found

    def require_writable(self) -> None:
        """Refuses URLs that can only be read.

        Raises:
            CacheError: this is one.
        """
        if self._scheme in READ_ONLY:
            what = "can be read only; export to a folder that the server serves"
            raise self._error(what, Fault.READ_ONLY)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps other exports out of a folder on this machine; elsewhere nothing does.

        Raises:
            CacheError: another export is under way, or the folder cannot be made.
        """
        if not self._is_local:
            yield
            return
        with locked(Path(self._path), "another export is under way; wait for its end"):
            yield

    def read(self, name: str, most: int) -> bytes:
        """The object ``name``, of at most ``most`` bytes.

        Raises:
            CacheError: it is not there, is larger, or cannot be read.
        """
        # Without a block size, HTTP is one request for the whole; the size only keeps it from asking first.
        how = {"block_size": 0, "size": 1} if self._scheme in READ_ONLY else {}
        with self._told(f"{name} cannot be read"), self._fs.open(self._at(name), "rb", **how) as file:
            data = _read_up_to(file, most + 1)
        if len(data) > most:
            raise self._error(f"{name} is larger than the {most} bytes that it should have", Fault.INVALID)
        return data

    def write(self, name: str, data: bytes) -> None:
        """Puts an object in its place, whole or not at all where the file system can do that.

        Local folders and object stores can. Elsewhere a reader may see half of one, and finds out.

        Raises:
            CacheError: it cannot be written.
        """
        path = self._at(name)
        with self._told(f"{name} cannot be written"):
            if self._is_local:
                _write_file(Path(path), data)
                return
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(path, data)

    def sizes(self, folder: str) -> dict[str, int]:
        """Names and sizes of the objects in a folder, which need not be there."""
        try:
            with self._told(f"{folder} cannot be listed"):
                self._fs.invalidate_cache()
                rows = self._fs.ls(self._at(folder), detail=True)
        except CacheError as error:
            if error.fault is Fault.MISSING:
                return {}
            raise
        return {
            str(row["name"]).rpartition("/")[2]: int(row["size"])
            for row in rows
            if row.get("type") == "file" and row.get("size") is not None
        }

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise self._error(f"{what}: it is not there", Fault.MISSING) from None
        except OSError as error:
            told = unreachable(Path(self._path), what, error)
            told.path = self.name
            raise told from None
        except Exception as error:  # noqa: BLE001 - file systems raise what they like
            raise self._error(f"{what}: {type(error).__name__}: {error}", Fault.UNREACHABLE) from None

    def _error(self, what: str, fault: Fault) -> CacheError:
        return CacheError(what, fault=fault, path=self.name)


@contextmanager
def locked(folder: Path, busy: str) -> Iterator[None]:
    """Holds the lock of a folder, which is made if need be; a process that is killed lets go of it.

    Raises:
        CacheError: another process holds it, which ``busy`` says, or the system refuses.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (OSError, ValueError) as error:
        raise unreachable(folder, "cannot be written", error) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CacheError(busy, fault=Fault.LOCKED, path=name_of(folder)) from None
        except OSError as error:
            raise unreachable(folder, "cannot be locked", error) from None
        yield
    finally:
        os.close(handle)


def _read_up_to(file: BinaryIO, most: int) -> bytes:
    """Reads to the end, or ``most`` bytes; a stream hands out what it has, not what it is asked for."""
    chunks, left = [], most
    while left > 0 and (chunk := file.read(min(left, LONGEST_READ))):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def _write_file(path: Path, data: bytes) -> None:
    """A file that has its name once it is on disk. The lock of the folder keeps other writers away."""
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)
