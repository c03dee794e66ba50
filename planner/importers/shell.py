"""Splitting pasted shell text into commands and words, without ever running anything.

Only what people paste is read: quotes, escapes, comments, line continuations, operators between
commands. What a shell would have to look up (variables, substitutions) is remembered on its word, so
that whoever needs the word can refuse it by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from attrs import define, field, frozen

from planner.errors import DocumentError

MAX_TEXT = 2**20
"""Longest text in characters; the longest command line of Linux is of this order."""

_BLANKS = " \t\r"
_SEPARATORS = "\n;|&()"
_REDIRECTION = re.compile(r"\d*(?:>>|>&|>\||<<<|<<|<&|<>|>|<)|&>>?")
_VARIABLE = re.compile(
    r"""\$ (?: \{ [\#!]? (?P<braced>\w+) [^}]* \}?
          | (?P<plain> [A-Za-z_]\w* | [0-9@*\#?!$-])
          | (?P<command> \())""",
    re.VERBOSE,
)


@frozen
class Word:
    """One word as the command would receive it.

    ``unknown`` lists what a shell would have looked up, such as ``$MODEL``. ``line`` and ``column``
    are counted from 1; a word that no text stands behind has neither.
    """

    text: str
    line: int | None = None
    column: int | None = None
    unknown: tuple[str, ...] = ()


def commands_of(text: str, path: str | None) -> list[list[Word]]:
    """The commands in ``text``, each as its words. Redirections are left out.

    Raises:
        DocumentError: a quote is never closed, blanks stand after the backslash that should continue a
            line, or the text is far too long. ``path`` is the name of the text in messages.
    """
    if len(text) > MAX_TEXT:
        raise DocumentError(f"longer than {MAX_TEXT // 2**20} MiB; paste the command alone", path=path)
    return [command for command in _Reader(text, path).commands() if command]


@define
class _Reader:
    text: str
    path: str | None
    at: int = 0
    letters: list[str] = field(factory=list)
    unknown: list[str] = field(factory=list)
    began: int | None = None

    def commands(self) -> Iterator[list[Word]]:
        words: list[Word] = []
        while self.at < len(self.text):
            letter = self.text[self.at]
            if self.began is None and (redirection := _REDIRECTION.match(self.text, self.at)):
                self.at = redirection.end()
                self._skip_target()
            elif letter in _BLANKS:
                words.extend(self._word())
                self.at += 1
            elif letter in _SEPARATORS:
                words.extend(self._word())
                yield words
                words = []
                self.at += 1
            elif letter in "<>":
                words.extend(self._word())
            elif letter == "#" and self.began is None:
                self._skip_comment()
            else:
                self._letter(letter)
        words.extend(self._word())
        yield words

    def _letter(self, letter: str) -> None:
        """Takes one letter, or what it introduces, into the word."""
        if letter == "\\" and self._continues_line():
            return
        if self.began is None:
            self.began = self.at
        if letter == "'":
            end = self._closing("'")
            self.letters.append(self.text[self.at + 1 : end])
            self.at = end + 1
        elif letter == '"':
            self._double_quoted()
        elif letter == "\\":
            self.letters.append(self.text[self.at + 1 : self.at + 2])
            self.at += 2
        elif letter in "$`":
            self._looked_up()
        else:
            self.letters.append(letter)
            self.at += 1

    def _word(self) -> list[Word]:
        if self.began is None:
            return []
        line, column = self._place(self.began)
        word = Word("".join(self.letters), line, column, tuple(self.unknown))
        self.letters, self.unknown, self.began = [], [], None
        return [word]

    def _continues_line(self) -> bool:
        """Steps over a backslash that ends its line.

        Raises:
            DocumentError: blanks follow it, so that it continues nothing.
        """
        end = re.compile(r"\\([ \t]*)\r?\n").match(self.text, self.at)
        if end is None:
            return False
        if end[1]:
            raise self._error("blanks after the backslash end the command here; remove them", self.at)
        self.at = end.end()
        return True

    def _double_quoted(self) -> None:
        start = self.at
        self.at += 1
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter == '"':
                self.at += 1
                return
            if letter == "\\" and self.text[self.at + 1 : self.at + 2] in ("$", "`", '"', "\\", "\n"):
                escaped = self.text[self.at + 1]
                self.letters.append("" if escaped == "\n" else escaped)
                self.at += 2
            elif letter in "$`":
                self._looked_up()
            else:
                self.letters.append(letter)
                self.at += 1
        raise self._error('the quote " is never closed', start)

    def _looked_up(self) -> None:
        """Remembers what a shell would put here, and keeps its source text as the value."""
        if self.text[self.at] == "`":
            end = self._closing("`")
            found, self.at = self.text[self.at : end + 1], end + 1
        elif (match := _VARIABLE.match(self.text, self.at)) is None:
            self.letters.append("$")
            self.at += 1
            return
        elif match["command"]:
            end = self.text.find(")", self.at)
            end = len(self.text) if end < 0 else end + 1
            found, self.at = self.text[self.at : end], end
        else:
            found, self.at = f"${match['braced'] or match['plain']}", match.end()
        self.unknown.append(found)
        self.letters.append(found)

    def _closing(self, quote: str) -> int:
        end = self.text.find(quote, self.at + 1)
        if end < 0:
            raise self._error(f"the quote {quote} is never closed", self.at)
        return end

    def _skip_target(self) -> None:
        """Steps over the file that a redirection names."""
        while self.at < len(self.text) and self.text[self.at] in _BLANKS:
            self.at += 1
        while self.at < len(self.text) and self.text[self.at] not in _BLANKS + _SEPARATORS + "<>":
            self._letter(self.text[self.at])
        self._word()

    def _skip_comment(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _place(self, at: int) -> tuple[int, int]:
        return self.text.count("\n", 0, at) + 1, at - self.text.rfind("\n", 0, at)

    def _error(self, message: str, at: int) -> DocumentError:
        line, column = self._place(at)
        return DocumentError(message, path=self.path, line=line, column=column)
