"""``planner dispatch``: many batches in, one answer a line out."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from typing import Any

import click

from planner.cli.answers import dispatch_answer
from planner.cli.files import naming, read_plan, reading, refuse_two_stdins, shown_name
from planner.cli.options import examples, family_option
from planner.cli.streams import write_stdout
from planner.errors import BatchError, GraphplanError
from planner.queries import LARGEST, Query, Table, ask, query_of, settled

LONGEST_LINE = 64 * 1024
ANSWERS_AT_ONCE = 1000


@click.command(
    "dispatch",
    epilog=examples(
        "planner dispatch plan.yaml --batches batches.jsonl",
        """echo '{"num_reqs": 5, "num_tokens": 80, "uniform_token_count": 16}' |""",
        "    planner dispatch plan.yaml --batches - --family draft",
    ),
)
@click.argument("source", metavar="PLAN")
@click.option(
    "--batches", required=True, metavar="FILE", help="Batches, one JSON object a line; - for standard input."
)
@family_option
def command(source: str, batches: str, family: str) -> None:
    """Answer, for each batch of FILE, which graph of PLAN serves it.

    A batch is a JSON object with num_reqs and num_tokens, and if they apply uniform_token_count,
    max_query_len, num_active_loras, num_ubatches, uniform_decode. The answer is one JSON object a
    line, in the same order: the mode, and the other fields of the batch descriptor. A plan of the
    v1 runner needs num_tokens only, and dispatches by uniform_decode.

    Stops at the first line that is no batch, after the answers to those before it.
    """
    refuse_two_stdins(source, batches)
    plan = read_plan(source)
    with naming(source):
        table = plan.dispatch_table(family)
    _answer_all(_lines(batches), table, shown_name(batches))


def _lines(name: str) -> Iterator[bytes]:
    """The lines of a file or of standard input, one that is too long in pieces."""
    with reading(name, lambda file: open(file, "rb")) as stream:
        # Some editors begin a file with a byte order mark.
        yield stream.readline(LONGEST_LINE + 1).removeprefix(BOM_UTF8)
        yield from iter(lambda: stream.readline(LONGEST_LINE + 1), b"")


def _answer_all(lines: Iterable[bytes], table: Table, name: str) -> None:
    answers: list[str] = []
    try:
        for number, line in enumerate(lines, 1):
            if line.strip() or len(line) > LONGEST_LINE:
                answers.append(_answer(line, table, f"{name}:{number}"))
            if len(answers) == ANSWERS_AT_ONCE:
                write_stdout("".join(answers))
                answers.clear()
    except GraphplanError:
        write_stdout("".join(answers))
        raise
    write_stdout("".join(answers))


def _answer(line: bytes, table: Table, place: str) -> str:
    try:
        answer = ask(table, settled(_query(line), table))
    except BatchError as error:
        raise BatchError(f"{place}: {error}") from None
    return json.dumps(dispatch_answer(answer)) + "\n"


def _query(line: bytes) -> Query:
    if len(line) > LONGEST_LINE:
        raise BatchError(f"longer than {LONGEST_LINE} bytes, which no batch is")
    try:
        values = json.loads(line.decode(), object_pairs_hook=_without_duplicates)
    except UnicodeDecodeError:
        raise BatchError("not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise BatchError(f"not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError):
        # Integers of thousands of digits, and lists nested as deep.
        raise BatchError(f"a number is larger than {LARGEST}, or lists are nested, as in no batch") from None
    if not isinstance(values, dict):
        raise BatchError('not a batch; write an object such as {"num_reqs": 1, "num_tokens": 1}')
    return query_of(values)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise BatchError("a field is given twice")
    return values
