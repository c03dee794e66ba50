"""What a scalar means, given the type that its place asks for.

YAML 1.1, YAML 1.2 and their readers disagree on what many plain scalars are. So a scalar is read as
its field demands: a string field takes the text as it stands, a number field takes plain decimal
notation only. Where the type is open, a scalar that two readers could take differently is refused.
"""

from __future__ import annotations

import math
import re
from typing import Any

from planner.documents.tree import (
    MAX_DIGITS,
    MAX_JSON_DEPTH,
    Items,
    Node,
    NodeError,
    Scalar,
    Table,
    Value,
    described,
    open_items,
    shown,
)

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS = {"true": True, "false": False}
_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
# An exponent needs the dot before and the sign after it: only so is it a number to every reader.
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+(?:[eE][-+][0-9]+)?")
_AMBIGUOUS = re.compile(
    r"""|[yY]|yes|Yes|YES|[nN]|no|No|NO|on|On|ON|off|Off|OFF|[tT]rue|TRUE|[fF]alse|FALSE
    |~|null|Null|NULL|<<|=
    |[-+]?[0-9][0-9_]*|[-+]?0b[01_]+|0o[0-7]+|[-+]?0x[0-9a-fA-F_]+
    |[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?
    |[-+]?(?:[0-9][0-9_]*)?\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+
    |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)
    |[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:(?:[Tt]|[ \t]+)[0-9].*)?""",
    re.VERBOSE | re.DOTALL,
)


def is_null(node: Node) -> bool:
    """Whether ``node`` says "not given": an empty or null plain scalar, or Python's None."""
    if isinstance(node, Scalar):
        return node.plain and node.text in _NULLS
    return isinstance(node, Value) and node.value is None


def is_ambiguous(text: str) -> bool:
    """Whether some YAML reader takes the plain scalar ``text`` for anything but a string."""
    return _AMBIGUOUS.fullmatch(text) is not None


def to_bool(node: Node) -> bool:
    """Exactly ``true`` or ``false``.

    Raises:
        NodeError: anything else.
    """
    if isinstance(node, Scalar) and node.plain and node.text in _BOOLS:
        return _BOOLS[node.text]
    if isinstance(node, Value) and isinstance(node.value, bool):
        return node.value
    raise NodeError(f"expected true or false, found {described(node)}", node.place)


def to_int(node: Node) -> int:
    """A plain decimal integer of at most 18 digits.

    Raises:
        NodeError: anything else.
    """
    if isinstance(node, Scalar) and node.plain and _INTEGER.fullmatch(node.text):
        return _int_of_text(node)
    if isinstance(node, Value) and type(node.value) is int:
        return _bounded(node.value, node)
    raise NodeError(f"expected a whole number in plain decimal digits, found {described(node)}", node.place)


def to_float(node: Node) -> float:
    """A plain decimal number, with or without a fraction.

    Raises:
        NodeError: anything else, NaN and infinities included.
    """
    if isinstance(node, Scalar) and node.plain:
        if _INTEGER.fullmatch(node.text):
            return float(_int_of_text(node))
        if _DECIMAL.fullmatch(node.text):
            return _finite(float(node.text), node)
    if isinstance(node, Value):
        if type(node.value) is int:
            return float(_bounded(node.value, node))
        if type(node.value) is float:
            return _finite(node.value, node)
    raise NodeError(f"expected a number such as 1.5, found {described(node)}", node.place)


def to_str(node: Node) -> str:
    """The source text of a scalar, whatever YAML would make of it.

    Raises:
        NodeError: a list, a mapping, null, or a Python value that is no string.
    """
    if isinstance(node, Scalar) and not is_null(node):
        return node.text
    if isinstance(node, Value) and type(node.value) is str:
        return node.value
    hint = '; write "" for an empty one' if is_null(node) else ""
    raise NodeError(f"expected a string, found {described(node)}{hint}", node.place)


def to_int_or_str(node: Node) -> int | str:
    """An integer where it is written as one, otherwise a string.

    Raises:
        NodeError: anything else, or a plain scalar that readers could take for another kind of value.
    """
    value = to_json(node)
    if isinstance(value, str) or type(value) is int:
        return value
    raise NodeError(f"expected a whole number or a string, found {described(node)}", node.place)


def to_json(node: Node, depth: int = 0) -> Any:
    """A value as JSON has it; ``depth`` levels of free-form values are around it.

    Raises:
        NodeError: a plain scalar that readers could take for different values, a number out of range,
            a Python value that JSON does not have, or too many levels.
    """
    if depth > MAX_JSON_DEPTH:
        raise NodeError(f"nested more than {MAX_JSON_DEPTH} levels deep", node.place)
    if isinstance(node, Table):
        return {key: _within(key, value, depth + 1) for key, value in open_items(node)}
    if isinstance(node, Items):
        return [_within(index, item, depth + 1) for index, item in enumerate(node.items)]
    if isinstance(node, Value):
        return _json_of_value(node)
    return _json_of_scalar(node)


def _within(key: str | int, node: Node, depth: int) -> Any:
    try:
        return to_json(node, depth)
    except NodeError as error:
        error.keys.append(key)
        raise


def _json_of_scalar(node: Scalar) -> Any:
    text = node.text
    if not node.plain:
        return text
    if is_null(node):
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _INTEGER.fullmatch(text):
        return _int_of_text(node)
    if _DECIMAL.fullmatch(text):
        return _finite(float(text), node)
    if is_ambiguous(text):
        message = f"YAML readers disagree on what {shown(text)} is"
        raise NodeError(f"{message}; put it in quotes, or write true, false or plain digits", node.place)
    return text


def _json_of_value(node: Value) -> Any:
    value = node.value
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int:
        return _bounded(value, node)
    if type(value) is float:
        return _finite(value, node)
    raise NodeError(f"expected a value as JSON has it, found {described(node)}", node.place)


def _int_of_text(node: Scalar) -> int:
    digits = len(node.text.lstrip("-"))
    if digits > MAX_DIGITS:
        message = f"a number of {digits} digits is out of range"
        raise NodeError(f"{message}; at most {MAX_DIGITS} digits are read", node.place)
    return int(node.text)


def _bounded(value: int, node: Node) -> int:
    if abs(value) >= 10**MAX_DIGITS:
        raise NodeError(f"the number is out of range; at most {MAX_DIGITS} digits are read", node.place)
    return value


def _finite(value: float, node: Node) -> float:
    if not math.isfinite(value):
        raise NodeError("the number is not finite or out of range", node.place)
    return value
