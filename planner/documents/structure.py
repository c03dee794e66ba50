"""From a tree to the document classes: every key known, every value of exactly its field's type.

cattrs finds the rule for each type; all rules are this package's own, because cattrs' would turn
"false" into True, 3.7 into 3 and None into "None".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from attrs import NOTHING, Attribute, fields, has, resolve_types
from cattrs import BaseConverter

from planner.describe import range_fault
from planner.documents.data import UNWRITTEN, VLLM_CONFIG
from planner.documents.deployment import HfConfig
from planner.documents.scalars import is_null, to_bool, to_float, to_int, to_int_or_str, to_json, to_str
from planner.documents.tree import (
    Items,
    Node,
    NodeError,
    Scalar,
    Table,
    Value,
    described,
    open_items,
    shown,
    under,
)
from planner.documents.units import UNIT, in_unit
from planner.modes import CompilationMode, CUDAGraphMode

T = TypeVar("T")
Hook = Callable[[Node, Any], Any]

INTEGER_ENUMS = frozenset({CUDAGraphMode, CompilationMode})
"""Enumerations that vLLM also takes as integers."""


def structure(node: Node, cls: type[T]) -> T:
    """``node`` as an instance of the document class ``cls``.

    Raises:
        NodeError: an unknown or a missing key, or a value of the wrong type or out of range.
    """
    return _converter().structure(node, cls)


@cache
def _converter() -> BaseConverter:
    converter = BaseConverter(detailed_validation=False)
    scalars: Mapping[Any, Callable[[Node], Any]] = {str: to_str, int: to_int, float: to_float, bool: to_bool}
    for scalar, read in scalars.items():
        converter.register_structure_hook(scalar, _scalar_hook(read))
    factories: Iterable[tuple[Callable[[Any], bool], Callable[[Any], Hook]]] = (
        (has, lambda cls: _record_hook(cls, converter)),
        (lambda cls: cls is HfConfig, lambda _: _ready_config),
        (lambda cls: isinstance(cls, type) and issubclass(cls, Enum), _enum_hook),
        (lambda cls: cls is Any, lambda _: _scalar_hook(to_json)),
        (lambda cls: get_origin(cls) in (Union, UnionType), lambda cls: _union_hook(cls, converter)),
        (lambda cls: get_origin(cls) is tuple, lambda cls: _tuple_hook(cls, converter)),
        (lambda cls: get_origin(cls) is Mapping, lambda cls: _mapping_hook(cls, converter)),
    )
    for applies, factory in factories:
        converter.register_structure_hook_factory(applies, factory)
    return converter


def _scalar_hook(read: Callable[[Node], Any]) -> Hook:
    return lambda node, _: read(node)


def _ready_config(node: Node, _: Any) -> HfConfig:
    """A config that the loader has read already: what stands in the document may be a path."""
    if isinstance(node, Value) and isinstance(node.value, HfConfig):
        return node.value
    raise NodeError(f"expected a model's config, found {described(node)}", node.place)


def _union_hook(union: Any, converter: BaseConverter) -> Hook:
    members = [member for member in get_args(union) if member is not type(None)]
    if set(members) == {int, str}:
        return _scalar_hook(to_int_or_str)
    if len(members) != 1:
        raise TypeError(f"no rule for {union}")
    return converter.get_structure_hook(members[0])


def _tuple_hook(cls: Any, converter: BaseConverter) -> Hook:
    item_type = get_args(cls)[0]
    read = converter.get_structure_hook(item_type)

    def hook(node: Node, _: Any) -> tuple[Any, ...]:
        if not isinstance(node, Items):
            raise NodeError(f"expected a list in brackets, found {described(node)}", node.place)
        values = []
        for index, item in enumerate(node.items):
            with under(index):
                values.append(read(item, item_type))
        return tuple(values)

    return hook


def _mapping_hook(cls: Any, converter: BaseConverter) -> Hook:
    value_type = get_args(cls)[1]
    read = converter.get_structure_hook(value_type)

    def hook(node: Node, _: Any) -> dict[str, Any]:
        values = {}
        for key, value in open_items(_table(node)):
            with under(key):
                values[key] = read(value, value_type)
        return values

    return hook


def _table(node: Node) -> Table:
    if isinstance(node, Table):
        return node
    raise NodeError(f"expected a mapping of keys to values, found {described(node)}", node.place)


def _enum_hook(cls: Any) -> Hook:
    """Members by their name in documents, in any case, and for some by vLLM's integer."""
    by_name = {str(member).casefold(): member for member in cls}
    integers = {
        member.value: member for member in cls if cls in INTEGER_ENUMS and isinstance(member.value, int)
    }
    digits = {str(number): member for number, member in integers.items()}

    def hook(node: Node, _: Any) -> Any:
        if isinstance(node, Value):
            if isinstance(node.value, cls):
                return node.value
            if type(node.value) is int and node.value in integers:
                return integers[node.value]
        if isinstance(node, Scalar) and node.plain and node.text in digits:
            return digits[node.text]
        if isinstance(node, Scalar) or (isinstance(node, Value) and isinstance(node.value, str)):
            name = to_str(node)
            # Other alphabets have letters that fold to those of ASCII, and schemas do not know them.
            if name.isascii() and name.casefold() in by_name:
                return by_name[name.casefold()]
            raise _unknown_name(name, cls, node)
        raise NodeError(f"expected one of {_names(cls)}, found {described(node)}", node.place)

    return hook


