"""The environment that a script gives to the commands it starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from attrs import define, evolve, field, frozen

from planner.documents.tree import printable
from planner.importers.blocks import Command
from planner.importers.detect import ASSIGNMENT
from planner.importers.script import Script
from planner.importers.words import Word

_EXPORTING = frozenset({"export", "ENV"})
_TAKING_AWAY = "unset"
_OF_UNIT = "Environment="
"""What settings begin with in a unit of systemd; ``ENV`` is that of a Dockerfile."""


def assignments(words: Sequence[Word]) -> Iterator[tuple[str, Word]]:
    """The settings of the environment among ``words``."""
    for word in words:
        if match := ASSIGNMENT.fullmatch(word.text.removeprefix("--env=")):
            yield match[1], Word(match[2], word.line, word.column, word.unknown)


@frozen
class _Export:
    """What a variable is set to, ``None`` where it is taken away, for the commands whose path begins so."""

    word: Word | None
    path: tuple[int, ...]


@define
class Exports:
    """The exported variables while the commands of a script are followed one by one.

    ``env`` is what the script begins with, ``given`` has what the user says beside it, which wins.
    ``last`` is where each variable is set for the last time, which a function may see from any place in
    front of it. ``changes_hidden`` says whether a variable changes where no assignment of it stands.
    ``remarks`` are on what else may have set variables.
    """

    env: Mapping[str, Word]
    given: Mapping[str, str]
    last: Mapping[str, tuple[int, Word]]
    changes_hidden: Callable[[str], bool]
    set: dict[str, _Export] = field(factory=dict)
    remarks: list[str] = field(factory=list)

    def follow(self, command: Command) -> None:
        """Takes in a command that may change the environment."""
        words = command.run
        name = words[0].text
        if name == "export":
            for word in words[1:]:
                if word.unknown and "=" not in word.text:
                    found = printable(word.unknown[0])
                    where = f"line {word.line}: export {found}"
                    self.remarks.append(f"{where} is not read; give what it sets with --set")
        for changed, value in _changes(words):
            if _is_setting(words) or changed in self.set or changed in self.env:
                self.set[changed] = _Export(value, command.path)

    def at(self, command: Command) -> dict[str, Word]:
        """The environment of a command. What is not certain to be set, or to what, is not known."""
        env = dict(self.env)
        for name, export in self.set.items():
            if command.path[: len(export.path)] != export.path or self.changes_hidden(name):
                env[name] = _unknown(name, command)
            elif export.word is None:
                env.pop(name, None)
            else:
                env[name] = export.word
        env.update(self._set_later(command))
        for name in self.given:
            if (word := env.get(name)) is not None:
                env[name] = Word(self.given[name], word.line, word.column)
        return env

    def _set_later(self, command: Command) -> Iterator[tuple[str, Word]]:
        """The variables that may be set before the function runs in which a command stands."""
        body = command.body
        if body is not None and body.function is not None:
            yield from ((name, word) for name, (at, word) in self.last.items() if at >= body.end)


def last_changes(script: Script) -> dict[str, tuple[int, Word]]:
    """Where each variable of the environment is set for the last time, be it for the call of a function.

    Of each the offset, and its value there as one that is not known.
    """
    functions = {command.body.function for command in script.commands if command.body}
    last: dict[str, tuple[int, Word]] = {}
    exported: set[str] = set()
    for command in script.commands:
        is_setting = _is_setting(command.run)
        is_call = any(word.text in functions for word in command.run)
        for name, _ in _changes(command.run, of_call=is_call):
            if is_setting or is_call or name in exported:
                last[name] = command.at, _unknown(name, command)
                exported.add(name)
    return last


def _is_setting(words: Sequence[Word]) -> bool:
    name = words[0].text
    return name in _EXPORTING or name == _TAKING_AWAY or name.startswith(_OF_UNIT)


def _changes(words: Sequence[Word], *, of_call: bool = False) -> Iterator[tuple[str, Word | None]]:
    """The variables that a command sets or, with ``None``, takes away; of a call also those for it alone."""
    name = words[0].text
    if name == _TAKING_AWAY:
        yield from ((word.text, None) for word in words[1:])
    elif name in _EXPORTING:
        yield from assignments(words[1:])
    elif name.startswith(_OF_UNIT):
        yield from assignments([evolve(words[0], text=name.removeprefix(_OF_UNIT)), *words[1:]])
    else:
        found = list(assignments(words))
        yield from found if of_call or len(found) == len(words) else ()


def _unknown(name: str, command: Command) -> Word:
    place = command.words[0]
    return Word(f"${name}", place.line, place.column, (f"${name}",))
