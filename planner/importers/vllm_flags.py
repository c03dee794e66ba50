"""The flags of ``vllm serve``: which exist, and what a command line gives for them.

Source: vLLM 0.33, its serve parser; the table beside this module is made by
``tools/make_vllm_flags.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any, NoReturn

from attrs import define, field, frozen

from planner.documents.deployment import Json
from planner.documents.tree import printable, shown
from planner.errors import DocumentError
from planner.importers.shell import Word

TABLE = "vllm-0.33-flags.json"

_LEVEL = re.compile(r"-O=?([0-9])")
OWN_OPTIONS = frozenset(
    {"-o", "--output", "--device", "--model-config", "--draft-config", "--format", "--quiet"}
)
"""Options of ``planner compile`` that vLLM does not have."""

_DASHES = frozenset("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d")
"""What text programs make of ``-`` and ``--``."""

_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
_INTEGER = re.compile(r"[-+]?\d{1,18}")
_HUMAN_INTEGER = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)([kKmMgGtT]?)")
_HUMAN_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12} | {
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}


@frozen(kw_only=True)
class Flag:
    """One option of the parser.

    ``field`` is the config field that it fills, such as ``SchedulerConfig.max_num_seqs``. ``values``
    says how many words it takes: ``none``, ``one``, ``optional`` (one or none) or ``many``.
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
    """A flag as the command line gives it; ``where`` is the word that names it."""

    flag: Flag
    value: Json
    where: Word


@define
class CommandLine:
    """What a command line says: its positional words, its flags, and what deserves a remark."""

    positional: list[Word] = field(factory=list)
    given: dict[str, Given] = field(factory=dict)
    remarks: list[str] = field(factory=list)


@cache
def flags() -> Mapping[str, Flag]:
    """Every flag by each of its spellings."""
    text = resources.files("planner.importers").joinpath(TABLE).read_text(encoding="utf-8")
    known = [_flag(row) for row in json.loads(text)]
    return {spelling: flag for flag in known for spelling in flag.spellings}


def _flag(row: Mapping[str, Any]) -> Flag:
    lists = ("spellings", "negative", "choices")
    return Flag(**{**row, **{name: tuple(row[name]) for name in lists if name in row}})


def parse_words(words: Sequence[Word], path: str | None) -> CommandLine:
    """What the words after ``vllm serve`` say. Values are read as their flag's type demands.

    Raises:
        DocumentError: a flag that vLLM does not have, one without its value, or a value that is none.
            ``path`` is the name of the command line in messages.
    """
    return _Parser(tuple(words), path).parse()


