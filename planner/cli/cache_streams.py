"""A cache's export on the standard streams, which a zip file has to be whole for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, BinaryIO

import click

from planner.cli.files import STDIN_NAME, STDIO, reading
from planner.cli.streams import output_error, write_stdout_bytes
from planner.errors import DocumentError

if TYPE_CHECKING:
    from cache.keys import Key
    from cache.store import PlanCache

CHUNK = 1 << 20

MAX_STDIN_BYTES = 16 * 2**30
"""What is taken from standard input: as much as the largest artifact."""


def refuse_terminal() -> None:
    """Keeps a zip file off a screen.

    Raises:
        UsageError: standard output is a terminal.
    """
    if sys.stdout is not None and sys.stdout.isatty():
        raise click.UsageError("an export is no text for a terminal; redirect it, or give the name of a file")


def export_to_stdout(cache: PlanCache, keys: Iterable[Key] | None) -> int:
    """Writes records, by default all, with their files to standard output; returns their number.

    Raises:
        CacheError: a record is not what was put, or there is no room for a temporary file.
        OutputError: the output takes no more.
    """
    with _temporary_file() as file:
        number = cache.export(file, keys)
        with file.open("rb") as stream:
            write_stdout_bytes(iter(partial(stream.read, CHUNK), b""))
    return number


@contextmanager
def stdin_as_file() -> Iterator[Path]:
    """A temporary file of what is on standard input, which errors about the file name.

    Raises:
        DocumentError: it is empty, too large or cannot be read.
        OutputError: there is no room for it.
    """
    from cache.directory import name_of
    from cache.errors import CacheError

    with _temporary_file() as file:
        with reading(STDIO, lambda name: open(name, "rb")) as stream:
            _copy(stream, file)
        try:
            yield file
        except CacheError as error:
            if error.path == name_of(file):
                error.path = STDIN_NAME
            raise


def _copy(stream: BinaryIO, file: Path) -> None:
    size = 0
    with file.open("wb") as copy:
        while chunk := stream.read(CHUNK):
            size += len(chunk)
            if size > MAX_STDIN_BYTES:
                most = f"{MAX_STDIN_BYTES // 2**30} GiB"
                raise DocumentError(f"is larger than {most}; import it as a file", path=STDIN_NAME)
            try:
                copy.write(chunk)
                copy.flush()
            except OSError as error:
                raise output_error(str(file), error) from None
    if not size:
        raise DocumentError("is empty; did the command before it fail?", path=STDIN_NAME)


@contextmanager
def _temporary_file() -> Iterator[Path]:
    """The name of a file in a folder of its own, which goes with it."""
    try:
        folder = TemporaryDirectory(prefix="graphplan-")
    except OSError as error:
        raise output_error("the folder of temporary files", error) from None
    with folder as path:
        yield Path(path) / "cache.zip"
