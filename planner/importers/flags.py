"""Flags of a server's command line: which exist, and what a line gives for them.

What all engines' parsers have in common is here; each engine's own module has its table and the ways of
writing that are its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import resources
from typing import Any, NoReturn

from attrs import define, field, frozen

from planner.documents.deployment import Json
from planner.documents.tree import printable, shown
from planner.errors import DocumentError
from planner.importers.synonyms import other_name
from planner.importers.words import Word, refusal

OWN_OPTIONS = frozenset(
    {
        "-o",
        "--output",
        "--device",
        "--model-config",
        "--draft-config",
        "--set",
        "--name",
        "--format",
        "--quiet",
    }
)
"""Options of ``planner`` that people put behind the server's own."""

_DASHES = frozenset("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d")
"""What text programs make of ``-`` and ``--``."""

_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
_INTEGER = re.compile(r"[-+]?\d{1,18}")

NO_VALUE = object()
Reader = Callable[[str], Json]
"""What a text is as a value of some type, or ``NO_VALUE``."""


@frozen(kw_only=True)
class Flag:
    """One option of the parser.

    ``field`` is the setting that it fills, such as ``SchedulerConfig.max_num_seqs``. ``values`` says how
    many words it takes: ``none``, ``one``, ``optional`` (one or none), ``many`` or ``any`` (none or many).
    ``negative`` are the spellings that switch it off.
    """

    spellings: tuple[str, ...]
    field: str | None = None
    values: str = "one"
    negative: tuple[str, ...] = ()
    json: bool = False
    type: str = "str"
    choices: tuple[Json, ...] = ()

    @property
    def name(self) -> str:
        """The spelling that messages use."""
        return self.spellings[0]


@frozen
class Given:
    """A flag as the command line gives it; ``where`` is the word that names it.

    ``value`` is ``None`` where a part of it is not known; ``unknown`` is then the word with that part.
    """

    flag: Flag
    value: Json
    where: Word
    unknown: Word | None = None


@define
class CommandLine:
    """What a command line says: its positional words, its flags, and what deserves a remark."""

    positional: list[Word] = field(factory=list)
    given: dict[str, Given] = field(factory=dict)
    remarks: list[str] = field(factory=list)

    def pop(self, name: str) -> Given | None:
        """The flag ``name``, which is then read."""
        return self.given.pop(name, None)


@frozen(kw_only=True)
class Grammar:
    """What one engine's parser takes.

    ``title`` is how messages call the command, ``program`` how they call its program. ``table`` has each
    flag by each of its spellings, ``readers`` the types whose values are not plain text: the beginning
    of the type's name, how it is read, and what messages say that it needs. With ``abbreviates``, the
    beginning of exactly one long flag stands for it; with ``interchanges_dashes``, ``_`` is taken for
    ``-``.
    """

    engine: str
    title: str
    program: str
    table: Mapping[str, Flag]
    readers: tuple[tuple[str, Reader, str], ...]
    abbreviates: bool = True
    interchanges_dashes: bool = False


def read_table(name: str) -> dict[str, Flag]:
    """Every flag of the table ``name`` beside this module, by each of its spellings."""
    text = resources.files("planner.importers").joinpath(name).read_text(encoding="utf-8")
    return by_spelling([_flag(row) for row in json.loads(text)])


def by_spelling(flags: Sequence[Flag]) -> dict[str, Flag]:
    """``flags`` by each of their spellings."""
    return {spelling: flag for flag in flags for spelling in (*flag.spellings, *flag.negative)}


def _flag(row: Mapping[str, Any]) -> Flag:
    lists = ("spellings", "negative", "choices")
    return Flag(**{**row, **{name: tuple(row[name]) for name in lists if name in row}})


