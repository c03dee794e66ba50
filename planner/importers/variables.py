"""Which shell variables a script sets to values that are certain, found without running anything."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from attrs import define, field

from planner.importers.blocks import Foresight

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
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
    that is always reached. What is set in a block is not, and stays ``doubtful`` whatever else sets it.
    ``given`` has what the user says beside the script, which wins over all of it; it may name whole
    substitutions, such as ``$(nproc)``. ``foresight`` is what an earlier reading has found out; what
    this one does for it is in ``changes`` and ``sweeps``.
    """

    given: Mapping[str, str] = field(factory=dict)
    known: dict[str, str] = field(factory=dict)
    arrays: dict[str, tuple[str, ...]] = field(factory=dict)
    doubtful: set[str] = field(factory=set)
    foresight: Foresight = field(factory=Foresight)
    changes: dict[str, list[int]] = field(factory=dict)
    sweeps: list[int] = field(factory=list)

    def value(self, name: str, at: int) -> str | None:
        """The text that a name or a substitution stands for, ``None`` where that is not certain.

        ``at`` is where in the script it is asked for.
        """
        if name in self.given:
            return self.given[name]
        return None if self.foresight.changes_again(name, at) else self.known.get(name)

    def words(self, name: str, at: int) -> tuple[str, ...] | None:
        """The words that a name without quotes stands for, ``None`` where they are not certain."""
        value = self.value(name, at)
        return None if value is None or _GLOB.search(value) else tuple(value.split())

    def elements(self, name: str, at: int) -> tuple[str, ...] | None:
        """The elements of an array. What the user gives for one is read as a shell reads words."""
        if name not in self.given:
            return None if self.foresight.changes_again(name, at) else self.arrays.get(name)
        try:
            return tuple(shlex.split(self.given[name]))
        except ValueError:
            return None

    def follow(self, words: Sequence[tuple[str, bool]], *, certain: bool, at: int) -> None:
        """Takes in one command: its words, each with whether it is certain.

        ``certain`` says that no condition, block or pipe decides whether and where it runs.
        """
        first = words[0][0]
        if first in _ANYTHING:
            self.known.clear()
            self.arrays.clear()
            self.sweeps.append(at)
        pairs = words[1:] if first == "export" else words
        matches = [(_ASSIGNMENT.fullmatch(text), is_known) for text, is_known in pairs]
        if all(match is not None for match, _ in matches):
            for match, is_known in matches:
                if match is not None:
                    self._assign(match, certain=is_known and certain, at=at)
        elif first in _NAMING or not certain:
            for text, _ in words:
                match = _ASSIGNMENT.fullmatch(text)
                self._doubt(match[1] if match else text, at)
        else:
            # An assignment in front of a command holds for that command, which may be a function.
            for match, _ in matches:
                if match is not None:
                    self._note(match[1], at)

    def set_array(self, name: str, elements: tuple[str, ...] | None, *, adds: bool, at: int) -> None:
        """Takes in an assignment of an array, whose elements are ``None`` where they are not certain."""
        before = self.arrays.get(name) if adds else ()
        if elements is None or before is None:
            self._doubt(name, at)
        elif name not in self.doubtful:
            self._note(name, at)
            self.arrays[name] = (*before, *elements)

    def _assign(self, match: re.Match[str], *, certain: bool, at: int) -> None:
        name, more, value = match.groups()
        if not certain or more:
            self._doubt(name, at)
        elif name not in self.doubtful:
            self._note(name, at)
            self.known[name] = value

    def _doubt(self, name: str, at: int) -> None:
        self.known.pop(name, None)
        self.arrays.pop(name, None)
        self.doubtful.add(name)
        self._note(name, at)

    def _note(self, name: str, at: int) -> None:
        places = self.changes.setdefault(name, [])
        if not places or places[-1] != at:
            places.append(at)
