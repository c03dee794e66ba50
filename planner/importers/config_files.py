"""Files of settings that a command line names, read as the tree of their YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from attrs import frozen

from planner.documents.deployment import Json
from planner.documents.reader import read_foreign_yaml
from planner.documents.sources import read_file
from planner.documents.tree import Items, Node, Scalar, Table, Value, described, printable
from planner.errors import DocumentError
from planner.importers.flags import flag_error, inline
from planner.importers.imported import Completion
from planner.importers.launches import Launch
from planner.importers.words import Word, refusal

MAX_CONFIG_BYTES = 2**20
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False} | {
    "": None,
    "~": None,
    "null": None,
}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9]\d{0,17})")
_DECIMAL = re.compile(r"[-+]?(?:\d{1,17}\.\d{0,17}|\.\d{1,17})(?:[eE][-+]\d{1,3})?")
SUFFIXES = frozenset({".yaml", ".yml", ".json"})


@frozen
class ConfigFile:
    """The keys of a file, and how messages call it."""

    name: str
    table: Table


def read_config_file(named: Word, flag: Word, launch: Launch, folder: Path, path: str | None) -> ConfigFile:
    """The file that the flag ``flag`` names with the word ``named``.

    It is one that the source itself writes or holds, else one beside the source.

    Raises:
        DocumentError: there is none, it is no YAML, or no mapping.
    """
    name = printable(named.text)
    if PurePosixPath(named.text).suffix.casefold() not in SUFFIXES:
        raise flag_error(flag, f"{name} is no file of YAML by its name; give a .yaml file", path)
    text = _held(named.text, launch)
    roots = read_foreign_yaml(_read(named.text, flag, launch, folder, path) if text is None else text, name)
    if not roots:
        return ConfigFile(name, Table({}, {}, None))
    if len(roots) > 1 or not isinstance(roots[0], Table):
        found = "several documents" if len(roots) > 1 else described(roots[0])
        raise DocumentError(f"expected one mapping of settings, found {found}", path=name)
    return ConfigFile(name, roots[0])


def _held(name: str, launch: Launch) -> str | None:
    """The text of a file that the source holds: under its own name, or in a container by the last part."""
    if name in launch.files:
        return launch.files[name]
    return launch.files.get(PurePosixPath(name).name) if launch.is_contained else None


def _read(name: str, flag: Word, launch: Launch, folder: Path, path: str | None) -> bytes:
    inside = PurePosixPath(name).name if launch.is_contained else name
    try:
        return read_file(folder / inside, max_bytes=MAX_CONFIG_BYTES)
    except DocumentError as error:
        if launch.is_contained:
            message = f"{printable(name)} is a file of the container; lay a copy beside the manifest"
            raise flag_error(flag, message, path) from None
        raise flag_error(flag, f"{error.path}: {error.message}", path) from None


def words_of_config(config: ConfigFile) -> Iterator[Word]:
    """The words that the keys of a file stand for on a command line.

    A key that is false or null stands for none, as in the engines. Mappings become JSON.

    Raises:
        DocumentError: a list holds something else than values.
    """
    for key, node in config.table.values.items():
        flag = f"--{key.replace('_', '-')}"
        line, column = config.table.keys[key] or (None, None)
        word = partial(Word, line=line, column=column, path=config.name)
        value = value_of(node)
        if isinstance(node, Items):
            if node.items:
                yield from map(word, (flag, *_texts(node, config)))
        elif isinstance(value, dict):
            yield word(f"{flag}={json.dumps(value)}")
        elif value is True:
            yield word(flag)
        elif value not in (False, None) or type(value) is int:
            yield word(f"{flag}={node.text if isinstance(node, Scalar) else value}")


def switched_off(config: ConfigFile) -> list[str]:
    """The keys of a file that are false."""
    return [key for key, node in config.table.values.items() if value_of(node) is False]


def value_of(node: Node) -> Json:
    """What a node is to the engines, which read YAML 1.1: ``yes`` and ``on`` are true there."""
    if isinstance(node, Table):
        return {key: value_of(item) for key, item in node.values.items()}
    if isinstance(node, Items):
        return [value_of(item) for item in node.items]
    if isinstance(node, Value):
        return node.value
    if not node.plain:
        return node.text
    if node.text.casefold() in _WORDS:
        return _WORDS[node.text.casefold()]
    if _INTEGER.fullmatch(node.text):
        return int(node.text)
    return float(node.text) if _DECIMAL.fullmatch(node.text) else node.text


def _texts(items: Items, config: ConfigFile) -> Iterator[str]:
    for item in items.items:
        if not isinstance(item, Scalar):
            place = None if isinstance(item, Value) else item.place
            line, column = place or (None, None)
            message = f"expected a list of values, found {described(item)} in it"
            raise DocumentError(message, path=config.name, line=line, column=column)
        yield item.text


def expanded(
    words: Sequence[Word], launch: Launch, completion: Completion, path: str | None
) -> tuple[list[Word], list[str]]:
    """``words`` with the settings of the file behind ``--config`` in front of them, and remarks on it.

    Raises:
        DocumentError: the file is named twice, not known, or cannot be read.
    """
    rest: list[Word] = []
    inserted: list[Word] = []
    remarks: list[str] = []
    named: Word | None = None
    pending = iter(words)
    for word in pending:
        spelled, equals, text = word.text.partition("=")
        if spelled != "--config":
            rest.append(word)
            continue
        if named is not None:
            raise flag_error(word, "is given twice; only one file is read", path)
        named = inline(word, text) if equals else next(pending, None)
        if named is None:
            raise flag_error(word, "needs a file", path)
        if named.unknown:
            raise refusal(named, path, spelled)
        config = read_config_file(named, word, launch, completion.folder, path)
        inserted = list(words_of_config(config))
        remarks = [
            f"{config.name}: {printable(key)}: false is passed over, as the engine does; the default stays"
            for key in switched_off(config)
        ]
    # A list of values would take the model for one of its own.
    first = 1 if rest and not rest[0].text.startswith("-") else 0
    return [*rest[:first], *inserted, *rest[first:]], remarks
