"""The blocks of a shell text: which commands stand in which, and which parts of it may run again."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

from attrs import define, evolve, field, frozen

from planner.importers.words import Word

MAX_OPEN = 200
"""Blocks that are followed within one another; in a text with more, none ends any more."""

_LOOPS = frozenset({"for", "while", "until", "select"})
_HEADERS = frozenset({"for", "select", "case"})
"""Words whose own words follow, not a command."""
_CONDITIONS = frozenset({"if", "case"})
_OPENING = frozenset({"{", "if", "while", "until"}) | _HEADERS
_CLOSING = {"}": "{", "fi": "if", "done": "do", "esac": "case"}
_BRANCHES = frozenset({"then", "do", "else", "elif"})
_BEFORE_COMMANDS = _OPENING | frozenset(_CLOSING) | _BRANCHES | {"!", "time"}


@frozen
class Body:
    """A part of a text that may run more than once, between two offsets: of a loop, or of ``function``.

    A function may run at any later place of the text.
    """

    begin: int
    end: int
    function: str | None = None


@frozen
class Command:
    """One command of a text as its words.

    Whatever has run at a ``path`` has run for every command whose path begins with it. ``body`` is
    the outermost loop or function around it, and ``body_line`` where that begins. ``condition_line``
    is where the outermost condition around it begins. A command that is ``piped`` reads what the one
    before it writes.
    """

    words: tuple[Word, ...]
    first: int = 0
    at: int = 0
    path: tuple[int, ...] = ()
    body: Body | None = None
    body_line: int | None = None
    condition_line: int | None = None
    piped: bool = False

    @property
    def run(self) -> tuple[Word, ...]:
        """The words from the first that is no part of a block around the command."""
        return self.words[self.first :]


@frozen
class Block:
    """A block that is open, as the word that opened it; ``serial`` tells its branches apart."""

    opener: str
    serial: int
    begin: int
    function: str | None = None


@define
class Blocks:
    """The blocks that are open at one place of a text, and the outermost bodies that were closed by then."""

    open: list[Block] = field(factory=list)
    bodies: list[Body] = field(factory=list)
    function: str | None = None
    function_begins: int = 0
    chain: int | None = None
    serial: int = 0

    def path(self) -> tuple[int, ...]:
        """Where a command stands: whatever has run there has run for every place whose path begins so."""
        serials = tuple(block.serial for block in self.open)
        return serials if self.chain is None else (*serials, self.chain)

    def condition(self) -> int | None:
        """The offset at which the outermost condition begins that is open."""
        return next((block.begin for block in self.open if block.opener in _CONDITIONS), None)

    def command(self, words: Sequence[str], before: str, begin: int, end: int) -> int:
        """Takes in a command behind the operator ``before``.

        Gives the index of the word at which what it runs begins.
        """
        if not words:
            return 0
        self._chain(before)
        if words[0] not in _OPENING:
            self.function = None
        for index, word in enumerate(words):
            if word in _CLOSING:
                self._close(_CLOSING[word], end)
            elif word in _BRANCHES:
                self.branch()
            elif word in _OPENING:
                self._open(word, begin)
            elif word == "function" and index + 1 < len(words):
                self.awaits(words[index + 1], begin)
                if "{" in words[index + 2 : index + 3]:
                    self._open("{", begin)
            if word in _HEADERS or word not in _BEFORE_COMMANDS:
                return index
        return len(words) - 1

    def awaits(self, function: str, begin: int) -> None:
        """Takes the next block for the body of ``function``."""
        self.function, self.function_begins = function, begin

    def parenthesis(self, letter: str, at: int) -> None:
        """Takes in the beginning or the end of a subshell; the patterns of ``case`` end alike."""
        if letter == "(":
            self._open(letter, at)
        else:
            self._close("(", at)

    def branch(self) -> None:
        """Takes in the end of one branch of a condition, and the beginning of another."""
        if self.open:
            self.open[-1] = evolve(self.open[-1], serial=self._next())

    def _chain(self, before: str) -> None:
        """Commands that ``&&`` joins run only with all before them."""
        if before not in ("&&", "||", "|"):
            self.chain = None
        elif before != "&&" or self.chain is None:
            self.chain = self._next()

    def _next(self) -> int:
        self.serial += 1
        return self.serial

    def _open(self, opener: str, begin: int) -> None:
        if len(self.open) >= MAX_OPEN:
            return
        begin = begin if self.function is None else self.function_begins
        self.open.append(Block(opener, self._next(), begin, self.function))
        self.function = None
        self.chain = None

    def _close(self, opener: str, end: int) -> None:
        if not self.open or len(self.open) >= MAX_OPEN or not _fits(self.open[-1].opener, opener):
            return
        block = self.open.pop()
        self.chain = None
        repeats = block.opener in _LOOPS or block.function is not None
        if repeats and not any(outer.opener in _LOOPS or outer.function for outer in self.open):
            self.bodies.append(Body(block.begin, end, block.function))


def _fits(opener: str, closed: str) -> bool:
    return opener == closed or (closed == "do" and opener in _LOOPS)


@frozen
class Foresight:
    """What a first reading of a text knows of its end: which parts may run again, and what changes where.

    ``bodies`` are in the order of the text and overlap nowhere; ``changes`` has the places at which
    each variable changes, ``sweeps`` those at which any may.
    """

    bodies: Sequence[Body] = ()
    changes: Mapping[str, Sequence[int]] = field(factory=dict)
    sweeps: Sequence[int] = ()

    def body(self, at: int) -> Body | None:
        """The outermost body around the offset ``at``."""
        index = bisect_right(self.bodies, at, key=lambda body: body.begin) - 1
        return self.bodies[index] if index >= 0 and at < self.bodies[index].end else None

    def changes_again(self, name: str, at: int) -> bool:
        """Whether the variable ``name`` may have another value when what stands at ``at`` runs again."""
        body = self.body(at)
        if body is None:
            return False
        return any(_has_between(places, body) for places in (self.changes.get(name, ()), self.sweeps))


def _has_between(places: Sequence[int], body: Body) -> bool:
    first = bisect_left(places, body.begin)
    return first < len(places) and (body.function is not None or places[first] < body.end)
