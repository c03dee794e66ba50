"""Which shell variables a script sets to values that are certain, found without running anything."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise

from attrs import define, field

from planner.importers.arithmetic import assigned_in
from planner.importers.blocks import Foresight

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_NAMING = frozenset(
    {"export", "declare", "typeset", "local", "readonly", "read", "unset", "for", "select", "let", "printf"}
    | {"mapfile", "readarray", "getopts", "wait", "coproc"}
)
"""Commands that change the variables whose names are among their arguments."""
_BY_VALUE = _NAMING - {"for", "select", "printf", "wait", "coproc"}
"""Those whose arguments may be names that another variable holds."""
_REFERRING = frozenset({"declare", "typeset", "local"})
_REFERENCE = re.compile(r"-\w*n\w*")
_CALLING = frozenset({"command", "builtin"})
_NAME = re.compile(r"[A-Za-z_]\w*")
_SET = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]]*\])?\+?=")
_BETWEEN_COMMANDS = frozenset({"DEBUG", "ERR", "RETURN"})
"""What ``trap`` may run something at while a script goes on."""
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
    this one does for it is in ``changes`` and ``sweeps``. ``hidden`` are variables that change where no
    assignment stands, by arithmetic or a trap; ``opaque`` says that any of them may.
    """

    given: Mapping[str, str] = field(factory=dict)
    known: dict[str, str] = field(factory=dict)
    arrays: dict[str, tuple[str, ...]] = field(factory=dict)
    doubtful: set[str] = field(factory=set)
    foresight: Foresight = field(factory=Foresight)
    changes: dict[str, list[int]] = field(factory=dict)
    sweeps: list[int] = field(factory=list)
    hidden: set[str] = field(factory=set)
    opaque: bool = False

    def foresee(self, text: str) -> None:
        """Takes in what arithmetic assigns anywhere in the script."""
        assigned = assigned_in(text)
        for name in assigned.names:
            self._hide(name, 0)
        if assigned.indirectly:
            self._sweep_for_good(0)

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
        if words[0][0] in _CALLING and len(words) > 1:
            words = words[1:]
        first = words[0][0]
        self._follow_hidden(words, at)
        pairs = words[1:] if first == "export" else words
        matches = [(_ASSIGNMENT.fullmatch(text), is_known) for text, is_known in pairs]
        if all(match is not None for match, _ in matches):
            for match, is_known in matches:
                if match is not None:
                    self._assign(match, certain=is_known and certain, at=at)
        elif first in _NAMING or not certain:
            for text, _ in words:
                match = _ASSIGNMENT.fullmatch(text)
                # The name may stand right behind the letter of an option.
                self._doubt(match[1] if match else text[2:] if text.startswith("-") else text, at)
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
        elif name not in self.doubtful and not self.opaque:
            self._note(name, at)
            self.arrays[name] = (*before, *elements)

    def _follow_hidden(self, words: Sequence[tuple[str, bool]], at: int) -> None:
        """Takes in what a command may change without an assignment by name."""
        first = words[0][0]
        if first in _ANYTHING or _names_by_value(words):
            self._sweep(at)
        if first in _REFERRING and any(_REFERENCE.fullmatch(text) for text, _ in words[1:]):
            self._sweep_for_good(at)
        if first == "trap":
            self._trap(words[1:], at)

    def default(self, name: str, at: int) -> None:
        """Takes in that ``name`` may be set to a default, if it has no value."""
        if not self.known.get(name):
            self._doubt(name, at)

    def _trap(self, words: Sequence[tuple[str, bool]], at: int) -> None:
        """Takes in a command that has other commands run later, such as between any two."""
        if not words:
            return
        action, is_known = words[0]
        names = {*_SET.findall(action), *assigned_in(action).names}
        if not _BETWEEN_COMMANDS.isdisjoint(text.upper() for text, _ in words[1:]):
            names.update(_NAME.findall(action))
            if not is_known or not _ANYTHING.isdisjoint(action.split()):
                self._sweep_for_good(at)
        for name in names:
            self._hide(name, at)

    def _sweep(self, at: int) -> None:
        self.known.clear()
        self.arrays.clear()
        self.sweeps.append(at)

    def _sweep_for_good(self, at: int) -> None:
        self._sweep(at)
        self.opaque = True

    def _hide(self, name: str, at: int) -> None:
        self._doubt(name, at)
        self.hidden.add(name)

    def _assign(self, match: re.Match[str], *, certain: bool, at: int) -> None:
        name, more, value = match.groups()
        if not certain or more:
            self._doubt(name, at)
        elif name not in self.doubtful and not self.opaque:
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


def _names_by_value(words: Sequence[tuple[str, bool]]) -> bool:
    """Whether a command changes variables whose names are not known."""
    first = words[0][0]
    if first == "printf":
        targets = [pair for before, pair in pairwise(words) if before[0] == "-v"]
    else:
        targets = list(words[1:]) if first in _BY_VALUE else []
    return any(not is_known and not _ASSIGNMENT.fullmatch(text) for text, is_known in targets)
