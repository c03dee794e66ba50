"""Reading and writing for commands: documents by name or from standard input, whole files out."""

from __future__ import annotations

import os
import re
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import click

from planner.documents.deployment import Deployment
from planner.documents.load import load_document, load_plan
from planner.documents.plan import Plan
from planner.documents.reader import MAX_BYTES
from planner.documents.tree import printable
from planner.errors import DocumentError, GraphplanError

STDIO = "-"
STDIN_NAME = "standard input"


class OutputError(GraphplanError):
    """A place that cannot be written to."""


def shown_name(name: str) -> str:
    """How messages call the source ``name``."""
    return STDIN_NAME if name == STDIO else printable(name)


def refuse_two_stdins(*names: str) -> None:
    """Standard input can be read once.

    Raises:
        UsageError: it is asked for more often.
    """
    if names.count(STDIO) > 1:
        raise click.UsageError("standard input (-) can be given once only")


def read_document(name: str) -> Deployment | Plan:
    """The document in the file ``name``, or on standard input.

    Raises:
        DocumentError: it cannot be read or is no valid document.
    """
    if name == STDIO:
        return load_document(_stdin_bytes(), path=STDIN_NAME)
    return load_document(Path(name), path=name)


def read_plan(name: str) -> Plan:
    """The Plan in the file ``name``, or on standard input.

    Raises:
        DocumentError: it cannot be read or is no valid Plan.
    """
    if name == STDIO:
        return load_plan(_stdin_bytes(), path=STDIN_NAME)
    return load_plan(Path(name), path=name)


def stdin() -> BinaryIO:
    """Standard input as bytes.

    Raises:
        DocumentError: it is closed.
    """
    if sys.stdin is None:
        raise DocumentError("is closed; give a file", path=STDIN_NAME)
    return sys.stdin.buffer


def _stdin_bytes() -> bytes:
    try:
        return stdin().read(MAX_BYTES + 1)
    except OSError as error:
        raise DocumentError(f"cannot be read: {error.strerror}", path=STDIN_NAME) from None


def write_stdout(text: str) -> None:
    """Writes text to standard output, in the same bytes on every machine.

    Raises:
        OutputError: the output takes no more; a reader that went away is a BrokenPipeError.
    """
    if sys.stdout is None:
        raise OutputError("standard output is closed; write to a file")
    stream = sys.stdout.buffer
    try:
        stream.write(text.encode())
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"standard output: cannot be written: {error.strerror}") from None


def write_output(name: str | None, text: str, *, replaces: bytes) -> None:
    """Writes text to the file ``name``, or to standard output where there is none or it is ``-``.

    An existing file is only replaced if it is empty or has ``replaces``, a regular expression, in it.

    Raises:
        OutputError: the output cannot be written.
    """
    if name is None or name == STDIO:
        write_stdout(text)
    else:
        write_file(name, text, replaces=replaces)


def write_file(name: str, text: str, *, replaces: bytes) -> None:
    """Writes a whole file or none: a reader sees the old content or the new, never a part.

    Raises:
        OutputError: ``name`` is a folder or a file of another kind, or its folder does not exist or
            cannot be written.
    """
    target = Path(os.path.realpath(name))
    try:
        mode = _mode_of(target)
        if mode is not None and stat.S_ISDIR(mode):
            raise OutputError(f"{printable(name)}: is a folder; give the name of a file")
        if mode is not None and not stat.S_ISREG(mode):
            # A pipe or a device has no content to protect.
            target.write_bytes(text.encode())
        else:
            if mode is not None:
                _keep_foreign(target, name, replaces)
            _replace(target, text.encode(), mode)
    except FileNotFoundError:
        folder = printable(str(Path(name).parent))
        raise OutputError(f"{printable(name)}: cannot be written: there is no folder {folder}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise OutputError(f"{printable(name)}: cannot be written: {printable(reason)}") from None


def _keep_foreign(target: Path, name: str, replaces: bytes) -> None:
    """Refuses to replace what no earlier run wrote: a config, a deployment, somebody's notes."""
    with target.open("rb") as file:
        beginning = file.read(1 << 16)
    if beginning and not re.search(replaces, beginning):
        raise OutputError(f"{printable(name)}: holds something else, which is kept; give another file")


def _mode_of(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _replace(target: Path, data: bytes, mode: int | None) -> None:
    temporary = target.with_name(f".{target.name[:100]}.{os.urandom(4).hex()}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(handle, "wb") as file:
            file.write(data)
        if mode is not None:
            temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def is_same_file(first: str, second: str) -> bool:
    """Whether two names mean one existing file."""
    if STDIO in (first, second):
        return False
    try:
        return os.path.samefile(first, second)
    except (OSError, ValueError):
        return False
