"""How parameters and substitutions are spelled in a shell text, and where each ends."""

from __future__ import annotations

import re

VARIABLE = re.compile(
    r"""\$ (?: \{ (?P<prefix> (?: [\#!] (?=\w) )?) (?P<braced> \w+ | [@*\#?!$-]) (?P<rest> [^}]*) \}?
          | (?P<plain> [A-Za-z_]\w* | [0-9@*\#?!$-])
          | (?P<command> \())""",
    re.VERBOSE,
)
"""What a shell looks up, but for what stands in backquotes."""
_BRACES = re.compile(r"\\.|\$\{|[{}]", re.DOTALL)
ELEMENTS = re.compile(r'"\$(?:\{(\w+)\[[@*]\]\}|(@)|\{(@)\})"')
"""All elements of an array, or all parameters, each of which is a word."""
DEFAULTS = re.compile(r"(:?)([-=?])")
"""What may stand behind a name in braces, of which the text after it is for a variable without value."""
_PARAMETER = re.compile(r"\$(?:(\w+|[@*#?!$-])|\{(\w+|[@*#?!$-])\})")


def end_of_parentheses(text: str, at: int) -> int:
    """Where the parenthesis that stands at ``at`` is closed, or the text ends."""
    depth = 0
    for end in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        if depth == 0:
            return end + 1
    return len(text)


def end_of_braces(text: str, at: int) -> int:
    """Where the brace that stands at ``at`` is closed, or the text ends."""
    depth = 0
    for brace in _BRACES.finditer(text, at):
        depth += {"${": 1, "{": not depth, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.end()
    return len(text)


def end_of_name(text: str) -> int:
    """Where what ``text`` begins with ends: a name, or a whole substitution that may hold ``=`` itself."""
    if text.startswith("`"):
        end = text.find("`", 1) + 1
    elif text.startswith("${"):
        end = end_of_braces(text, 1)
    elif text.startswith("$("):
        end = end_of_parentheses(text, 1)
    else:
        end = text.find("=")
        return len(text) if end < 0 else end
    return end or len(text)


def parameter_name(text: str) -> str:
    """The name of a parameter without ``$`` and braces around it; any other text as it is."""
    found = _PARAMETER.fullmatch(text)
    return text if found is None else found[1] or found[2]
