"""Mutations after which a document mostly is still one: what a user edits, and how editors write it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

import yaml

from tests.planner.fuzzing.combinations import combination
from tests.planner.fuzzing.nodes import (
    Slot,
    assign,
    child,
    containers,
    deployment_of,
    parsed,
    quoted,
    slots,
    word,
)
from tests.planner.fuzzing.vocabulary import (
    known_fields,
    number,
    other_settings,
    value_of,
    value_of_setting,
    words_of,
)

Mutation = Callable[[yaml.MappingNode, Sequence[str], Random], None]
"""Changes a document in place; the texts are other documents to take parts of."""

_INTEGER = re.compile(r"-?[0-9]+")
_HEADER = frozenset({"apiVersion", "kind"})


def scalar_slots(root: yaml.MappingNode) -> list[Slot]:
    """The places below the header that hold a scalar."""
    return [
        slot for slot in slots(root) if isinstance(slot.node, yaml.ScalarNode) and slot.key not in _HEADER
    ]


def change_number(root: yaml.MappingNode, _others: Sequence[str], rng: Random) -> None:
    """One number becomes a near one, or any other."""
    found = [slot for slot in scalar_slots(root) if _INTEGER.fullmatch(slot.node.value)]
    if not found:
        return
    slot = rng.choice(found)
    before = int(slot.node.value)
    near = (before + 1, before - 1, before * 2, before // 2, number(rng), number(rng))
    slot.put(word(str(rng.choice(near))))


def swap_word(root: yaml.MappingNode, _others: Sequence[str], rng: Random) -> None:
    """One word becomes another that its key takes, in whatever case."""
    found = [slot for slot in scalar_slots(root) if words_of(slot.key)]
    if found:
        slot = rng.choice(found)
        text = rng.choice(words_of(slot.key))
        slot.put(quoted(rng.choice((text, text, text, text.lower()))))


def toggle_boolean(root: yaml.MappingNode, _others: Sequence[str], rng: Random) -> None:
    """One switch is turned."""
    found = [slot for slot in scalar_slots(root) if slot.node.value in ("true", "false")]
    if found:
        slot = rng.choice(found)
        slot.put(word("false" if slot.node.value == "true" else "true"))


def set_key(root: yaml.MappingNode, _others: Sequence[str], rng: Random) -> None:
    """One more setting of a section, which is made if need be."""
    name = rng.choice(list(known_fields()))
    section = child(deployment_of(root), name)
    if not isinstance(section, yaml.MappingNode):
        return
    others = other_settings(name)
    if others and rng.random() < 0.3:
        key = rng.choice(list(others))
        assign(section, key, value_of_setting(key, others[key], rng))
    else:
        field = known_fields()[name][rng.choice(list(known_fields()[name]))]
        assign(section, field.name, value_of(field, rng))


def drop(root: yaml.MappingNode, _others: Sequence[str], rng: Random) -> None:
    """One key or entry less."""
    found = [slot for slot in slots(root) if slot.key not in _HEADER]
    if found:
        slot = rng.choice(found)
        del slot.parent.value[slot.index]


def duplicate(root: yaml.MappingNode, _others: Sequence[str], rng: Random) -> None:
    """One entry of a list twice."""
    found = [node for node in containers(root) if isinstance(node, yaml.SequenceNode) and node.value]
    if found:
        items = rng.choice(found).value
        items.insert(rng.randint(0, len(items)), rng.choice(items))


def reorder(root: yaml.MappingNode, _others: Sequence[str], rng: Random) -> None:
    """The keys of a mapping or the entries of a list in another order."""
    rng.shuffle(rng.choice(containers(root)).value)


def take_section(root: yaml.MappingNode, others: Sequence[str], rng: Random) -> None:
    """One section as another document has it."""
    donor = deployment_of(parsed(rng.choice(others)))
    sections = [pair for pair in donor.value if pair[0].value in known_fields()]
    if sections:
        key, value = rng.choice(sections)
        assign(deployment_of(root), key.value, value)


def restyle(root: yaml.MappingNode, _others: Sequence[str], rng: Random) -> None:
    """Other quotes, braces for indentation and back; the same values."""
    for node in containers(root):
        if rng.random() < 0.3:
            node.flow_style = not node.flow_style
    for slot in scalar_slots(root):
        if slot.node.tag.endswith(":str") and rng.random() < 0.3:
            slot.node.style = rng.choice(('"', "'", "|", ">"))


MUTATIONS: tuple[Mutation, ...] = (
    *(change_number, change_number, change_number, swap_word, swap_word, toggle_boolean, set_key, set_key),
    *(drop, drop, duplicate, reorder, take_section, combination, restyle),
)
"""Gentle mutations, the more frequent ones more than once."""


def decorated(text: str, rng: Random) -> str:
    """``text`` with comments, empty lines and other things that mean nothing."""
    lines = text.splitlines(keepends=True)
    for _ in range(rng.choice((0, 0, 1, 3))):
        note = rng.choice(("# a note\n", "\n", "   # größer: [1, 2\n", "\t\n", "#\n"))
        lines.insert(rng.randint(0, len(lines)), note)
    text = "".join(lines)
    if rng.random() < 0.1:
        text = re.sub(r"(?m)$", rng.choice((" ", "   # end")), text)
    if rng.random() < 0.05:
        text = "\ufeff" + text
    return text
