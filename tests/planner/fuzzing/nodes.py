"""A YAML text as a graph of nodes to mutate, and back: key order, styles and duplicates are free."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, TypeAlias

import yaml
from attrs import frozen

Container: TypeAlias = yaml.MappingNode | yaml.SequenceNode

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_RESOLVER = yaml.resolver.Resolver()
_STRING = "tag:yaml.org,2002:str"


@frozen(eq=False)
class Slot:
    """A place that holds a value: ``key`` is the nearest key above it."""

    key: str
    parent: Container
    index: int

    @property
    def node(self) -> yaml.Node:
        """The value here."""
        value = self.parent.value[self.index]
        return value[1] if isinstance(self.parent, yaml.MappingNode) else value

    def put(self, node: yaml.Node) -> None:
        """Replace the value here."""
        held = self.parent.value[self.index]
        self.parent.value[self.index] = (held[0], node) if isinstance(self.parent, yaml.MappingNode) else node


def parsed(text: str) -> yaml.MappingNode:
    """The nodes of a seed, which is a mapping."""
    root = yaml.compose(text, Loader=_LOADER)
    assert isinstance(root, yaml.MappingNode)
    return root


def written(root: yaml.Node, rng: Random) -> str:
    """``root`` as YAML, laid out in one of the many ways that mean the same."""
    return str(
        yaml.serialize(
            root,
            Dumper=_DUMPER,
            indent=rng.choice((1, 2, 2, 2, 4, 7)),
            width=rng.choice((20, 80, 110, 10_000)),
            allow_unicode=rng.random() < 0.7,
            line_break=rng.choice(("\n", "\n", "\n", "\r\n")),
            explicit_start=rng.random() < 0.1,
            explicit_end=rng.random() < 0.1,
        )
    )


def word(text: str) -> yaml.ScalarNode:
    """A scalar that is written without quotes."""
    tag = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))
    return yaml.ScalarNode(tag, text)


def quoted(text: str, style: str = '"') -> yaml.ScalarNode:
    """A scalar that is written in quotes, or as a block in style ``|`` or ``>``."""
    return yaml.ScalarNode(_STRING, text, style=style)


def listed(items: list[yaml.Node]) -> yaml.SequenceNode:
    """A list in brackets."""
    return yaml.SequenceNode("tag:yaml.org,2002:seq", items, flow_style=True)


def mapped(pairs: list[tuple[yaml.Node, yaml.Node]]) -> yaml.MappingNode:
    """A mapping in braces."""
    return yaml.MappingNode("tag:yaml.org,2002:map", pairs, flow_style=True)


def slots(root: Container, key: str = "") -> Iterator[Slot]:
    """Every place in ``root``, parents before what they hold."""
    for index, held in enumerate(root.value):
        name = held[0].value if isinstance(root, yaml.MappingNode) else key
        slot = Slot(str(name), root, index)
        yield slot
        if isinstance(slot.node, yaml.MappingNode | yaml.SequenceNode):
            yield from slots(slot.node, slot.key)


def containers(root: Container) -> list[Container]:
    """``root`` and every mapping and list in it."""
    inner = (slot.node for slot in slots(root))
    return [root, *(node for node in inner if isinstance(node, yaml.MappingNode | yaml.SequenceNode))]


def deployment_of(root: yaml.MappingNode) -> yaml.MappingNode:
    """The deployment of a Plan, or the document itself."""
    for key, value in root.value:
        if key.value == "deployment" and isinstance(value, yaml.MappingNode):
            return value
    return root


def child(parent: yaml.MappingNode, name: str) -> yaml.Node:
    """What stands under ``name``, made where nothing does."""
    for key, value in parent.value:
        if key.value == name:
            return value  # type: ignore[no-any-return]
    made = yaml.MappingNode("tag:yaml.org,2002:map", [])
    parent.value.append((word(name), made))
    return made


def assign(parent: yaml.MappingNode, name: str, value: yaml.Node) -> None:
    """Puts ``value`` under ``name``, in place of whatever stands there."""
    parent.value[:] = [pair for pair in parent.value if pair[0].value != name]
    parent.value.append((word(name), value))