@define
class Parser:
    """Reads the words behind a server's program as the server's own parser would.

    ``plans`` says of a flag whether planning reads what it gives.
    """

    grammar: Grammar
    words: tuple[Word, ...]
    path: str | None
    plans: Callable[[Flag], bool]
    at: int = 0
    result: CommandLine = field(factory=CommandLine)

    def parse(self) -> CommandLine:
        """What the words say. Values are read as their flag's type demands.

        Raises:
            DocumentError: a flag that the engine does not have, one without its value, or a value that
                is none. ``path`` is the name of the command line in messages.
        """
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            if word.text == "--":
                self.result.positional.extend(self.words[self.at :])
                break
            if self._is_option(word.text):
                self.option(word)
            elif word.text[:1] in _DASHES:
                raise self.error(
                    word, f"begins with U+{ord(word.text[0]):04X}, not with -; type the dashes anew"
                )
            else:
                self.result.positional.append(word)
        return self.result

    def option(self, word: Word) -> None:
        """Takes in the flag that ``word`` is, and its values."""
        spelled, equals, text = word.text.partition("=")
        flag, spelled = self.known(self.normal(spelled), word)
        self.values(flag, spelled, word, inline(word, text) if equals else None)

    def values(self, flag: Flag, spelled: str, word: Word, within: Word | None) -> None:
        """Takes in what the line gives for a flag; ``within`` is what stands behind its ``=``."""
        if flag.values == "none":
            if within is not None:
                raise self.error(word, f"takes no value, found {shown(within.text)}")
            self.store(flag, spelled not in flag.negative, word)
        elif flag.values in ("many", "any"):
            found = list(self._many(word, within, least=flag.values == "many"))
            unknown = next((item for item in found if item.unknown), None)
            values = None if unknown else [self._value(flag, item, word) for item in found]
            self.store(flag, values, word, unknown)
        elif within is None and flag.values == "optional" and not self._has_value():
            self.store(flag, None, word)
        else:
            found_one = within or self.next(word, "a value")
            unknown = found_one if found_one.unknown else None
            self.store(flag, None if unknown else self._value(flag, found_one, word), word, unknown)

    def normal(self, spelled: str) -> str:
        """A long spelling as the table has it."""
        if self.grammar.interchanges_dashes and spelled.startswith("--"):
            return spelled.replace("_", "-")
        return spelled

    def known(self, spelled: str, word: Word) -> tuple[Flag, str]:
        """The flag of a spelling, or of the beginning of exactly one long spelling."""
        table = self.grammar.table
        if spelled in table:
            return table[spelled], spelled
        if spelled in OWN_OPTIONS:
            program = self.grammar.program
            raise self.error(word, f"is no flag of {program}; as an option of planner it goes in front of it")
        starts = [known for known in table if self._begins(known, spelled)]
        if len({table[known].name for known in starts}) == 1:
            return table[starts[0]], starts[0]
        if len(starts) > 1:
            raise self.error(word, f"could be any of {', '.join(sorted(starts)[:5])}; write it out")
        raise self.error(word, f"is no flag of {self.grammar.title}{self._hint(spelled)}")

    def _hint(self, spelled: str) -> str:
        """What may be meant by a flag that there is not: what another engine calls so, or the nearest."""
        if (other := other_name(spelled, self.grammar.engine)) is not None:
            return f"; did you mean {other}?"
        near = get_close_matches(spelled, self.grammar.table, n=1, cutoff=0.6)
        return f"; did you mean {near[0]}?" if near else ""

    def next(self, word: Word, what: str) -> Word:
        """The next word, which is a value of the flag ``word``."""
        if not self._has_value():
            raise self.error(word, f"needs {what}")
        self.at += 1
        return self.words[self.at - 1]

    def store(self, flag: Flag, value: Json, word: Word, unknown: Word | None = None) -> None:
        """Takes in a flag whose values are read; the last of several counts.

        Raises:
            DocumentError: the line gives a flag that planning reads twice, and with different values.
        """
        before = self.result.given.get(flag.name)
        given = Given(flag, value, word, unknown)
        if before is not None and (before.value != value or unknown or before.unknown):
            if before.where.path == word.path and self.plans(flag):
                self.refuse_contradiction(before, given)
            what = "once as a whole and once by keys" if flag.json else "more than once"
            remark = f"{flag.name} is given {what}; the last counts"
            if remark not in self.result.remarks:
                self.result.remarks.append(remark)
        self.result.given[flag.name] = given

    def refuse_contradiction(self, first: Given, second: Given) -> None:
        """Refuses two values of one flag, unless they are mappings that agree where they meet.

        Raises:
            DocumentError: they do not.
        """
        if isinstance(first.value, Mapping) and isinstance(second.value, Mapping):
            key = contradiction(first.value, second.value)
            if key is not None:
                raise self.error(
                    second.where, f"gives {printable(key)} twice, with different values; drop one"
                )
            return
        found = (shown_value(given) for given in (first, second))
        raise self.error(second.where, f"is given twice, as {' and as '.join(found)}; drop one")

    def error(self, word: Word, message: str) -> DocumentError:
        """The error that something is wrong with the flag ``word``."""
        return flag_error(word, message, self.path)

    def _begins(self, known: str, spelled: str) -> bool:
        return self.grammar.abbreviates and spelled.startswith("--") and known.startswith(spelled)

    def _is_option(self, text: str) -> bool:
        """Whether the parser takes a word for a flag rather than for a value."""
        if not text.startswith("-") or len(text) == 1 or _NEGATIVE_NUMBER.fullmatch(text):
            return False
        return " " not in text or text.partition("=")[0] in self.grammar.table

    def _has_value(self) -> bool:
        return self.at < len(self.words) and not self._is_option(self.words[self.at].text)

    def _many(self, word: Word, within: Word | None, *, least: bool) -> Iterator[Word]:
        if within is not None:
            yield within
            return
        if least:
            yield self.next(word, "at least one value")
        while self._has_value():
            yield self.next(word, "a value")

    def _value(self, flag: Flag, given: Word, word: Word) -> Json:
        kind = flag.type.removeprefix("optional[")
        if flag.type.startswith("optional[") and given.text in ("", "None"):
            return None
        if flag.json:
            return self._json(given.text, word)
        for start, read, what in self.grammar.readers:
            if kind.startswith(start):
                value = read(given.text)
                if value is NO_VALUE:
                    raise self.error(word, f"needs {what}, found {shown(given.text)}")
                return value
        return given.text

    def _json(self, text: str, word: Word) -> Json:
        try:
            return read_json(text)
        except RecursionError:
            raise self.error(word, "is nested too deep") from None
        except ValueError as error:
            hint = "; put the value in single quotes" if '"' not in text and "{" in text else ""
            reason = getattr(error, "msg", None) or str(error)
            message = f"is no JSON: {printable(reason)}, found {shown(text)}{hint}"
            raise self.error(word, message) from None

    def refuse_unknown(self, given: Word, word: Word) -> None:
        """Refuses a value that is not known where it matters."""
        if given.unknown:
            raise refusal(given, self.path, flag_key(word))


