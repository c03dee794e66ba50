"""Finding one's way in the tree of a manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from planner.documents.tree import Items, Node, Scalar, Table


def texts_of(node: Node | None) -> Iterator[Scalar]:
    """The scalars of a list, or the one scalar that stands in place of one."""
    if isinstance(node, Scalar):
        yield node
    elif isinstance(node, Items):
        yield from (item for item in node.items if isinstance(item, Scalar))


def text_at(table: Table, *keys: str) -> str | None:
    """The text under nested ``keys``, ``None`` where there is none."""
    node: Node | None = table
    for key in keys:
        node = node.values.get(key) if isinstance(node, Table) else None
    return node.text if isinstance(node, Scalar) and node.text else None


Walked = tuple[Table, tuple[Table, ...], str]
"""A mapping, those around it, and the key under which it stands."""


def tables_under(root: Node, skipped: Callable[[str], bool]) -> Iterator[Walked]:
    """Every mapping below ``root`` but those under ``skipped`` keys, in the order of the text."""
    stack: list[tuple[Node, tuple[Table, ...], str]] = [(root, (), "")]
    while stack:
        node, above, key = stack.pop()
        if isinstance(node, Table):
            yield node, above, key
            inside = [
                (child, (*above, node), name) for name, child in node.values.items() if not skipped(name)
            ]
            stack.extend(reversed(inside))
        elif isinstance(node, Items):
            stack.extend((child, above, key) for child in reversed(node.items))
