"""The flags of ``vllm serve``: which exist, and what a command line gives for them.

Source: vLLM 0.33, its serve parser; the table beside this module is made by
``tools/make_vllm_flags.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache

from attrs import define, field

from planner.documents.deployment import Json
from planner.documents.tree import printable
from planner.importers.detect import VLLM
from planner.importers.flags import (
    NO_VALUE,
    NUMBERS,
    CommandLine,
    Flag,
    Grammar,
    Parser,
    inline,
    integer,
    read_json,
    read_table,
)
from planner.importers.words import Word

TABLE = "vllm-0.33-flags.json"

_LEVEL = re.compile(r"-O=?([0-9])")
_HUMAN_INTEGER = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)([kKmMgGtT]?)")
_HUMAN_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12} | {
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}


@cache
def grammar() -> Grammar:
    """What the parser of ``vllm serve`` takes."""
    return Grammar(
        engine=VLLM,
        title="vllm serve 0.33",
        program="vllm serve",
        table=read_table(TABLE),
        readers=(
            (
                "human_readable_int_or_auto",
                _human_integer_or_auto,
                "a whole number, such as 8192 or 8k, or auto",
            ),
            ("human_readable_int", _human_integer, "a whole number, such as 8192 or 8k"),
            *NUMBERS,
        ),
        interchanges_dashes=True,
    )


def parse_words(words: Sequence[Word], path: str | None, plans: Callable[[Flag], bool] = bool) -> CommandLine:
    """What the words after ``vllm serve`` say. Values are read as their flag's type demands.

    ``plans`` says of a flag whether planning reads it, by default of any.

    Raises:
        DocumentError: a flag that vLLM does not have, one without its value, a value that is none, or
            two values of a flag that planning reads. ``path`` is the name of the command line in messages.
    """
    return _Parser(grammar(), tuple(words), path, plans).parse()


@define
class _Parser(Parser):
    """Adds levels such as ``-O3``, and keys of JSON values behind a dot."""

    dotted: dict[str, tuple[Flag, dict[str, Json], Word]] = field(factory=dict)

    def parse(self) -> CommandLine:
        Parser.parse(self)
        # The engine appends the pieces of dotted flags as one value, behind everything else.
        for flag, value, word in self.dotted.values():
            self.store(flag, value, word)
        return self.result

    def option(self, word: Word) -> None:
        level = _LEVEL.fullmatch(word.text)
        if level or word.text == "-O":
            text = level[1] if level else self.next(word, "a level from 0 to 3").text
            self.store(self.grammar.table["--optimization-level"], text, word)
            return
        spelled, equals, text = word.text.partition("=")
        spelled, dot, keys = spelled.partition(".")
        spelled = self.normal(spelled)
        if spelled == "-O":
            raise self.error(word, f"is no flag of vllm serve 0.33; write -cc{printable(word.text[2:])}")
        written = spelled
        flag, spelled = self.known(spelled, word)
        within = inline(word, text) if equals else None
        if dot:
            self._dotted(flag, written, keys, within or self.next(word, "a value"), word)
        else:
            self.values(flag, spelled, word, within)

    def _dotted(self, flag: Flag, written: str, keys: str, given: Word, word: Word) -> None:
        """Adds one piece, such as ``.pass_config.fuse_attn_quant true``, to the flag's JSON value.

        The engine puts the pieces of one spelling together: those of another are a value of their own.
        """
        if not flag.json:
            raise self.error(word, f"takes one value, not keys such as .{keys}")
        self.refuse_unknown(given, word)
        _, value, _ = self.dotted.setdefault(written, (flag, {}, word))
        *parents, last = keys.removesuffix("+").split(".")
        for key in parents:
            child = value.setdefault(key, {})
            if not isinstance(child, dict):
                raise self.error(word, f"gives {printable(key)} both as a value and as a mapping")
            value = child
        if keys.endswith("+"):
            pieces = [_piece(part) for part in given.text.split(",")]
            listed = value.setdefault(last, [])
            if not isinstance(listed, list):
                raise self.error(word, f"gives {last} both as a value and as a list")
            listed.extend(pieces)
        else:
            piece = _piece(given.text)
            if value.setdefault(last, piece) != piece:
                raise self.error(word, f"gives {printable(keys)} twice, with different values; drop one")


def _piece(text: str) -> Json:
    """A value behind a dotted key: JSON where it is some, else a number such as 2k, else a string."""
    try:
        return read_json(text)
    except (ValueError, RecursionError):
        number = _human_integer(text)
        return text if number is NO_VALUE else number


def _human_integer(text: str) -> Json:
    """A number such as 8192, 8k (thousands), 8K (of 1024) or 1.5k."""
    match = _HUMAN_INTEGER.fullmatch(text)
    if match is None:
        return integer(text)
    number, unit = match.groups()
    if "." not in number:
        return int(number) * _HUMAN_FACTORS[unit]
    # Only the decimal units take a fraction.
    return int(float(number) * _HUMAN_FACTORS[unit]) if unit.islower() else NO_VALUE


def _human_integer_or_auto(text: str) -> Json:
    return None if text in ("auto", "-1") else _human_integer(text)