def contradiction(first: Mapping[str, Json], second: Mapping[str, Json]) -> str | None:
    """The first key, with those above it, that two mappings give different values."""
    for key, one in first.items():
        other = second.get(key, one)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            if (inner := contradiction(one, other)) is not None:
                return f"{key}.{inner}"
        elif one != other:
            return key
    return None


def shown_value(given: Given) -> str:
    """What a flag gives, for messages."""
    if given.unknown is not None:
        return printable(given.unknown.text)
    if isinstance(given.value, bool) or given.value is None:
        return flag_key(given.where)
    values = given.value if isinstance(given.value, list) else [given.value]
    return shown(" ".join(map(str, values)))


def inline(word: Word, text: str) -> Word:
    """The value behind the ``=`` of ``word``; the name of a flag itself is never looked up."""
    return Word(text, word.line, word.column, word.unknown, word.path)


def flag_key(word: Word) -> str:
    """How messages call the flag ``word``."""
    return printable(word.text.partition("=")[0])


def flag_error(word: Word, message: str, path: str | None) -> DocumentError:
    """The error that something is wrong with the flag ``word`` of the command line ``path``."""
    return DocumentError(
        message, path=word.path or path, line=word.line, column=word.column, key=flag_key(word)
    )


def read_json(text: str) -> Json:
    """A JSON value without duplicate keys.

    Raises:
        ValueError: it is none.
        RecursionError: it is nested too deep.
    """
    return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key stands twice in one mapping")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def integer(text: str) -> Json:
    """A whole number in plain digits."""
    return int(text) if _INTEGER.fullmatch(text) else NO_VALUE


def decimal(text: str) -> Json:
    """A number."""
    try:
        return float(text)
    except ValueError:
        return NO_VALUE


NUMBERS: tuple[tuple[str, Reader, str], ...] = (
    ("int", integer, "a whole number"),
    ("float", decimal, "a number"),
)
