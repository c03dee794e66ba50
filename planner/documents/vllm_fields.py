"""Settings of vLLM 0.33 that have no effect on planning: known by name and type, and kept.

Source: vLLM 0.33, the fields of its Parallel-, Scheduler-, Speculative-, LoRA- and
CompilationConfig; the table beside this module is made by ``tools/make_vllm_fields.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from attrs import frozen

from planner.documents.deployment import Json
from planner.documents.scalars import is_null, to_bool, to_float, to_int, to_int_or_str, to_json, to_str
from planner.documents.tree import Items, Node, NodeError, Table, described, open_items, under

TABLE = "vllm-0.33-fields.json"

Bounds = Mapping[str, float]


@frozen(kw_only=True)
class VllmField:
    """Type of one setting: ``bool``, ``int``, ``float``, ``str``, ``int|str``, ``list``, ``dict`` or ``any``.

    ``items`` is the type of what a list or mapping holds. ``bounds`` has the limits that vLLM sets,
    under ``ge``, ``gt``, ``le`` and ``lt``.
    """

    type: str
    items: str = "any"
    nullable: bool = False
    choices: tuple[Json, ...] = ()
    bounds: Bounds = MappingProxyType({})


@cache
def vllm_fields(config: str) -> Mapping[str, VllmField]:
    """The settings that the vLLM config of that name takes, by name."""
    text = resources.files("planner.documents").joinpath(TABLE).read_text(encoding="utf-8")
    table = json.loads(text)[config]
    return {
        name: VllmField(**{**known, "choices": tuple(known.get("choices", ()))})
        for name, known in table.items()
    }


def vllm_value(node: Node, known: VllmField) -> Json:
    """The value of a setting that vLLM has and planning does not use.

    Raises:
        NodeError: not of the setting's type, or beyond its bounds or choices.
    """
    if known.nullable and is_null(node):
        return None
    value = _value(node, known)
    if known.choices and value not in known.choices:
        choices = ", ".join(str(choice) for choice in known.choices)
        raise NodeError(f"{described(node)} is not known to vLLM 0.33; it takes {choices}", node.place)
    for name, (holds, words) in _BOUNDS.items():
        bound = known.bounds.get(name)
        if bound is not None and not holds(value, bound):
            raise NodeError(f"{value} is out of range; vLLM 0.33 takes numbers {words} {bound:g}", node.place)
    return value


def _value(node: Node, known: VllmField) -> Json:
    if known.type == "list":
        return _list(node, known.items)
    if known.type == "dict":
        return _dict(node, known.items)
    return _SCALARS[known.type](node)


def _list(node: Node, items: str) -> list[Json]:
    if not isinstance(node, Items):
        raise NodeError(f"expected a list, found {described(node)}", node.place)
    values = []
    for index, item in enumerate(node.items):
        with under(index):
            values.append(_SCALARS[items](item))
    return values


def _dict(node: Node, items: str) -> dict[str, Json]:
    if not isinstance(node, Table):
        raise NodeError(f"expected a mapping, found {described(node)}", node.place)
    values = {}
    for key, item in open_items(node):
        with under(key):
            values[key] = _SCALARS[items](item)
    return values


_SCALARS: Mapping[str, Callable[[Node], Any]] = MappingProxyType(
    {
        "bool": to_bool,
        "int": to_int,
        "float": to_float,
        "str": to_str,
        "int|str": to_int_or_str,
        "any": to_json,
    }
)

_BOUNDS: Mapping[str, tuple[Callable[[float, float], bool], str]] = MappingProxyType(
    {
        "ge": (lambda value, bound: value >= bound, "of at least"),
        "gt": (lambda value, bound: value > bound, "above"),
        "le": (lambda value, bound: value <= bound, "of at most"),
        "lt": (lambda value, bound: value < bound, "below"),
    }
)
