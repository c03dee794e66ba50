"""Server logs of the command line: reading one within bounds, and showing what a plan has beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

from planner.cli.answers import record
from planner.cli.blocks import Block, Row, value_text
from planner.cli.files import reading, shown_name
from planner.documents.deployment import Json
from planner.documents.sources import open_file
from planner.errors import DocumentError
from planner.server_log import LONGEST_LINE, ServerLog, read_server_log
from planner.verify.against_log import Compared, Comparison

MAX_BYTES = 1 << 30
"""Bytes of a log that are read at most."""

LONGEST_CELL = 32
"""Of a value that stands beside another."""

EXPECTED = 'such as "Initializing a V1 LLM engine" or "Capturing CUDA graphs"'


@frozen
class Log:
    """A log by its name in messages, and what the server says in it."""

    name: str
    said: ServerLog


@frozen
class AgainstLog:
    """What came of comparing a plan with a log."""

    log: Log
    comparison: Comparison


def read_log(name: str) -> Log:
    """What the server says in the log ``name``, or on standard input.

    Raises:
        DocumentError: it cannot be read, is no regular file, is too large, or has no line that a starting
            vLLM server prints.
    """
    said = read_server_log(_lines(name))
    if said is None:
        raise DocumentError(
            f"has nothing to compare: no line of a starting vLLM server, {EXPECTED}; "
            "give all that it printed at start, standard error included, not compressed",
            path=shown_name(name),
        )
    return Log(shown_name(name), said)


def _lines(name: str) -> Iterator[bytes]:
    """The lines of a regular file or of standard input, one that is too long in pieces."""
    left = MAX_BYTES
    with reading(name, lambda file: open_file(Path(file))) as stream:
        while line := stream.readline(LONGEST_LINE):
            left -= len(line)
            if left < 0:
                raise DocumentError(
                    f"larger than {MAX_BYTES >> 20} MiB; give the part that the server printed at start",
                    path=shown_name(name),
                )
            yield line


def comparison_block(against: AgainstLog) -> Block:
    """What plan and server say, side by side, and what only the server can say."""
    rows = [Row(("", "plan", "server", "")), *map(_row, against.comparison.compared)]
    rows += [Row((subject, "-", text, "")) for subject, text in against.comparison.facts]
    return Block(tuple(rows), title=f"against {against.log.name}")


def _row(one: Compared) -> Row:
    plan, server = (
        "-" if value is None else value_text(value, LONGEST_CELL) for value in (one.plan, one.server)
    )
    if one.agrees is None:
        return Row((one.subject, plan, server, f"not in the {'log' if one.server is None else 'plan'}"))
    if one.is_incomplete:
        return Row((one.subject, plan, server, one.note or ""), "error")
    if one.agrees:
        return Row((one.subject, plan, server, one.note or ""), "good")
    return Row((one.subject, plan, server, f"differs; {one.note}" if one.note else "differs"), "error")


def comparison_json(against: AgainstLog) -> Json:
    """The same for a program, and all that was read."""
    return {
        "file": against.log.name,
        "server": record(against.log.said),
        "compared": [
            {field: getattr(one, field) for field in ("subject", "plan", "server", "agrees", "note")}
            for one in against.comparison.compared
        ],
    }
