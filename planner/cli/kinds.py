"""What a text is that is none of what a command reads, for messages."""

from __future__ import annotations

import json

JSON = "JSON file"
_SAMPLED = 8
"""Lines that are looked at."""


def unreadable(text: str) -> str | None:
    """What is wrong with ``text`` as text, ``None`` if nothing is; bytes that are no UTF-8 are escapes."""
    if "\0" in text:
        return "is a binary file, not UTF-8 text"
    if any("\udc80" <= letter <= "\udcff" for letter in text):
        return "is not UTF-8 text"
    return None if text.strip() else "is empty"


def data_kind(text: str) -> str | None:
    """Which kind of data ``text`` is, ``None`` if it may be a command or a file of settings."""
    if text.lstrip().startswith(("{", "[")):
        return _json_kind(text)
    lines = [line for line in text.splitlines()[:_SAMPLED] if line.strip()]
    for separator, kind in ((",", "CSV file"), ("\t", "table")):
        counts = {line.count(separator) for line in lines}
        if len(lines) > 1 and len(counts) == 1 and 0 not in counts:
            return kind
    return None


def _json_kind(text: str) -> str:
    first, _, more = text.strip().partition("\n")
    try:
        json.loads(first)
    except RecursionError:
        pass
    except ValueError:
        return JSON
    return "file of JSON lines" if more.strip() else JSON
