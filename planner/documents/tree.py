"""The tree between a source and the document classes: every node knows where it stands.

A YAML text and a Python mapping become the same tree, so that each rule about keys and types is
written once. YAML scalars keep their source text, because what a scalar means depends on the field
that it fills.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from attrs import define

from planner.errors import DocumentError

Place: TypeAlias = tuple[int, int] | None
"""Line and column, both counted from 1; ``None`` in a source that has none."""

MAX_DEPTH = 64
MAX_JSON_DEPTH = 48
"""Deepest free-form value: a plan writes its deployment's some levels further in than they were read."""
MAX_NODES = 2_000_000
MAX_DIGITS = 18
MAX_KEY_LENGTH = 160
"""Longest key in characters: YAML reads one line of 1,024 as a key, and JSON may write six for one."""

_SHOWN_LENGTH = 60
_SIMPLE_KEY = re.compile(r"[\w/-]{1,60}", re.ASCII)


@define(eq=False)
class Scalar:
    """A YAML scalar: its source text, and whether it was written without quotes."""

    text: str
    plain: bool
    place: Place


@define(eq=False)
class Value:
    """A leaf of a Python source, of whatever type it has there."""

    value: object
    place: Place = None


@define(eq=False)
class Items:
    """A list."""

    items: list[Node]
    place: Place


@define(eq=False)
class Table:
    """A mapping in the order of the source, and where each of its keys stands."""

    values: dict[str, Node]
    keys: dict[str, Place]
    place: Place


Node: TypeAlias = Scalar | Value | Items | Table


class NodeError(Exception):
    """A node that cannot be taken; collects the keys above it on its way up to the loader."""

    def __init__(self, message: str, place: Place = None) -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.keys: list[str | int] = []

    def in_document(self, path: str | None) -> DocumentError:
        """This error as users see it; ``path`` names the document."""
        line, column = self.place or (None, None)
        name = None if path is None else printable(path)
        return DocumentError(self.message, path=name, line=line, column=column, key=self._dotted_key())

    def _dotted_key(self) -> str | None:
        dotted = ""
        for key in reversed(self.keys):
            if isinstance(key, int):
                dotted += f"[{key}]"
            else:
                dotted += f".{key_text(key)}" if dotted else key_text(key)
        return dotted or None


def open_items(table: Table) -> Iterator[tuple[str, Node]]:
    """Keys and values of a mapping that takes any key.

    Raises:
        NodeError: a key is too long to be read back once it is written.
    """
    for key, value in table.values.items():
        if len(key) > MAX_KEY_LENGTH:
            message = f"a key of {len(key)} characters is too long; at most {MAX_KEY_LENGTH} are read"
            raise NodeError(message, table.keys[key])
        yield key, value


@contextmanager
def under(key: str | int) -> Iterator[None]:
    """Tells errors on their way up that they come from under ``key``."""
    try:
        yield
    except NodeError as error:
        error.keys.append(key)
        raise


def printable(text: str) -> str:
    """``text`` as part of a message: unchanged unless it would break the line."""
    return text if text.isprintable() else repr(text)


def key_text(key: str) -> str:
    """A key as part of a message: unchanged unless it is long or would be misread."""
    return key if _SIMPLE_KEY.fullmatch(key) else shown(key)


def shown(text: str) -> str:
    """``text`` as a message quotes it: on one line, and cut where it is long."""
    return repr(text if len(text) <= _SHOWN_LENGTH else text[: _SHOWN_LENGTH - 3] + "...")


def described(node: Node) -> str:
    """What a message says that it found."""
    if isinstance(node, Scalar):
        if not node.plain:
            return f"the quoted string {shown(node.text)}"
        return shown(node.text) if node.text else "nothing"
    if isinstance(node, Value):
        return _described_value(node.value)
    return "a list" if isinstance(node, Items) else "a mapping"


def _described_value(value: object) -> str:
    if isinstance(value, str):
        return f"the string {shown(value)}"
    if type(value) is int:
        return str(value) if abs(value) < 10**MAX_DIGITS else f"an integer of more than {MAX_DIGITS} digits"
    if value is None or type(value) in (bool, float):
        return repr(value)
    return f"a value of type {type(value).__name__}"
