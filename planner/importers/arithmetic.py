"""Which variables a shell's arithmetic assigns, found in the text without evaluating any of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from attrs import frozen

MAX_GUESSED = 500
"""Characters that are taken for arithmetic where it is not clear whether they are any."""

_OPERATOR = r"(?:\+\+|--|(?:<<|>>|\*\*|[-+*/%&|^])?=(?!=))"
_ASSIGNED = re.compile(rf"(?<![\w$])([A-Za-z_]\w*)(?:\[[^\]]{{0,99}}\])?\s*{_OPERATOR}")
_COUNTED = re.compile(r"(?:\+\+|--)\s*([A-Za-z_]\w*)")
_INDIRECT = re.compile(rf"\$(?:\w+|\{{\w+\}})\s*{_OPERATOR}|(?:\+\+|--)\s*\$")
"""An assignment to the variable that another one names."""

_EVALUATED = re.compile(
    r"""\$\[ (?P<old> [^\]\n]{0,500})
      | \blet[ \t] (?P<let> [^\n]{0,500})
      | \w\[ (?P<subscript> [^\]\n]{1,500}) \]
      | \$\{ [\#!]?\w+ : (?P<offset> [^-=?+}\n][^}\n]{0,500})""",
    re.VERBOSE,
)
_TEST = re.compile(r"\[\[\s(.{0,500}?)\s\]\]", re.DOTALL)
_PARENTHESIS = re.compile(r"[()]")
_BEGIN = re.compile(r"\((?=\()")
_DESCRIPTOR = re.compile(r"\{([A-Za-z_]\w*)\}[<>]")
"""A variable that a redirection sets to the number of a file."""


@frozen
class Assigned:
    """The ``names`` that are assigned; ``indirectly`` says that others may be, too."""

    names: frozenset[str]
    indirectly: bool


def assigned_in(text: str) -> Assigned:
    """The variables that arithmetic anywhere in ``text`` assigns, be it quoted or in a comment."""
    names = {match[1] for match in _DESCRIPTOR.finditer(text)}
    indirectly = False
    for expression in _expressions(text):
        names.update(_ASSIGNED.findall(expression))
        names.update(_COUNTED.findall(expression))
        indirectly = indirectly or _INDIRECT.search(expression) is not None
    for match in _TEST.finditer(text):
        # Blanks around = compare texts there.
        for word in match[1].split():
            names.update(_ASSIGNED.findall(word))
            names.update(_COUNTED.findall(word))
    return Assigned(frozenset(names), indirectly)


def parentheses(text: str) -> dict[int, int]:
    """Where each parenthesis of ``text`` that is closed is closed, by where it is opened."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    for found in _PARENTHESIS.finditer(text):
        if found[0] == "(":
            opened.append(found.start())
        elif opened:
            pairs[opened.pop()] = found.start()
    return pairs


def end_of_arithmetic(at: int, pairs: Mapping[int, int]) -> int | None:
    """Where the arithmetic ends that ``((`` at ``at`` begins, ``None`` where those begin something else.

    ``pairs`` are the parentheses of the text.
    """
    inner, outer = pairs.get(at + 1), pairs.get(at)
    return outer + 1 if inner is not None and outer == inner + 1 else None


def _expressions(text: str) -> Iterator[str]:
    pairs = parentheses(text) if "((" in text else {}
    read = guessed = 0
    for match in _BEGIN.finditer(text):
        at = match.start()
        end = end_of_arithmetic(at, pairs)
        if end is not None and end > read:
            yield text[at + 2 : end - 2]
            read = end
        elif end is None and at >= guessed:
            # A parenthesis in quotes may hide where it ends.
            line = text.find("\n", at, at + MAX_GUESSED)
            guessed = at + MAX_GUESSED if line < 0 else line
            yield text[at + 2 : guessed]
    for match in _EVALUATED.finditer(text):
        yield next(group for group in match.groups() if group is not None)