@define
class _Parser:
    words: tuple[Word, ...]
    path: str | None
    at: int = 0
    result: CommandLine = field(factory=CommandLine)
    dotted: dict[str, tuple[Flag, dict[str, Json], Word]] = field(factory=dict)

    def parse(self) -> CommandLine:
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            if word.text == "--":
                self.result.positional.extend(self.words[self.at :])
                break
            if _is_option(word.text):
                self._option(word)
            elif word.text[:1] in _DASHES:
                raise self._error(
                    word, f"begins with U+{ord(word.text[0]):04X}, not with -; type the dashes anew"
                )
            else:
                self.result.positional.append(word)
        # The engine appends the pieces of dotted flags as one value, behind everything else.
        for flag, value, word in self.dotted.values():
            self._store(flag, value, word)
        return self.result

    def _option(self, word: Word) -> None:
        if level := _LEVEL.fullmatch(word.text):
            self._store(flags()["--optimization-level"], level[1], word)
            return
        if word.text == "-O":
            self._store(flags()["--optimization-level"], self._next(word, "a level from 0 to 3").text, word)
            return
        spelled, equals, text = word.text.partition("=")
        spelled, dot, keys = _normal(spelled).partition(".")
        flag, spelled = self._known(spelled, word)
        inline = Word(text, word.line, word.column, word.unknown) if equals else None
        if dot:
            self._dotted(flag, keys, inline or self._next(word, "a value"), word)
        elif flag.values == "none":
            if inline is not None:
                raise self._error(word, f"takes no value, found {shown(text)}")
            self._store(flag, spelled not in flag.negative, word)
        elif flag.values == "many":
            self._store(flag, [self._value(flag, item, word) for item in self._many(word, inline)], word)
        elif inline is None and flag.values == "optional" and not self._has_value():
            self._store(flag, None, word)
        else:
            self._store(flag, self._value(flag, inline or self._next(word, "a value"), word), word)

    def _known(self, spelled: str, word: Word) -> tuple[Flag, str]:
        """The flag of a spelling, or of the beginning of exactly one long spelling."""
        table = flags()
        if spelled in table:
            return table[spelled], spelled
        if spelled in OWN_OPTIONS:
            raise self._error(
                word, "is no flag of vllm serve; as an option of planner it goes in front of it"
            )
        if spelled == "-O":
            raise self._error(word, f"is no flag of vllm serve 0.33; write -cc{printable(word.text[2:])}")
        starts = [known for known in table if known.startswith(spelled)] if spelled.startswith("--") else []
        if len({table[known].name for known in starts}) == 1:
            return table[starts[0]], starts[0]
        if len(starts) > 1:
            raise self._error(word, f"could be any of {', '.join(sorted(starts)[:5])}; write it out")
        near = get_close_matches(spelled, table, n=1, cutoff=0.6)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise self._error(word, f"is no flag of vllm serve 0.33{hint}")

    def _has_value(self) -> bool:
        return self.at < len(self.words) and not _is_option(self.words[self.at].text)

    def _next(self, word: Word, what: str) -> Word:
        if not self._has_value():
            raise self._error(word, f"needs {what}")
        self.at += 1
        return self.words[self.at - 1]

    def _many(self, word: Word, inline: Word | None) -> Iterator[Word]:
        yield inline or self._next(word, "at least one value")
        while inline is None and self._has_value():
            yield self._next(word, "a value")

    def _value(self, flag: Flag, given: Word, word: Word) -> Json:
        self._refuse_unknown(given, word)
        kind = flag.type.removeprefix("optional[")
        if flag.type.startswith("optional[") and given.text in ("", "None"):
            return None
        if flag.json:
            return self._json(given.text, word)
        for start, read, what in _READERS:
            if kind.startswith(start):
                value = read(given.text)
                if value is _NO_VALUE:
                    raise self._error(word, f"needs {what}, found {shown(given.text)}")
                return value
        return given.text

    def _json(self, text: str, word: Word) -> Json:
        try:
            return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
        except RecursionError:
            raise self._error(word, "is nested too deep") from None
        except ValueError as error:
            hint = "; put the value in single quotes" if '"' not in text and "{" in text else ""
            reason = getattr(error, "msg", None) or str(error)
            message = f"is no JSON: {printable(reason)}, found {shown(text)}{hint}"
            raise self._error(word, message) from None

    def _dotted(self, flag: Flag, keys: str, given: Word, word: Word) -> None:
        """Adds one piece, such as ``.pass_config.fuse_attn_quant true``, to the flag's JSON value."""
        if not flag.json:
            raise self._error(word, f"takes one value, not keys such as .{keys}")
        self._refuse_unknown(given, word)
        _, value, _ = self.dotted.setdefault(flag.name, (flag, {}, word))
        *parents, last = keys.removesuffix("+").split(".")
        for key in parents:
            child = value.setdefault(key, {})
            if not isinstance(child, dict):
                raise self._error(word, f"gives {key} both as a value and as a mapping")
            value = child
        if keys.endswith("+"):
            pieces = [_piece(part) for part in given.text.split(",")]
            listed = value.setdefault(last, [])
            if not isinstance(listed, list):
                raise self._error(word, f"gives {last} both as a value and as a list")
            listed.extend(pieces)
        else:
            value[last] = _piece(given.text)

    def _store(self, flag: Flag, value: Json, word: Word) -> None:
        before = self.result.given.get(flag.name)
        if before is not None and before.value != value:
            what = "once as a whole and once by keys" if flag.json else "more than once"
            remark = f"{flag.name} is given {what}; vLLM takes the last"
            if remark not in self.result.remarks:
                self.result.remarks.append(remark)
        self.result.given[flag.name] = Given(flag, value, word)

    def _refuse_unknown(self, given: Word, word: Word) -> None:
        if given.unknown:
            raise self._error(
                word, f"{given.unknown[0]} is left to the shell, which is not run; write its value"
            )

    def _error(self, word: Word, message: str) -> DocumentError:
        key = printable(word.text.partition("=")[0])
        return DocumentError(message, path=self.path, line=word.line, column=word.column, key=key)


def _is_option(text: str) -> bool:
    """Whether the parser takes a word for a flag rather than for a value."""
    if not text.startswith("-") or len(text) == 1 or _NEGATIVE_NUMBER.fullmatch(text):
        return False
    return " " not in text or text.partition("=")[0] in flags()


def _normal(spelled: str) -> str:
    """A long spelling with dashes for underscores; keys behind a dot stay as they are."""
    head, dot, keys = spelled.partition(".")
    return (head.replace("_", "-") if head.startswith("--") else head) + dot + keys


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key stands twice in one mapping")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _piece(text: str) -> Json:
    """A value behind a dotted key: JSON where it is some, else a number such as 2k, else a string."""
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        number = _human_integer(text)
        return text if number is _NO_VALUE else number


_NO_VALUE = object()


def _integer(text: str) -> Json:
    return int(text) if _INTEGER.fullmatch(text) else _NO_VALUE


def _human_integer(text: str) -> Json:
    """A number such as 8192, 8k (thousands), 8K (of 1024) or 1.5k."""
    match = _HUMAN_INTEGER.fullmatch(text)
    if match is None:
        return _integer(text)
    number, unit = match.groups()
    if "." not in number:
        return int(number) * _HUMAN_FACTORS[unit]
    # Only the decimal units take a fraction.
    return int(float(number) * _HUMAN_FACTORS[unit]) if unit.islower() else _NO_VALUE


def _human_integer_or_auto(text: str) -> Json:
    return None if text in ("auto", "-1") else _human_integer(text)


def _decimal(text: str) -> Json:
    try:
        return float(text)
    except ValueError:
        return _NO_VALUE


_Reader = Callable[[str], Json]
_READERS: tuple[tuple[str, _Reader, str], ...] = (
    ("human_readable_int_or_auto", _human_integer_or_auto, "a whole number, such as 8192 or 8k, or auto"),
    ("human_readable_int", _human_integer, "a whole number, such as 8192 or 8k"),
    ("int", _integer, "a whole number"),
    ("float", _decimal, "a number"),
)
