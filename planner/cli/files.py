"""Reading and writing for commands: documents by name or from standard input, whole files out."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import BinaryIO

import click

from planner.cli.streams import OutputError, output_error, write_stdout
from planner.documents.deployment import Deployment
from planner.documents.load import load_document, load_plan
from planner.documents.plan import Plan
from planner.documents.reader import MAX_BYTES
from planner.documents.sources import read_file
from planner.documents.tree import printable
from planner.errors import DocumentError, FamilyError, PlanError

STDIO = "-"
STDIN_NAME = "standard input"


def shown_name(name: str) -> str:
    """How messages call the source ``name``."""
    return STDIN_NAME if name == STDIO else printable(name) or "''"


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Has errors about what a document says begin with the name of its file, as those of reading it do."""
    try:
        yield
    except (PlanError, FamilyError) as error:
        error.path = shown_name(name)
        raise


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
    return load_document(_file(name), path=name)


def read_plan(name: str) -> Plan:
    """The Plan in the file ``name``, or on standard input.

    Raises:
        DocumentError: it cannot be read or is no valid Plan.
    """
    if name == STDIO:
        return load_plan(_stdin_bytes(), path=STDIN_NAME)
    return load_plan(_file(name), path=name)


def _file(name: str) -> Path:
    if not name:
        raise DocumentError("the name of the file is empty; give a file, or - for standard input")
    return Path(name)


def stdin() -> BinaryIO:
    """Standard input as bytes.

    Raises:
        DocumentError: it is closed.
    """
    if sys.stdin is None:
        raise DocumentError("is closed; give a file", path=STDIN_NAME)
    return sys.stdin.buffer


@contextmanager
def reading(name: str, open_named: Callable[[str], AbstractContextManager[BinaryIO]]) -> Iterator[BinaryIO]:
    """The stream of ``name`` by ``open_named``, or standard input, while it is read.

    Raises:
        DocumentError: it cannot be opened, or a read within the block fails.
    """
    try:
        with nullcontext(stdin()) if name == STDIO else open_named(name) as stream:
            yield stream
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DocumentError(f"cannot be read: {reason}", path=shown_name(name)) from None


def read_bytes(name: str) -> bytes:
    """The bytes of the file ``name``, or of standard input; one more than a document may have, at most.

    Raises:
        DocumentError: it cannot be read.
    """
    return _stdin_bytes() if name == STDIO else read_file(Path(name))


def _stdin_bytes() -> bytes:
    try:
        data = stdin().read(MAX_BYTES + 1)
    except OSError as error:
        raise DocumentError(f"cannot be read: {error.strerror}", path=STDIN_NAME) from None
    if not data:
        # A command that fails ahead of a pipe leaves nothing, and has said why.
        raise DocumentError("is empty; did the command before it fail?", path=STDIN_NAME)
    return data


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
    if not name:
        raise OutputError(
            "the name of the output is empty; give the name of a file, or - for standard output"
        )
    try:
        target = Path(os.path.realpath(name))
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
        folder = Path(name).parent
        because = "no file can be made in" if folder.is_dir() else "there is no folder"
        reason = f"{because} {printable(str(folder))}"
        raise OutputError(f"{printable(name)}: cannot be written: {reason}") from None
    except (OSError, ValueError) as error:
        raise output_error(printable(name), error) from None


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
