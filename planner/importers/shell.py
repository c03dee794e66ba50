"""Splitting pasted shell text into commands and words, without ever running anything.

Only what people paste is read: quotes, escapes, comments, line continuations, operators between
commands. A variable that the text itself sets to a plain value stands for it. What a shell would have
to look up besides (other variables, substitutions) is remembered on its word, so that whoever needs the
word can refuse it by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from attrs import define, field, frozen

from planner.errors import DocumentError
from planner.importers.variables import Variables

MAX_TEXT = 2**20
"""Longest text in characters; the longest command line of Linux is of this order."""

_BLANKS = " \t\r"
_SEPARATORS = "\n;|&()"
_SPLIT = re.compile(r"[\s*?\[]")
"""What makes other words of a value without quotes."""
_REDIRECTION = re.compile(r"\d*(?:>>|>&|>\||<<<|<<|<&|<>|>|<)|&>>?")
_VARIABLE = re.compile(
    r"""\$ (?: \{ (?P<prefix> [\#!]?) (?P<braced>\w+) (?P<rest> [^}]*) \}?
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
    return [command for command in _Reader(text.removeprefix("\ufeff"), path).commands() if command]


@define
class _Reader:
    text: str
    path: str | None
    at: int = 0
    letters: list[str] = field(factory=list)
    unknown: list[str] = field(factory=list)
    began: int | None = None
    before: str = "\n"
    variables: Variables = field(factory=Variables)

    def commands(self) -> Iterator[list[Word]]:
        words: list[Word] = []
        while self.at < len(self.text):
            letter = self.text[self.at]
            if self.began is None and (redirection := _REDIRECTION.match(self.text, self.at)):
                self.at = redirection.end()
                if redirection[0] == "<<":
                    # Where its text ends is not followed, so that nothing behind it is certain.
                    self.variables.parenthesis("(")
                self._skip_target()
            elif letter in _BLANKS:
                words.extend(self._word())
                self.at += 1
            elif letter in _SEPARATORS:
                words.extend(self._word())
                self._learn(words, letter)
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

    def _learn(self, words: list[Word], after: str) -> None:
        """Has the variables follow a command that ends with the operator ``after``."""
        alone = self.before in "\n;" and after in "\n;"
        self.variables.follow([(word.text, not word.unknown) for word in words], alone=alone)
        if after in "()":
            self.variables.parenthesis(after)
        if words or after != "\n":
            # A line that ends with an operator goes on in the next.
            self.before = after

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
            self._looked_up(quoted=False)
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
                self._looked_up(quoted=True)
            else:
                self.letters.append(letter)
                self.at += 1
        raise self._error('the quote " is never closed', start)

    def _looked_up(self, *, quoted: bool) -> None:
        """Puts the value of a variable that is known; else keeps the source text and remembers it."""
        if self.text[self.at] == "`":
            end = self._closing("`")
            found, self.at = self.text[self.at : end + 1], end + 1
        elif (match := _VARIABLE.match(self.text, self.at)) is None:
            self.letters.append("$")
            self.at += 1
            return
        elif match["command"]:
            end = self._end_of_parentheses(match.end() - 1)
            found, self.at = self.text[self.at : end], end
        elif (value := self._value(match, quoted=quoted)) is not None:
            self.letters.append(value)
            self.at = match.end()
            return
        else:
            found, self.at = f"${match['braced'] or match['plain']}", match.end()
        self.unknown.append(found)
        self.letters.append(found)

    def _value(self, match: re.Match[str], *, quoted: bool) -> str | None:
        """The value of a variable where it is known and the word stays one word with it."""
        if match["prefix"] or not (match["rest"] or ":-").startswith(":-"):
            return None
        value = self.variables.known.get(match["braced"] or match["plain"])
        return value if value and (quoted or not _SPLIT.search(value)) else None

    def _end_of_parentheses(self, at: int) -> int:
        depth = 0
        for end in range(at, len(self.text)):
            depth += {"(": 1, ")": -1}.get(self.text[end], 0)
            if depth == 0:
                return end + 1
        return len(self.text)

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