def _unknown_name(name: str, cls: Any, node: Node) -> NodeError:
    hint = _nearest(name.casefold(), {str(member).casefold(): str(member) for member in cls})
    return NodeError(f"{shown(name)} is not one of {_names(cls)}{hint}", node.place)


def _names(cls: Any) -> str:
    return ", ".join(str(member) for member in cls)


def _nearest(word: str, known: Mapping[str, str]) -> str:
    """The end of a message about an unknown word: which known one was probably meant."""
    from difflib import get_close_matches

    found = get_close_matches(word[:100], known, n=1)
    return f"; did you mean {known[found[0]]}?" if found else ""


def _record_hook(cls: Any, converter: BaseConverter) -> Hook:
    """A mapping whose keys are the fields of an attrs class.

    Types are looked up when a key is first met: most documents use few of them.
    """
    resolve_types(cls)
    known = {field.name: field for field in fields(cls) if field.name not in UNWRITTEN}
    required = [name for name, field in known.items() if field.default is NOTHING]
    vllm_config: str | None = getattr(cls, VLLM_CONFIG, None)
    readers: dict[str, Hook] = {}

    def hook(node: Node, _: Any) -> Any:
        table = _table(node)
        given: dict[str, Any] = {}
        others: dict[str, Node] = {}
        for key, value in table.values.items():
            read = readers.get(key)
            if read is None:
                if key not in known:
                    others[key] = value
                    continue
                read = readers[key] = _field_reader(known[key], converter)
            try:
                given[key] = read(value, None)
            except _NotGivenError:
                continue
            except NodeError as error:
                error.keys.append(key)
                raise
        if others:
            given["ignored"] = _other_settings(others, table, known, vllm_config)
        for name in required:
            if name not in given:
                raise NodeError(f"the key {name} is missing", table.place)
        return cls(**given)

    return hook


class _NotGivenError(Exception):
    """An optional field is null, which is the same as leaving it out."""


def _field_reader(field: Attribute[Any], converter: BaseConverter) -> Hook:
    """How one field's value is read: null, type, and the limits in the field's metadata.

    Null is a value only of an optional field that has another default.
    """
    read = converter.get_structure_hook(field.type)
    is_required = field.default is NOTHING
    minimum, maximum, choices, unit = (
        field.metadata.get(name) for name in ("minimum", "maximum", "choices", UNIT)
    )
    is_limited = bool(field.metadata)
    has_null = field.default is not None and type(None) in get_args(field.type)

    def reader(node: Node, _: Any) -> Any:
        if is_null(node):
            if has_null:
                return None
            if is_required:
                raise NodeError(f"a value is required here, found {described(node)}", node.place)
            raise _NotGivenError
        value = read(node, field.type) if unit is None else _measured(read, node, field.type, unit)
        if is_limited:
            if choices is not None and value not in choices:
                names = " or ".join(str(choice) for choice in choices)
                raise NodeError(f"expected {names}, found {described(node)}", node.place)
            _check_limits(value, node, minimum, maximum)
        return value

    return reader


def _measured(read: Hook, node: Node, cls: Any, unit: str) -> Any:
    """What ``read`` makes of a number of ``unit``; an error says what a number with another unit is in it."""
    try:
        return read(node, cls)
    except NodeError as error:
        text = node.text if isinstance(node, Scalar) else node.value if isinstance(node, Value) else None
        number = in_unit(text, unit) if isinstance(text, str) else None
        hint = f": write {number}" if number else ""
        raise NodeError(f"{error.message}; the unit is {unit}{hint}", error.place) from None


def _check_limits(value: Any, node: Node, minimum: int | None, maximum: int | None) -> None:
    if isinstance(value, tuple) and isinstance(node, Items):
        for index, (item, item_node) in enumerate(zip(value, node.items, strict=True)):
            with under(index):
                _check_limits(item, item_node, minimum, maximum)
    elif fault := range_fault(value, minimum, maximum):
        raise NodeError(fault, node.place)


def _other_settings(
    others: Mapping[str, Node], table: Table, known: Mapping[str, Any], vllm_config: str | None
) -> dict[str, Any]:
    """Settings that vLLM has and the class does not, checked against vLLM's own types."""
    from planner.documents.vllm_fields import vllm_fields, vllm_value

    settings = vllm_fields(vllm_config) if vllm_config is not None else {}
    ignored = {}
    for key, value in others.items():
        with under(key):
            if key not in settings:
                raise NodeError(f"unknown key{_key_hint(key, known, settings)}", table.keys[key])
            ignored[key] = vllm_value(value, settings[key])
    return ignored


def _key_hint(key: str, known: Iterable[str], settings: Iterable[str]) -> str:
    nearest = _nearest(key, {name: name for name in (*known, *settings)})
    if nearest or settings:
        return nearest
    return f"; known here are {', '.join(known)}"
