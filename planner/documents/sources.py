"""From what a caller gives - a file, text, or a Python mapping - to a tree of nodes.

The only place of this package that opens files; every read is bounded and of a regular file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeAlias

from attrs import frozen

from planner.documents.reader import MAX_BYTES, read_yaml
from planner.documents.tree import MAX_DEPTH, MAX_NODES, Items, Node, NodeError, Table, Value, printable
from planner.errors import DocumentError

Source: TypeAlias = Path | str | bytes | Mapping[str, object]
"""A Path or one-line string: a file; other strings and bytes: YAML text; or a mapping."""


@frozen(eq=False)
class Document:
    """A source as a tree. ``name`` is how messages call it, relative paths start at ``folder``."""

    root: Node
    name: str | None
    folder: Path


def read_source(source: object, *, path: str | None = None) -> Document:
    """The tree of ``source``. ``path`` is the name that messages give it, by default its own.

    Raises:
        DocumentError: the source cannot be read, or is no YAML that documents use.
    """
    if isinstance(source, Mapping):
        return Document(_read_mapping(source, path), path, Path())
    if isinstance(source, bytes) or (isinstance(source, str) and _is_text(source)):
        return Document(read_yaml(source, path), path, Path())
    if isinstance(source, str | Path):
        file = Path(source)
        name = path or str(source)
        return Document(read_yaml(read_file(file), name), name, file.parent)
    kind = type(source).__name__
    raise NodeError(f"expected a path, YAML text or a mapping, found a value of type {kind}").in_document(
        path
    )


def read_file(path: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of a regular file of at most ``max_bytes``.

    Raises:
        DocumentError: there is no such file, it cannot be read, is too large, or is a folder, a
            pipe or a device.
    """
    with open_file(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise DocumentError(f"larger than {max_bytes // 2**20} MiB", path=printable(str(path)))
    return data


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """A regular file to read bytes from.

    Raises:
        DocumentError: there is no such file, it cannot be read, here or later, or is a folder, a
            pipe or a device.
    """
    name = printable(str(path))
    try:
        # Without O_NONBLOCK, opening a pipe would wait for somebody to write.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with open(handle, "rb") as file:
            mode = os.fstat(handle).st_mode
            if not stat.S_ISREG(mode):
                kind = "folder" if stat.S_ISDIR(mode) else "pipe or a device"
                raise DocumentError(f"is a {kind}; give a file", path=name)
            yield file
    except IsADirectoryError:
        raise DocumentError("is a folder; give a file", path=name) from None
    except FileNotFoundError:
        raise DocumentError("no such file", path=name) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DocumentError(f"cannot be read: {printable(reason)}", path=name) from None


def _is_text(source: str) -> bool:
    """Whether a string is a document itself rather than the name of a file."""
    return "\n" in source or not source.strip() or source.lstrip("\ufeff ").startswith("{")


def _read_mapping(source: Mapping[str, object], path: str | None) -> Node:
    try:
        return tree_of(source)
    except NodeError as error:
        raise error.in_document(path) from None


def tree_of(value: object) -> Node:
    """The tree of a Python value; what its leaves may be is left to whoever reads the tree.

    Raises:
        NodeError: too large or too deep, a key that is no string, or text that cannot be stored.
    """
    return _Converter().node(value, 0)


class _Converter:
    """Turns Python values into nodes; counts them, as shared values are walked each time."""

    def __init__(self) -> None:
        self._nodes = 0

    def node(self, value: object, depth: int) -> Node:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise NodeError(f"more than {MAX_NODES} values; no plan needs that many")
        if depth > MAX_DEPTH:
            raise NodeError(f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(value, Mapping):
            return self._table(value, depth)
        if isinstance(value, list | tuple):
            return Items([self._child(index, item, depth) for index, item in enumerate(value)], None)
        if isinstance(value, str):
            _refuse_half_characters(value)
        return Value(value)

    def _table(self, value: Mapping[object, object], depth: int) -> Table:
        values = {}
        for key, item in value.items():
            if type(key) is not str:
                raise NodeError(f"keys must be strings, found a key of type {type(key).__name__}")
            _refuse_half_characters(key)
            values[key] = self._child(key, item, depth)
        return Table(values, dict.fromkeys(values), None)

    def _child(self, key: str | int, value: object, depth: int) -> Node:
        try:
            return self.node(value, depth + 1)
        except NodeError as error:
            error.keys.append(key)
            raise


def _refuse_half_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NodeError("a string holds half a character, which no file can store") from None
