"""Mooncake's traces: one JSON object a line, with its time in milliseconds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from planner.documents.tree import shown
from planner.traffic.lines import Lines, RowError
from planner.traffic.numbers import MAX_TOKENS, nanoseconds, within
from planner.traffic.trace import Request, Trace, trace_of

ARRIVAL, PROMPT, OUTPUT = KEYS = ("timestamp", "input_length", "output_length")
MILLISECOND = 1_000_000


def read_mooncake(lines: Lines, texts: Iterable[str]) -> Trace:
    """The trace in ``texts``, which ``lines`` yields.

    Raises:
        DocumentError: a row is malformed, and such are not skipped; or there are none, or too many.
    """
    return trace_of(_requests(lines, texts), lines)


def _requests(lines: Lines, texts: Iterable[str]) -> Iterator[Request]:
    for text in texts:
        if not text.strip():
            continue
        try:
            request = _request(json_object(text))
        except RowError as error:
            lines.malformed(str(error))
        else:
            yield request


def json_object(text: str) -> dict[str, Any]:
    """The JSON object that ``text`` is.

    Raises:
        RowError: it is none.
    """
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise RowError(f"not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError):
        raise RowError("a number of thousands of digits, or lists nested as deep") from None
    if not isinstance(found, dict):
        raise RowError(f"expected a JSON object, found {shown(text)}")
    return found


def _request(values: dict[str, Any]) -> Request:
    arrival, prompt, output = (_number(name, values) for name in KEYS)
    return Request(
        nanoseconds(ARRIVAL, arrival, MILLISECOND), _tokens(PROMPT, prompt), _tokens(OUTPUT, output)
    )


def _number(name: str, values: dict[str, Any]) -> int | float:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        found = "nothing" if name not in values else shown(json.dumps(value))
        raise RowError(f"{name}: expected a number, found {found}")
    return value


def _tokens(name: str, value: float) -> int:
    if value != value or value % 1:
        raise RowError(f"{name}: expected a whole number, found {value}")
    return within(name, int(value), 0, MAX_TOKENS)
