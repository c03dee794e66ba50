"""Large artifacts as files named by their SHA-256, each complete or not there."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from attrs import frozen

from cache.directory import name_of, unreachable
from cache.errors import CacheError, Fault
from cache.keys import HEX_DIGEST

FOLDER = "blobs"

MAX_BLOB_BYTES = 16 * 2**30
CHUNK = 1 << 20

ABANDONED_AFTER = 3600.0
"""Seconds since its last write, or until it in a clock that went backwards, after which nobody writes
to a temporary file any more."""

_TEMPORARY = "writing-"


@frozen
class Unnamed:
    """Content that is on disk under a temporary name."""

    path: Path
    sha256: str
    num_bytes: int


class Blobs:
    """The folder of artifacts inside the cache's ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._folder = directory / FOLDER

    def write(self, chunks: Iterable[bytes | memoryview]) -> Unnamed:
        """Puts content on disk under a temporary name; ``adopt`` or ``discard`` comes next.

        Raises:
            CacheError: it cannot be written, or is too large; nothing of it is left then.
        """
        path = self._folder / f"{_TEMPORARY}{os.urandom(8).hex()}"
        digest, size = hashlib.sha256(), 0
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "wb") as file:
                for chunk in chunks:
                    size += len(chunk)
                    if size > MAX_BLOB_BYTES:
                        raise CacheError(
                            f"an artifact is larger than {MAX_BLOB_BYTES // 2**30} GiB", fault=Fault.INVALID
                        )
                    digest.update(chunk)
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
        except BaseException as error:
            with suppress(OSError):
                path.unlink()
            if isinstance(error, OSError):
                raise unreachable(self._folder, "an artifact cannot be written", error) from None
            raise
        return Unnamed(path, digest.hexdigest(), size)

    def unfinished(self, sha256: str) -> Path:
        """Where the content with this SHA-256 is put together piece by piece, by one process at a time.

        It counts as abandoned as other temporary files do, so that it is not kept for ever.

        Raises:
            CacheError: there is no such SHA-256, or the folder cannot be made.
        """
        self.path(sha256)
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise unreachable(self._folder, "an artifact cannot be written", error) from None
        return self._folder / f"{_TEMPORARY}{sha256}"

    def adopt(self, unnamed: Unnamed) -> None:
        """Gives content its name, for good once this returns.

        Raises:
            CacheError: the system refuses.
        """
        try:
            unnamed.path.replace(self.path(unnamed.sha256))
            sync_folder(self._folder)
        except OSError as error:
            raise unreachable(self._folder, "an artifact cannot be named", error) from None

    def discard(self, unnamed: Unnamed) -> None:
        """Removes content that was not adopted."""
        with suppress(OSError):
            unnamed.path.unlink()

    def path(self, sha256: str) -> Path:
        """Where the content with this SHA-256 is."""
        if HEX_DIGEST.fullmatch(sha256) is None:
            raise CacheError(f"{sha256!r} is no SHA-256", fault=Fault.INVALID)
        return self._folder / sha256

    def read(self, sha256: str, num_bytes: int) -> bytes:
        """The content with this SHA-256, of which ``num_bytes`` are expected.

        Raises:
            CacheError: it is not there, or is something else.
        """
        data = b"".join(self.chunks(sha256, at_most=num_bytes + 1))
        if len(data) != num_bytes or hashlib.sha256(data).hexdigest() != sha256:
            raise self._altered(sha256)
        return data

    def verify(self, sha256: str) -> None:
        """Reads the content with this SHA-256 through.

        Raises:
            CacheError: it is not there, or is something else.
        """
        digest = hashlib.sha256()
        for chunk in self.chunks(sha256):
            digest.update(chunk)
        if digest.hexdigest() != sha256:
            raise self._altered(sha256)

    def chunks(self, sha256: str, *, at_most: int = MAX_BLOB_BYTES) -> Iterator[bytes]:
        """The content with this name piece by piece, unverified, up to ``at_most`` bytes.

        Raises:
            CacheError: it cannot be read.
        """
        try:
            with self._open(sha256) as file:
                while at_most > 0 and (chunk := file.read(min(CHUNK, at_most))):
                    at_most -= len(chunk)
                    yield chunk
        except OSError as error:
            raise unreachable(self.path(sha256), "the artifact cannot be read", error) from None

    def _open(self, sha256: str) -> BinaryIO:
        path = self.path(sha256)
        try:
            # Without O_NONBLOCK, opening a pipe would wait for somebody to write.
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            raise CacheError("the artifact is gone", fault=Fault.MISSING, path=name_of(path)) from None
        except OSError as error:
            raise unreachable(path, "the artifact cannot be read", error) from None
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise self._altered(sha256)
        return os.fdopen(handle, "rb")

    def _altered(self, sha256: str) -> CacheError:
        return CacheError(
            "the artifact is not what was put: its SHA-256 differs",
            fault=Fault.ALTERED,
            path=name_of(self.path(sha256)),
        )

    def named(self) -> dict[str, int]:
        """All content that has its name, with its size in bytes."""
        return {
            entry.name: entry.stat(follow_symlinks=False).st_size
            for entry in self._entries()
            if HEX_DIGEST.fullmatch(entry.name)
        }

    def abandoned(self, now: float | None = None) -> tuple[Path, ...]:
        """Temporary files that a killed process left."""
        now = time.time() if now is None else now
        return tuple(
            Path(entry.path)
            for entry in self._entries()
            if entry.name.startswith(_TEMPORARY)
            and abs(now - entry.stat(follow_symlinks=False).st_mtime) > ABANDONED_AFTER
        )

    def _entries(self) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._folder) as entries:
                return [entry for entry in entries if _is_there(entry)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unreachable(self._folder, "cannot be listed", error) from None

    def remove(self, sha256: str) -> None:
        """Removes content, which may be gone already."""
        with suppress(OSError):
            self.path(sha256).unlink()


def _is_there(entry: os.DirEntry[str]) -> bool:
    """Looks at the file now: another process may remove it."""
    try:
        entry.stat(follow_symlinks=False)
    except OSError:
        return False
    return True


def sync_folder(folder: Path) -> None:
    """Puts the names in a folder on disk.

    Raises:
        OSError: the system refuses.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
