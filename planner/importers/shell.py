"""Splitting pasted shell text into commands and words, without ever running anything.

Only what people paste is read: quotes, escapes, comments, line continuations, operators between
commands, files written out of the text itself. A variable that the text sets to a plain value stands
for it. What a shell would have to look up besides (other variables, substitutions) is remembered on its
word, so that whoever needs the word can refuse it by name.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from attrs import define, evolve, field, frozen

from planner.errors import DocumentError
from planner.importers.arithmetic import end_of_arithmetic, parentheses
from planner.importers.blocks import Blocks, Command, Foresight
from planner.importers.substitutions import (
    DEFAULTS,
    ELEMENTS,
    VARIABLE,
    end_of_braces,
    end_of_parentheses,
)
from planner.importers.variables import Variables
from planner.importers.words import Word, hole, word_of

MAX_DEFAULTS = 8
"""Defaults that are followed within one another."""

_BLANKS = " \t\r"
_SEPARATORS = "\n;|&()"
_OPERATOR = re.compile(r"&&|\|\||;;|[\n;|&()]")
_ENDS = ("\n", ";", "")
"""Operators behind which the next command runs whatever comes of the one before."""
_PARAMETERS = re.compile(r"\([ \t]*\)")
"""What makes the word before it the name of a function."""
_REDIRECTION = re.compile(r"\d*(?:>>|>&|>\||<<<|<<-?|<&|<>|>|<)|&>>?")
_PLAIN = re.compile(r"[\w./:=,@%+~^\[\]{}-]+", re.ASCII)
_PLAIN_IN_QUOTES = re.compile(r'[^"\\$`]+')
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_WRITERS = frozenset({"cat", "tee"})
"""Commands that write the text behind ``<<`` to a file as it is."""


@frozen
class _Pending:
    """A text behind ``<<`` that begins on the next line."""

    end: str
    is_plain: bool
    strips_tabs: bool


@define
class Reader:
    """Reads a text once from its beginning to its end."""

    text: str
    path: str | None
    at: int = 0
    letters: list[str] = field(factory=list)
    ready: list[Word] = field(factory=list)
    began: int | None = None
    before: str = "\n"
    since: int = 0
    variables: Variables = field(factory=Variables)
    blocks: Blocks = field(factory=Blocks)
    files: dict[str, str] = field(factory=dict)
    inputs: list[tuple[Word, str]] = field(factory=list)
    pending: list[_Pending] = field(factory=list)
    target: Word | None = None
    here: Word | None = None
    breaks: list[int] | None = None
    pairs: dict[int, int] | None = None
    until: int | None = None
    depth: int = 0

    def commands(self) -> Iterator[Command]:
        """The commands of the text, one after the other.

        Raises:
            DocumentError: a quote is never closed, or blanks stand behind the backslash that should
                continue a line.
        """
        words: list[Word] = []
        while self.at < len(self.text):
            letter = self.text[self.at]
            if self.began is None and (redirection := _REDIRECTION.match(self.text, self.at)):
                self.at = redirection.end()
                self._redirect(redirection[0])
            elif letter in _BLANKS:
                words.extend(self._words())
                self.at += 1
            elif letter == "(" and (array := _ARRAY.fullmatch("".join(self.letters))):
                self._array(array)
            elif self._arithmetic():
                pass
            elif letter in _SEPARATORS:
                words.extend(self._words())
                yield from self._end_command(words)
                words = []
            elif letter in "<>":
                words.extend(self._words())
            elif letter == "#" and self.began is None:
                self._skip_comment()
            else:
                self._letter(letter)
        words.extend(self._words())
        yield from self._end_command(words)

    def _arithmetic(self) -> bool:
        """Takes ``((...))`` for a word, if it stands here."""
        if self.began is not None or not self.text.startswith("((", self.at):
            return False
        if self.pairs is None:
            self.pairs = parentheses(self.text)
        end = end_of_arithmetic(self.at, self.pairs)
        if end is None:
            return False
        self.began = self.at
        self.letters.append(self.text[self.at : end])
        self.at = end
        return True

    def foresight(self) -> Foresight:
        """What this reading, which is at its end, knows of the whole text."""
        bodies = sorted(self.blocks.bodies, key=lambda body: body.begin)
        return Foresight(bodies, self.variables.changes, self.variables.sweeps)

    def within_body(self, command: Command, foresight: Foresight) -> Command:
        """A command of this text with the outermost body around it."""
        body = foresight.body(command.at)
        return command if body is None else evolve(command, body=body, body_line=self._place(body.begin)[0])

    def _end_command(self, words: list[Word]) -> Iterator[Command]:
        """Ends a command, of which ``words`` are read, at an operator or the end of the text."""
        operator = found[0] if (found := _OPERATOR.match(self.text, self.at)) else ""
        since = self.since
        is_named = bool(words) and words[-1].text != "function"
        if operator == "(" and is_named and (header := _PARAMETERS.match(self.text, self.at)):
            *around, name = (word.text for word in words if word.text != "function")
            self.blocks.command(around, self.before, since, self.at)
            self.blocks.awaits(name, since)
            self.at = self.since = header.end()
            self.before = "\n"
            return
        condition, piped = self.blocks.condition(), self.before == "|"
        first, path = self._learn(words, operator)
        self.at += len(operator)
        self.since = self.at
        if operator == "\n":
            self._read_files(words[first:])
        here, self.here = self.here, None
        if words and here is not None:
            self.inputs.append((words[first], here.text))
        if words:
            line = None if condition is None else self._place(condition)[0]
            yield Command(tuple(words), first, since, path, condition_line=line, piped=piped)

    def _learn(self, words: list[Word], after: str) -> tuple[int, tuple[int, ...]]:
        """Has variables and blocks follow a command that ends with ``after``.

        Gives the index of the word at which what it runs begins, and the command's path.
        """
        first = self.blocks.command([word.text for word in words], self.before, self.since, self.at)
        path = self.blocks.path()
        if words:
            self._resolve_exports(words, first)
            certain = self._is_alone() and after in _ENDS
            pairs = [(word.text, not word.unknown) for word in words[first:]]
            self.variables.follow(pairs, certain=certain, at=self.since)
        if after and after in "()":
            self.blocks.parenthesis(after, self.at)
        elif after == ";;":
            self.blocks.branch()
        if words or after != "\n":
            # A line that ends with an operator goes on in the next.
            self.before = after
        return first, path

    def _is_alone(self) -> bool:
        """Whether what stands here is always reached, once."""
        return self.before in _ENDS and not self.blocks.open

    def _resolve_exports(self, words: list[Word], first: int) -> None:
        """Writes the values of variables that ``export`` names alone behind their names."""
        if words[first].text != "export":
            return
        for index, word in enumerate(words[first + 1 :], first + 1):
            if word.text.isidentifier() and not word.unknown:
                value = self.variables.value(word.text, self.since)
                text = f"{word.text}={hole(f'${word.text}') if value is None else value}"
                words[index] = word_of(text, word.line, word.column)

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
            self._take_plain(_PLAIN)

    def _take_plain(self, plain: re.Pattern[str]) -> None:
        """Takes one letter, and those behind it that mean nothing but themselves."""
        found = plain.match(self.text, self.at + 1, self._end())
        end = found.end() if found else self.at + 1
        self.letters.append(self.text[self.at : end])
        self.at = end

    def _words(self) -> list[Word]:
        """Ends the word that is being read, which may have become several, or none."""
        self._end_word()
        words, self.ready = self.ready, []
        return words

    def _end_word(self) -> None:
        if self.began is not None and self.letters:
            line, column = self._place(self.began)
            self.ready.append(word_of("".join(self.letters), line, column))
        self.letters, self.began = [], None

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
        if (array := ELEMENTS.match(self.text, self.at)) is not None:
            name = array[1] or "@"
            elements = self.variables.elements(name, self.at)
            self._expand((hole(f"${name}"),) if elements is None else elements)
            self.at = array.end()
            return
        start = self.at
        self.at += 1
        self.letters.append("")
        while self.at < self._end():
            if self.text[self.at] == '"':
                self.at += 1
                return
            self._letter_in_quotes()
        raise self._error('the quote " is never closed', start)

    def _letter_in_quotes(self) -> None:
        letter, escaped = self.text[self.at], self.text[self.at + 1 : self.at + 2]
        if letter == "\\" and escaped in ("$", "`", '"', "\\", "\n"):
            self.letters.append("" if escaped == "\n" else escaped)
            self.at += 2
        elif letter in "$`":
            self._looked_up(quoted=True)
        else:
            self._take_plain(_PLAIN_IN_QUOTES)

    def _expand(self, words: Sequence[str]) -> None:
        """Takes in what one place of the text stands for, which may end words and begin others."""
        began = self.began
        for index, word in enumerate(words):
            if index:
                self._end_word()
                self.began = began
            self.letters.append(word)

    def _looked_up(self, *, quoted: bool) -> None:
        """Puts the value of a variable that is known, else a hole."""
        if self.text[self.at] == "`":
            end = self._closing("`")
            found = self.text[self.at : end + 1]
            self._substitute(found, found, end + 1, quoted=quoted)
        elif (match := VARIABLE.match(self.text, self.at)) is None:
            self.letters.append("$")
            self.at += 1
        elif match["command"]:
            end = end_of_parentheses(self.text, match.end() - 1)
            found = self.text[self.at : end]
            self._substitute(found, found, end, quoted=quoted)
        else:
            self._parameter(match, quoted=quoted)

    def _parameter(self, match: re.Match[str], *, quoted: bool) -> None:
        """Puts the value of a parameter, or the default in its braces if that value is empty."""
        name = match["braced"] or match["plain"]
        end = match.end() if match["plain"] else end_of_braces(self.text, match.start() + 1)
        operation = DEFAULTS.match(self.text, match.start("rest")) if match["rest"] else None
        if match["prefix"] or (match["rest"] and operation is None):
            found = self.text[self.at : end]
            self._substitute(found, found, end, quoted=quoted)
            return
        value = self.variables.value(name, self.at)
        if operation is not None and operation[2] == "=":
            self.variables.default(name, self.at)
        if operation is not None and value == "" and operation[1] and operation[2] != "?":
            self._default(operation.end(), end, quoted=quoted)
        else:
            self._substitute(name, f"${name}", end, quoted=quoted)

    def _default(self, begin: int, end: int, *, quoted: bool) -> None:
        """Takes in the text between ``begin`` and the brace in front of ``end``, as if it stood alone."""
        if self.depth == MAX_DEFAULTS:
            self.letters.append(hole(self.text[self.at : end]))
            self.at = end
            return
        self.depth += 1
        outer, self.until = self.until, end - 1
        self.at = begin
        while self.at < end - 1:
            if quoted and self.text[self.at] != '"':
                self._letter_in_quotes()
            elif not quoted and self.text[self.at] in _BLANKS + "\n":
                self._end_word()
                self.at += 1
            else:
                self._letter(self.text[self.at])
        self.at, self.until = end, outer
        self.depth -= 1

    def _end(self) -> int:
        """Where the text ends that is being read."""
        return len(self.text) if self.until is None else self.until

    def _substitute(self, key: str, found: str, end: int, *, quoted: bool) -> None:
        if quoted and key == "@":
            words = self.variables.elements(key, self.at)
        else:
            value = self.variables.value(key, self.at)
            words = (value,) if quoted and value is not None else self.variables.words(key, self.at)
        self._expand((hole(found),) if words is None else words)
        self.at = end

    def _closing(self, quote: str) -> int:
        end = self.text.find(quote, self.at + 1)
        if end < 0:
            raise self._error(f"the quote {quote} is never closed", self.at)
        return end

    def _array(self, assignment: re.Match[str]) -> None:
        """Takes in the elements of an array up to the parenthesis that closes it."""
        name, adds = assignment[1], bool(assignment[2])
        self.letters, self.began = [], None
        self.at += 1
        elements: list[Word] = []
        while self.at < len(self.text) and (letter := self.text[self.at]) != ")":
            if letter in _BLANKS or letter == "\n":
                elements.extend(self._words())
                self.at += 1
            elif letter == "#" and self.began is None:
                self._skip_comment()
            else:
                self._letter(letter)
        elements.extend(self._words())
        self.at += 1
        certain = self._is_alone() and not any(word.unknown for word in elements)
        found = tuple(word.text for word in elements) if certain else None
        self.variables.set_array(name, found, adds=adds, at=self.since)

    def _redirect(self, operator: str) -> None:
        """Takes in the file, or the end mark of the text, that a redirection names."""
        while self.at < len(self.text) and self.text[self.at] in _BLANKS:
            self.at += 1
        start = self.at
        while self.at < len(self.text) and self.text[self.at] not in _BLANKS + _SEPARATORS + "<>":
            self._letter(self.text[self.at])
        words = self._words()
        if operator in ("<<", "<<-") and words:
            is_plain = any(letter in "'\"\\" for letter in self.text[start : self.at])
            self.pending.append(_Pending(words[0].text, is_plain, operator.endswith("-")))
        elif operator == "<<<" and words:
            self.here = words[0]
        elif operator in (">", ">|") and words:
            self.target = words[0]

    def _read_files(self, words: list[Word]) -> None:
        """Reads the texts that were announced with ``<<``, and keeps one that becomes a file."""
        target, self.target = self.target, None
        writer = words[0].text if words else ""
        if writer == "tee":
            target = next((word for word in words[1:] if not word.text.startswith("-")), None)
        for pending in self.pending:
            body = self._text_until(pending)
            if target is not None and not target.unknown and writer in _WRITERS:
                self.files[target.text] = body if pending.is_plain else self._filled(body)
            elif words and writer not in _WRITERS:
                self.inputs.append((words[0], body))
        self.pending = []

    def _text_until(self, pending: _Pending) -> str:
        lines = []
        while self.at < len(self.text):
            end = self.text.find("\n", self.at)
            end = len(self.text) if end < 0 else end
            line = self.text[self.at : end].removesuffix("\r")
            self.at = min(end + 1, len(self.text))
            line = line.lstrip("\t") if pending.strips_tabs else line
            if line == pending.end:
                break
            lines.append(line)
        return "".join(f"{line}\n" for line in lines)

    def _filled(self, body: str) -> str:
        """A text with its plain variables, as far as they are known; others stay as they are written."""

        def value(match: re.Match[str]) -> str:
            name = match["braced"] or match["plain"] or ""
            known = None if match["prefix"] or match["rest"] else self.variables.value(name, self.at)
            return match[0] if known is None else known

        return VARIABLE.sub(value, body)

    def _skip_comment(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _place(self, at: int) -> tuple[int, int]:
        if self.breaks is None:
            self.breaks = [index for index, letter in enumerate(self.text) if letter == "\n"]
        line = bisect_left(self.breaks, at)
        return line + 1, at - (self.breaks[line - 1] if line else -1)

    def _error(self, message: str, at: int) -> DocumentError:
        line, column = self._place(at)
        return DocumentError(message, path=self.path, line=line, column=column)
