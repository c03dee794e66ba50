"""The starts of servers that a text holds: which engine, with which words and environment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from attrs import evolve, field, frozen

from planner.documents.tree import printable
from planner.errors import DocumentError
from planner.importers.detect import ASSIGNMENT, IMAGE, is_shell, start_of
from planner.importers.doubts import Doubts, repetition
from planner.importers.exports import Exports, assignments, last_changes
from planner.importers.script import Script, read_script
from planner.importers.unread import unread_in_script
from planner.importers.words import Word, unmarked

MAX_SHELLS = 4
"""Shells that are followed within one another; a variable may start one with its own text again."""

CONTAINER_OPTIONS = {
    "--env-file": "is not read; write -e NAME=VALUE",
    "--entrypoint": "changes what the image starts; give the server's own command line",
}
"""Options of ``docker run`` that could change the command, and what to do instead."""


@frozen(kw_only=True)
class Launch:
    """One start of a server.

    ``name`` is how a user picks it among others, ``where`` the word at which it begins. ``program`` is
    the last word before its own ``words``: an image, or what a program is called by. ``files`` are texts
    that the source itself holds, by their names; other files of it start at ``folder``. ``is_contained``
    says that its paths are those of a container.
    """

    engine: str
    name: str
    words: tuple[Word, ...]
    env: Mapping[str, Word] = field(factory=dict)
    where: Word
    program: str = ""
    title: str | None = None
    files: Mapping[str, str] = field(factory=dict)
    folder: Path = field(factory=Path)
    remarks: tuple[str, ...] = ()
    is_contained: bool = False


def launches_in_text(text: str, path: str | None, given: Mapping[str, str]) -> list[Launch]:
    """The starts of servers in a shell text.

    ``given`` are values of variables that the user says.

    Raises:
        DocumentError: the text cannot be read.
    """
    script = read_script(unmarked(text, path), path, given=given)
    found = list(launches_in_script(script, path, given))
    return [evolve(launch, name=f"line {launch.where.line}") for launch in found]


def launches_in_script(
    script: Script,
    path: str | None,
    given: Mapping[str, str],
    env: Mapping[str, Word] | None = None,
    depth: int = 0,
) -> Iterator[Launch]:
    """The starts of servers among the commands of a script, which begins with the environment ``env``."""
    exports = Exports(dict(env or {}), given, last_changes(script), script.changes_hidden)
    calls = Counter(command.run[0].text for command in script.commands)
    unread = list(unread_in_script(script))
    doubts = Doubts()
    last: Launch | None = None
    remarks: list[str] = []
    for command in script.commands:
        first = command.words[0]
        if last is not None and first.text.startswith("--"):
            remarks.append(
                f"line {first.line} begins with {printable(first.text)} and is not part of the command, "
                "which has ended before it"
            )
        exports.follow(command)
        for launch in launches_of(command.words, path, given, exports.at(command), depth):
            if last is not None:
                yield evolve(last, files=script.files, remarks=(*last.remarks, *remarks))
                remarks = []
            remarked = (*repetition(command, calls), *doubts.of(command))
            last = evolve(launch, remarks=(*launch.remarks, *exports.remarks, *remarked, *unread))
        doubts.follow(command)
    if last is not None:
        yield evolve(last, files=script.files, remarks=(*last.remarks, *remarks))


def launches_of(
    command: Sequence[Word],
    path: str | None,
    given: Mapping[str, str],
    env: Mapping[str, Word],
    depth: int = 0,
) -> Iterator[Launch]:
    """The starts of servers in one command: the command itself, or those in a script for a shell.

    Raises:
        DocumentError: the command changes in ways that are not followed what an image starts.
    """
    texts = [word.text for word in command]
    start = start_of(texts)
    if start is not None:
        before = command[: start.at]
        if IMAGE.fullmatch(texts[start.at - 1]):
            _refuse_container_options(before, path)
        yield Launch(
            engine=start.engine,
            name="",
            words=tuple(command[start.at :]),
            env={**env, **dict(assignments(before))},
            where=command[0],
            program=texts[start.at - 1],
            remarks=tuple(_unread_settings(before)),
            is_contained="docker" in texts[: start.at] or "podman" in texts[: start.at],
        )
    elif (script := shell_script(command)) is not None and depth < MAX_SHELLS:
        env = {**env, **dict(assignments(command))}
        known = {name: word.text for name, word in env.items() if not word.unknown}
        # What is not known in it is written as a shell would look it up, so that it stays unknown.
        nested = read_nested(script, path, given, known)
        for launch in launches_in_script(nested, path, given, env, depth + 1):
            yield placed(launch, script.line, script.column)


def _unread_settings(before: Sequence[Word]) -> Iterator[str]:
    """What stands in front of a server and may set its environment, without being read."""
    for word in before:
        if word.unknown and not ASSIGNMENT.fullmatch(word.text.removeprefix("--env=")):
            found = printable(word.unknown[0])
            yield f"{found} in front of the server is not read; give what it sets with --set"


def read_nested(script: Word, path: str | None, given: Mapping[str, str], env: Mapping[str, str]) -> Script:
    """The script that ``script`` is the text of.

    Raises:
        DocumentError: it cannot be read; the place is that of ``script`` itself.
    """
    try:
        return read_script(script.text, path, given=given, env=env)
    except DocumentError as error:
        raise DocumentError(error.message, path=path, line=script.line, column=script.column) from None


def placed(launch: Launch, line: int | None, column: int | None) -> Launch:
    """``launch`` with all its words at one place, for text that has none of its own."""

    def moved(word: Word) -> Word:
        return evolve(word, line=line, column=column)

    return evolve(launch, words=tuple(map(moved, launch.words)), where=moved(launch.where))


def shell_script(command: Sequence[Word]) -> Word | None:
    """The script that a command hands to a shell with ``-c``."""
    for index, word in enumerate(command):
        if not is_shell(word.text):
            continue
        for at in range(index + 1, len(command) - 1):
            option = command[at].text
            if not option.startswith("-"):
                break
            if not option.startswith("--") and "c" in option:
                return command[at + 1]
    return None


def _refuse_container_options(words: Sequence[Word], path: str | None) -> None:
    for word in words:
        name = word.text.partition("=")[0]
        if name in CONTAINER_OPTIONS:
            message = CONTAINER_OPTIONS[name]
            raise DocumentError(message, path=path, line=word.line, column=word.column, key=name)
