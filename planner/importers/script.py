"""A whole shell text: its commands, and the files and inputs that it holds."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from planner.errors import DocumentError
from planner.importers.blocks import Command, Foresight
from planner.importers.shell import Reader
from planner.importers.variables import Variables
from planner.importers.words import Word, unmarked

MAX_TEXT = 2**20
"""Longest text in characters; the longest command line of Linux is of this order."""


@frozen
class Script:
    """What a shell text holds: its commands, the files that it writes itself, and what they read in it.

    ``files`` has the text of each by its name as the script spells it, ``inputs`` the texts that stand
    in the script for the standard input of a program, by the word that names the program. ``hidden``
    are variables that change where no assignment of them stands; ``opaque`` says that any may.
    """

    commands: tuple[Command, ...]
    files: Mapping[str, str]
    inputs: tuple[tuple[Word, str], ...] = ()
    hidden: frozenset[str] = frozenset()
    opaque: bool = False

    def changes_hidden(self, name: str) -> bool:
        """Whether the variable ``name`` may change where no assignment of it stands."""
        return self.opaque or name in self.hidden


def read_script(
    text: str,
    path: str | None,
    *,
    given: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Script:
    """The commands and files of ``text``. Redirections are left out.

    ``given`` are values of variables that win over what the text says, ``env`` those that it starts with.

    Raises:
        DocumentError: a quote is never closed, blanks stand after the backslash that should continue a
            line, or the text is far too long. ``path`` is the name of the text in messages.
    """
    if len(text) > MAX_TEXT:
        raise DocumentError(f"longer than {MAX_TEXT // 2**20} MiB; paste the command alone", path=path)
    text = text.removeprefix("\ufeff")
    reader = _reader(text, path, given or {}, env or {}, Foresight())
    commands = list(reader.commands())
    if reader.blocks.bodies:
        # What runs again later sees what is set by then.
        foresight = reader.foresight()
        reader = _reader(text, path, given or {}, env or {}, foresight)
        commands = [reader.within_body(command, foresight) for command in reader.commands()]
    variables = reader.variables
    hidden = frozenset(variables.hidden)
    return Script(tuple(commands), reader.files, tuple(reader.inputs), hidden, variables.opaque)


def _reader(
    text: str, path: str | None, given: Mapping[str, str], env: Mapping[str, str], foresight: Foresight
) -> Reader:
    variables = Variables(given, dict(env), foresight=foresight)
    variables.foresee(text)
    return Reader(text, path, variables=variables)


def commands_of(text: str, path: str | None) -> list[list[Word]]:
    """The commands in ``text`` alone, as by ``read_script``."""
    return [list(command.words) for command in read_script(unmarked(text, path), path).commands]
