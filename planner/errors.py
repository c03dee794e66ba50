"""Every error that graphplan raises on purpose: one class per kind, under one base.

A message says what is wrong, where, and what to do. The command line prints it as one line and
exits with the class's ``exit_code``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike

HEAD_LENGTH = 1_000
TAIL_LENGTH = 400
"""What is kept of a message that is longer than both together; its end says what to do."""


def clear_line(text: str) -> str:
    """``text`` as one printable line of bounded length.

    Values out of a stranger's document stand in messages: none of them may break the line, steer the
    terminal, or bury the rest.
    """
    if not text.isprintable():
        text = "".join(
            letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
            for letter in text
        )
    if len(text) <= HEAD_LENGTH + TAIL_LENGTH:
        return text
    return f"{text[:HEAD_LENGTH]} [...] {text[-TAIL_LENGTH:]}"


class GraphplanError(Exception):
    """Base of all errors that a user of graphplan can cause or meet; the text is one line.

    ``path`` is the name of the document that the error is about, where that is known.
    """

    exit_code = 2
    path: str | None = None

    def __str__(self) -> str:
        text = super().__str__()
        return clear_line(f"{self.path}: {text}" if self.path else text)


class DocumentError(GraphplanError):
    """A Deployment or Plan that cannot be read: wrong YAML, key, type or value.

    ``path``, ``line`` and ``column`` (both counted from 1) say where, and ``key`` is the dotted
    path inside the document; each is ``None`` where it is not known.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        line: int | None = None,
        column: int | None = None,
        key: str | None = None,
    ) -> None:
        self.message = message
        self.path = path
        self.line = line
        self.column = column
        self.key = key
        super().__init__(message)

    def __str__(self) -> str:
        place = self.path or ""
        if self.line is not None:
            place += f":{self.line}:{self.column}" if place else f"line {self.line}, column {self.column}"
        parts = [part for part in (place, self.key, self.message) if part]
        return clear_line(": ".join(parts))


class PlanError(GraphplanError):
    """A readable deployment that the engine would refuse to start with.

    ``fields`` are the dotted paths of the settings that contradict each other or the rule.
    """

    def __init__(self, message: str, *, fields: Sequence[str]) -> None:
        self.message = message
        self.fields = tuple(fields)
        super().__init__(f"{', '.join(self.fields)}: {message}")


class ExportError(PlanError):
    """A plan that an engine has no settings for."""


class ArgumentError(GraphplanError, TypeError):
    """A function of the Python interface was called with something of another type than it takes."""


def argument_error(function: str, expected: str, found: object, **instead: str) -> ArgumentError:
    """The error of a ``function`` that takes an object of the class ``expected``.

    ``instead`` says what to do with objects of other classes, by the class's name.
    """
    kind = type(found).__name__
    hint = instead.get(kind)
    if hint is None and isinstance(found, str | bytes | PathLike | Mapping):
        hint = f"load_{expected.lower()} makes one of a file, text or a mapping"
    message = f"{function} takes a {expected}, found a value of type {kind}"
    return ArgumentError(f"{message}; {hint}" if hint else message)


class BatchError(GraphplanError):
    """A batch that no runner can form, such as more requests than tokens."""


class FamilyError(GraphplanError):
    """A family of graphs that the plan does not have."""


class MachineError(GraphplanError):
    """This machine lacks what the command needs, such as a GPU or an optional package."""

    exit_code = 3
