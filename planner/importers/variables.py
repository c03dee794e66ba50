"""Which shell variables a script sets to values that are certain, found without running anything."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from attrs import define, field

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_OPENING = frozenset({"if", "for", "while", "until", "case", "select", "function", "{"})
_CLOSING = frozenset({"fi", "done", "esac", "}"})
_LEADING = frozenset({"then", "do", "else", "elif", "!", "time"})
_NAMING = frozenset(
    {"export", "declare", "typeset", "local", "readonly", "read", "unset", "for", "select", "let", "printf"}
    | {"mapfile", "readarray", "getopts"}
)
"""Commands that change the variables whose names are among their arguments."""
_ANYTHING = frozenset({"source", ".", "eval"})
"""Commands that may change any variable."""
_GLOB = re.compile(r"[*?\[]")
"""What a shell may make other words of in a value without quotes."""


@define
class Variables:
    """The variables of a script at one place in it.

    ``known`` and ``arrays`` have those that are certain: set to text without look-ups, by an assignment
    that is always reached. What is set in a block, of which ``blocks`` and ``subshells`` count the open
    ones, is not, and stays ``doubtful`` whatever else sets it. ``given`` has what the user says beside
    the script, which wins over all of it; it may name whole substitutions, such as ``$(nproc)``.
    """

    given: Mapping[str, str] = field(factory=dict)
    known: dict[str, str] = field(factory=dict)
    arrays: dict[str, tuple[str, ...]] = field(factory=dict)
    doubtful: set[str] = field(factory=set)
    blocks: int = 0
    subshells: int = 0

    def value(self, name: str) -> str | None:
        """The text that a name or a substitution stands for, ``None`` where that is not certain."""
        return self.given.get(name, self.known.get(name))

    def words(self, name: str) -> tuple[str, ...] | None:
        """The words that a name without quotes stands for, ``None`` where they are not certain."""
        value = self.value(name)
        return None if value is None or _GLOB.search(value) else tuple(value.split())

    def elements(self, name: str) -> tuple[str, ...] | None:
        """The elements of an array. What the user gives for one is read as a shell reads words."""
        if name not in self.given:
            return self.arrays.get(name)
        try:
            return tuple(shlex.split(self.given[name]))
        except ValueError:
            return None

    def follow(self, words: Sequence[tuple[str, bool]], *, alone: bool) -> None:
        """Takes in one command: its words, each with whether it is certain.

        ``alone`` says that neither a condition nor a pipe decides whether and where it runs.
        """
        if not words:
            return
        first = next((text for text, _ in words if text not in _LEADING), "")
        self.blocks = max(0, self.blocks + (first in _OPENING) - (first in _CLOSING))
        if first in _ANYTHING:
            self.known.clear()
            self.arrays.clear()
        certain_here = alone and not self.blocks and not self.subshells
        pairs = words[1:] if first == "export" else words
        matches = [(_ASSIGNMENT.fullmatch(text), certain) for text, certain in pairs]
        if all(match is not None for match, _ in matches):
            for match, certain in matches:
                if match is not None:
                    self._assign(match, certain=certain and certain_here)
        elif first in _NAMING or not certain_here:
            for text, _ in words:
                match = _ASSIGNMENT.fullmatch(text)
                self._doubt(match[1] if match else text)

    def parenthesis(self, letter: str) -> None:
        """Takes in the beginning or the end of a subshell."""
        self.subshells = max(0, self.subshells + (1 if letter == "(" else -1))

    def set_array(self, name: str, elements: tuple[str, ...] | None, *, adds: bool) -> None:
        """Takes in an assignment of an array, whose elements are ``None`` where they are not certain."""
        before = self.arrays.get(name) if adds else ()
        if elements is None or before is None or self.blocks or self.subshells:
            self._doubt(name)
        elif name not in self.doubtful:
            self.arrays[name] = (*before, *elements)

    def _assign(self, match: re.Match[str], *, certain: bool) -> None:
        name, more, value = match.groups()
        if not certain or more:
            self._doubt(name)
        elif name not in self.doubtful:
            self.known[name] = value

    def _doubt(self, name: str) -> None:
        self.known.pop(name, None)
        self.arrays.pop(name, None)
        self.doubtful.add(name)
