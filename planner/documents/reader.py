"""YAML text to a tree of nodes with positions, strictly and within bounds.

The text comes from strangers. PyYAML's parser only delivers events here, which neither recurses nor
makes objects of the document's choosing; everything that could grow without bound is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml
from attrs import define, field, frozen

from planner.documents.tree import (
    MAX_DEPTH,
    MAX_NODES,
    Items,
    Node,
    NodeError,
    Place,
    Scalar,
    Table,
    key_text,
    printable,
    shown,
)

MAX_BYTES = 16 * 2**20
_MERGE = "<<"

# The pure-Python parser gives the same events, several times slower.
PARSER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")
# PyYAML's parsers compare every directive with all earlier ones, so that a file of them would hang.
_DIRECTIVE = re.compile("(?:\\A|[\n\r\x85\u2028\u2029])%")
_LINE_BREAKS = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


def read_yaml(source: str | bytes, path: str | None = None, parser: type[Any] = PARSER) -> Node:
    """The tree of the one document in ``source``; ``path`` names it in messages.

    Raises:
        DocumentError: not UTF-8, too large, not YAML, or YAML that documents do not use: tags,
            directives, merge keys, duplicate keys, keys that are no scalars, several documents.
    """
    with _named(path):
        root = _read_events(parser(_checked_text(source)), _Builder([], {})).root
        if root is None or _is_nothing(root):
            raise NodeError("the document is empty")
        return root


def read_foreign_yaml(source: str | bytes, path: str | None = None, parser: type[Any] = PARSER) -> list[Node]:
    """The trees of all documents in ``source``, which was written for other programs than this.

    Merge keys are followed. Tags are passed over, as nothing is made of what they ask for. Documents
    with nothing in them are left out.

    Raises:
        DocumentError: as by ``read_yaml``, but for tags, merge keys and several documents.
    """
    with _named(path):
        builder = _ForeignBuilder([], {})
        _read_events(parser(_checked_text(source)), builder)
        return [root for root in builder.roots if not _is_nothing(root)]


@contextmanager
def _named(path: str | None) -> Iterator[None]:
    """Raises whatever is wrong with the text as an error of the document ``path``."""
    try:
        yield
    except NodeError as error:
        raise error.in_document(path) from None
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error).in_document(path) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # The pure-Python scanner lets chr() judge escapes such as "\UFFFFFFFF".
        raise NodeError(f"not valid YAML: {_one_line(str(error))}").in_document(path) from None


def _checked_text(source: str | bytes) -> str:
    """The characters of ``source`` without a byte order mark."""
    if len(source) > MAX_BYTES:
        raise NodeError(f"larger than {MAX_BYTES // 2**20} MiB, which no deployment or plan is")
    text = _decoded(source) if isinstance(source, bytes) else source
    text = text.removeprefix("\ufeff")
    if found := _FORBIDDEN.search(text):
        name = "a NUL byte" if found[0] == "\0" else f"the character U+{ord(found[0]):04X}"
        raise NodeError(f"{name} is not allowed in a document", _place(text, found.start()))
    if found := _DIRECTIVE.search(text):
        raise NodeError(
            "a line that begins with % is a YAML directive; remove it", _place(text, found.end() - 1)
        )
    return text


def _decoded(source: bytes) -> str:
    try:
        return source.decode("utf-8")
    except UnicodeDecodeError as error:
        before = source[: error.start].decode("utf-8")
        raise NodeError("not UTF-8 text; save the file as UTF-8", _place(before, len(before))) from None


def _place(text: str, offset: int) -> Place:
    breaks = [found.end() for found in _LINE_BREAKS.finditer(text, 0, offset)]
    return len(breaks) + 1, offset - (breaks[-1] if breaks else 0) + 1


def _syntax_error(error: yaml.MarkedYAMLError) -> NodeError:
    mark = error.problem_mark or error.context_mark
    place = None if mark is None else (mark.line + 1, mark.column + 1)
    problem = ", ".join(part for part in (error.problem, error.context) if part)
    return NodeError(f"not valid YAML: {_one_line(problem)}", place)


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


@define(eq=False)
class _Open:
    """A container whose end has not been met.

    ``key`` is the key whose value comes next, ``levels`` counts the containers inside one another
    so far, this one included.
    """

    node: Items | Table
    anchor: str | None
    nodes_before: int
    characters_before: int
    key: str | None = None
    levels: int = 1

    def expects_key(self) -> bool:
        return self.key is None and isinstance(self.node, Table)

    def add(self, node: Node, levels: int) -> None:
        self.levels = max(self.levels, levels + 1)
        if isinstance(self.node, Items):
            self.node.items.append(node)
        elif self.key is not None:
            self.node.values[self.key] = node
            self.key = None


@frozen
class _Anchored:
    """What an alias stands for, and how much that is."""

    node: Node
    nodes: int
    characters: int
    levels: int


@define(eq=False)
class _Builder:
    """The state of reading one document: open containers, anchors, and the size of the tree so far.

    ``nodes`` and ``characters`` count an alias as all that it stands for, so that the tree can be
    walked and written without fear. A container that is still open is an anchor without a value.
    """

    stack: list[_Open]
    anchors: dict[str, _Anchored | None]
    nodes: int = 0
    characters: int = 0
    root: Node | None = None

    def take(self, event: Any) -> None:
        kind = type(event)
        if kind is yaml.ScalarEvent:
            self.scalar(event)
        elif kind is yaml.MappingStartEvent:
            self.begin(event, Table({}, {}, _start(event)))
        elif kind is yaml.SequenceStartEvent:
            self.begin(event, Items([], _start(event)))
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            self.end()
        elif kind is yaml.AliasEvent:
            self.alias(event)
        elif kind is yaml.DocumentStartEvent and self.root is not None:
            raise NodeError("a second document begins here; a file holds one", _start(event))

    def scalar(self, event: Any) -> None:
        place = _start(event)
        text: str = event.value
        self.check_tag(event.tag, place)
        if not text.isascii():
            _refuse_surrogates(text, place)
        self.count(1, len(text), place)
        node = Scalar(text, not event.style, place)
        if event.anchor is not None:
            self.anchors[event.anchor] = _Anchored(node, 1, len(text), 0)
        if self.stack and self.stack[-1].expects_key():
            self.open_key(self.stack[-1], node)
        else:
            self.place_node(node, 0)

    def open_key(self, parent: _Open, key: Scalar) -> None:
        text, place = key.text, key.place
        if key.plain and text == _MERGE:
            self.check_merge(place)
        table = parent.node
        if isinstance(table, Table):
            if text in table.keys:
                line, column = table.keys[text] or (0, 0)
                first = f"line {line}, column {column}"
                message = f"duplicate key {key_text(text)}, first given in {first}; remove one"
                raise _with_key(NodeError(message, place), text)
            table.keys[text] = place
            parent.key = text

    def begin(self, event: Any, node: Items | Table) -> None:
        self.check_tag(event.tag, node.place)
        if self.stack and self.stack[-1].expects_key():
            raise NodeError("a key must be a single word or a string, not a list or a mapping", node.place)
        self.check_depth(1, node.place)
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        self.stack.append(_Open(node, event.anchor, self.nodes, self.characters))
        self.count(1, 0, node.place)

    def end(self) -> None:
        closed = self.stack.pop()
        if closed.anchor is not None:
            nodes = self.nodes - closed.nodes_before
            characters = self.characters - closed.characters_before
            self.anchors[closed.anchor] = _Anchored(closed.node, nodes, characters, closed.levels)
        self.place_node(closed.node, closed.levels)

    def alias(self, event: Any) -> None:
        place = _start(event)
        name = shown(event.anchor)
        if event.anchor not in self.anchors:
            raise NodeError(f"the alias {name} has no anchor before it", place)
        target = self.anchors[event.anchor]
        if target is None:
            raise NodeError(f"the alias {name} stands inside what it refers to", place)
        if self.stack and self.stack[-1].expects_key():
            raise NodeError("a key must be a single word or a string, not an alias", place)
        self.count(target.nodes, target.characters, place)
        self.check_depth(target.levels, place)
        self.place_node(target.node, target.levels)

    def check_merge(self, place: Place) -> None:
        raise NodeError("merge keys (<<) are not supported; write the keys out", place)

    def check_tag(self, tag: str | None, place: Place) -> None:
        if tag is not None:
            raise _tag_error(tag, place)

    def check_depth(self, levels: int, place: Place) -> None:
        if len(self.stack) + levels > MAX_DEPTH:
            raise NodeError(f"nested more than {MAX_DEPTH} levels deep", place)

    def count(self, nodes: int, characters: int, place: Place) -> None:
        self.nodes += nodes
        self.characters += characters
        if self.nodes > MAX_NODES:
            raise NodeError(
                f"more than {MAX_NODES} values, aliases written out; no plan needs that many", place
            )
        if self.characters > MAX_BYTES:
            raise NodeError(f"more than {MAX_BYTES // 2**20} MiB of text, aliases written out", place)

    def keys(self) -> list[str | int]:
        """The keys above whatever is being read, innermost first."""
        keys: list[str | int] = []
        for container in reversed(self.stack):
            if isinstance(container.node, Items):
                keys.append(len(container.node.items))
            elif container.key is not None:
                keys.append(container.key)
        return keys

    def place_node(self, node: Node, levels: int) -> None:
        if self.stack:
            self.stack[-1].add(node, levels)
        else:
            self.root = node


@define(eq=False)
class _ForeignBuilder(_Builder):
    """Builds every document of a file, with what its tags and merge keys mean to others left harmless."""

    roots: list[Node] = field(factory=list)

    def take(self, event: Any) -> None:
        kind = type(event)
        if kind is yaml.DocumentStartEvent:
            self.root = None
            self.anchors.clear()
        elif kind is yaml.DocumentEndEvent:
            if self.root is not None:
                self.roots.append(self.root)
        else:
            _Builder.take(self, event)

    def check_tag(self, tag: str | None, place: Place) -> None:
        pass

    def check_merge(self, place: Place) -> None:
        pass

    def end(self) -> None:
        node = self.stack[-1].node
        if isinstance(node, Table) and _MERGE in node.values:
            _merge(node)
        _Builder.end(self)


def _merge(table: Table) -> None:
    """Gives a mapping the keys of those that its merge key names, where it has none of its own."""
    merged = table.values.pop(_MERGE)
    del table.keys[_MERGE]
    for other in merged.items if isinstance(merged, Items) else [merged]:
        if isinstance(other, Table):
            for key, value in other.values.items():
                if key not in table.values:
                    table.values[key] = value
                    table.keys[key] = other.keys[key]


def _read_events(parser: Any, builder: _Builder) -> _Builder:
    get_event = parser.get_event
    try:
        while not isinstance(event := get_event(), yaml.StreamEndEvent):
            builder.take(event)
    except NodeError as error:
        error.keys.extend(builder.keys())
        raise
    return builder


def _is_nothing(root: Node) -> bool:
    return isinstance(root, Scalar) and root.plain and not root.text


def _start(event: Any) -> Place:
    mark = event.start_mark
    return mark.line + 1, mark.column + 1


def _tag_error(tag: str, place: Place) -> NodeError:
    return NodeError(f"the tag {shown(tag)} is not supported; write the value without it", place)


def _with_key(error: NodeError, key: str) -> NodeError:
    error.keys.append(key)
    return error


def _refuse_surrogates(text: str, place: Place) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NodeError("an escape in this string stands for half a character", place) from None
