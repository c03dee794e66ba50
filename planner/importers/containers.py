"""Containers of a manifest: what each would start, with its image, command, arguments and environment."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from attrs import evolve, field, frozen

from planner.importers.detect import IMAGE, VLLM
from planner.importers.launches import Launch, launches_in_script, launches_of, read_nested, shell_script
from planner.importers.words import Word

_INDENT = re.compile(r"^( *)(?=\S)", re.MULTILINE)
_SEARCHED = 4096
"""How far behind the last word of a multi-line scalar the next one is looked for, in characters."""


@frozen(kw_only=True)
class Container:
    """A container as a manifest has it.

    ``entrypoint`` are the words in place of the image's own program, ``None`` where that is kept;
    ``arguments`` come behind it. ``title`` is the name that its owner has.
    """

    name: str
    title: str | None
    image: str
    entrypoint: tuple[Word, ...] | None
    arguments: tuple[Word, ...]
    env: Mapping[str, Word]
    place: Word
    files: Mapping[str, str] = field(factory=dict)
    remarks: tuple[str, ...] = ()


def launches_in_container(
    container: Container, source: Source, path: str | None, given: Mapping[str, str]
) -> list[Launch]:
    """The starts of servers in a container; several only if it runs a script with several."""
    words = (*(container.entrypoint or ()), *container.arguments)
    if container.entrypoint is None and IMAGE.fullmatch(container.image):
        found = [_of_image(container)]
    elif (script := shell_script(words)) is not None:
        known = {name: word.text for name, word in container.env.items() if not word.unknown}
        read = read_nested(script, path, given, known)
        found = [
            source.placed(launch, script) for launch in launches_in_script(read, path, given, container.env)
        ]
    else:
        found = list(launches_of(words, path, given, container.env))
    several = len(found) > 1
    return [
        evolve(
            launch,
            name=f"{container.name}/line {launch.where.line}" if several else container.name,
            title=container.title,
            files={**container.files, **launch.files},
            remarks=(*launch.remarks, *container.remarks),
            is_contained=True,
        )
        for launch in found
    ]


def _of_image(container: Container) -> Launch:
    """The start of the image's own program."""
    return Launch(
        engine=VLLM,
        name=container.name,
        words=container.arguments,
        env=container.env,
        where=container.place,
        program=container.image,
    )


@frozen
class Source:
    """The text of a manifest, for the places of words inside its multi-line scalars."""

    text: str
    starts: Sequence[int] = ()

    @classmethod
    def of(cls, text: str) -> Source:
        """The source with where each of its lines starts."""
        return cls(text, (0, *(match.end() for match in re.finditer("\r\n|[\n\r]", text))))

    def placed(self, launch: Launch, scalar: Word) -> Launch:
        """``launch`` with its words where the source has them, which are read out of one ``scalar``."""
        if (literal := self._literal(scalar)) is not None:
            line, indent = literal
            words = tuple(_moved(word, line, indent) for word in launch.words)
            return evolve(launch, words=words, where=_moved(launch.where, line, indent))
        where = self._place(launch.where, scalar, self._offset(scalar))
        found = self.words(launch.words, where)
        return evolve(launch, words=found, where=where)

    def words(self, words: Sequence[Word], scalar: Word) -> tuple[Word, ...]:
        """``words`` of one ``scalar``, each where the source has it as far as that can be told."""
        at = self._offset(scalar)
        placed = []
        for word in words:
            found = self._place(word, scalar, at)
            if (offset := self._offset(found)) is not None and found.line != scalar.line:
                at = max(at or 0, offset)
            placed.append(found)
        return tuple(placed)

    def _literal(self, scalar: Word) -> tuple[int, int] | None:
        """The line and the indentation of a scalar that begins with ``|``, whose lines are its text's."""
        offset = self._offset(scalar)
        if offset is None or scalar.line is None or self.text[offset : offset + 1] != "|":
            return None
        first = _INDENT.search(self.text, self.starts[scalar.line] if scalar.line < len(self.starts) else 0)
        return scalar.line, len(first[1]) if first else 0

    def _place(self, word: Word, scalar: Word, at: int | None) -> Word:
        sought = word.text.partition("\n")[0]
        found = -1 if at is None or not sought else self.text.find(sought, at, at + len(sought) + _SEARCHED)
        if found < 0:
            return evolve(word, line=scalar.line, column=scalar.column)
        line = self._line(found)
        return evolve(word, line=line + 1, column=found - self.starts[line] + 1)

    def _line(self, offset: int) -> int:
        return bisect_right(self.starts, offset) - 1

    def _offset(self, word: Word) -> int | None:
        if word.line is None or word.column is None or word.line > len(self.starts):
            return None
        return self.starts[word.line - 1] + word.column - 1


def _moved(word: Word, line: int, indent: int) -> Word:
    return evolve(word, line=(word.line or 1) + line, column=(word.column or 1) + indent)
