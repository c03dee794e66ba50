"""Standard output and standard error: what happens when one of them takes no more."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from planner.documents.tree import printable
from planner.errors import GraphplanError

CLOSED = "standard output is closed; write to a file"


class OutputError(GraphplanError):
    """A place that cannot be written to."""


class FullError(OutputError):
    """A disk or device that takes no more of what was to be written there."""

    exit_code = 3


OF_THE_MACHINE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})
"""Failures of writing that no other name in the same place would mend."""


def write_stdout(text: str) -> None:
    """Writes text to standard output, in the same bytes on every machine.

    Raises:
        OutputError: the output takes no more; a reader that went away is a BrokenPipeError.
    """
    write_stdout_bytes((text.encode(),))


def write_stdout_bytes(chunks: Iterable[bytes]) -> None:
    """Writes bytes to standard output, chunk by chunk.

    Raises:
        OutputError: the output takes no more; a reader that went away is a BrokenPipeError.
    """
    if sys.stdout is None:
        raise OutputError(CLOSED)
    stream = sys.stdout.buffer
    try:
        for chunk in chunks:
            stream.write(chunk)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritten(error) from None


def write_stderr(text: str) -> None:
    """Writes text to standard error, or nowhere.

    It is said beside the answer and the exit code, which stand where nobody can read it.
    """
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        drop(sys.stderr)


def unwritten(error: OSError) -> OutputError:
    """What a failed write to standard output is to the user."""
    drop(sys.stdout)
    return output_error("standard output", error)


def output_error(name: str, error: OSError | ValueError) -> OutputError:
    """What a failed write to ``name``, as messages call it, is to the user."""
    number, reason = (error.errno, error.strerror) if isinstance(error, OSError) else (None, None)
    kind = FullError if number in OF_THE_MACHINE else OutputError
    return kind(f"{name}: cannot be written: {printable(reason or str(error))}")


def drop(stream: Any) -> None:
    """Points a standard stream nowhere, so that the interpreter's last flush cannot fail in its turn."""
    with suppress(AttributeError, OSError, ValueError):
        descriptor = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
