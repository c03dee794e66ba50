"""Documents as text: YAML with one line a graph entry, and the same as JSON.

The bytes depend on the document alone. PyYAML's emitter writes them, in C where it is built in; how
each scalar is written is decided here, because its own choice differs between its two emitters and
reckons with readers of YAML 1.1 only.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from planner.documents.data import as_data
from planner.documents.deployment import Deployment, Json
from planner.documents.plan import Plan
from planner.documents.reader import MAX_BYTES
from planner.documents.scalars import is_ambiguous
from planner.documents.tree import MAX_NODES
from planner.errors import DocumentError, argument_error

_LINE_BREAK = re.compile("[\n\r\x85\u2028\u2029]")


class PurePythonEmitter(yaml.SafeDumper):
    """PyYAML's emitter with libyaml's idea of which keys fit on one line with their values."""

    def check_simple_key(self) -> bool:  # noqa: D102 - called by PyYAML only
        event: Any = self.event
        return len(event.value.encode()) <= 128 and _LINE_BREAK.search(event.value) is None


EMITTER: type[Any] = getattr(yaml, "CSafeDumper", PurePythonEmitter)

ROWS = ("decisions", "findings")
"""Top-level lists that take one line an item; so does each list under ``graphs``."""

_NO_LINE_LIMIT = 2**31 - 1
# Safe without quotes wherever it stands. Narrower than YAML allows, so that no emitter has to judge.
_PLAIN = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_./+()=-]*(?: [A-Za-z0-9_./+()=-]+)*")
# A number at the end of its line, where no string ends without a quote. See ``_literal``.
_BARE_EXPONENT = re.compile(r"(?m)(?<= )(-?[0-9]+)(e[-+][0-9]+,?)$")
_ESCAPED_IN_JSON = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def dump_deployment(deployment: Deployment) -> str:
    """The Deployment as YAML that ``load_deployment`` reads back equal.

    Raises:
        ArgumentError: ``deployment`` is none.
        DocumentError: it is larger than any document that is read.
    """
    if not isinstance(deployment, Deployment):
        raise argument_error("dump_deployment", "Deployment", deployment, Plan="dump_plan writes that")
    return _dump(as_data(deployment))


def dump_plan(plan: Plan) -> str:
    """The Plan as YAML that ``load_plan`` reads back equal.

    Raises:
        ArgumentError: ``plan`` is none.
        DocumentError: it is larger than any document that is read.
    """
    if not isinstance(plan, Plan):
        raise argument_error("dump_plan", "Plan", plan, Deployment="dump_deployment writes that")
    return _dump(as_data(plan))


def plan_to_json(plan: Plan) -> str:
    """The Plan as JSON: the document of ``dump_plan``, for programs."""
    text = json.dumps(as_data(plan), indent=1, ensure_ascii=False)
    text = _BARE_EXPONENT.sub(r"\1.0\2", text)
    return _ESCAPED_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"


def dump_settings(settings: Mapping[str, Json]) -> str:
    """Settings of an engine as the YAML of its config file.

    Raises:
        DocumentError: they are larger than any document that is read.
    """
    return _dump(settings)


def _dump(data: Mapping[str, Json], emitter: type[Any] = EMITTER) -> str:
    stream = io.StringIO()
    writer = _Writer(emitter(stream, width=_NO_LINE_LIMIT, allow_unicode=True, line_break="\n"))
    writer.document(data)
    text = stream.getvalue()
    size = len(text.encode())
    if size > MAX_BYTES or writer.nodes > MAX_NODES:
        raise DocumentError(
            f"the document would have {writer.nodes} values in {size} bytes, and no more than {MAX_NODES} "
            f"values in {MAX_BYTES} bytes are read back; give fewer capture sizes or graphs"
        )
    return text


class _Writer:
    """Hands the events of one document to an emitter. Equal scalars share one event.

    ``nodes`` counts keys and values as the reader does.
    """

    def __init__(self, emitter: Any) -> None:
        self.nodes = 1
        self._emit = emitter.emit
        self._strings: dict[str, yaml.ScalarEvent] = {}

    def document(self, data: Mapping[str, Json]) -> None:
        self._emit(yaml.StreamStartEvent())
        self._emit(yaml.DocumentStartEvent(explicit=False))
        self._emit(yaml.MappingStartEvent(None, None, True, flow_style=False))
        self.nodes += 2 * len(data)
        for key, value in data.items():
            self._string(key)
            if key in ROWS:
                self._rows(value)
            elif key == "graphs":
                self._families(value)
            else:
                self._value(value, flow=False)
        self._emit(yaml.MappingEndEvent())
        self._emit(yaml.DocumentEndEvent(explicit=False))
        self._emit(yaml.StreamEndEvent())

    def _families(self, graphs: Mapping[str, Sequence[Json]]) -> None:
        self._emit(yaml.MappingStartEvent(None, None, True, flow_style=not graphs))
        self.nodes += 2 * len(graphs)
        for family, entries in graphs.items():
            self._string(family)
            self._rows(entries)
        self._emit(yaml.MappingEndEvent())

    def _rows(self, rows: Sequence[Json]) -> None:
        self._emit(yaml.SequenceStartEvent(None, None, True, flow_style=not rows))
        self.nodes += len(rows)
        for row in rows:
            self._value(row, flow=True)
        self._emit(yaml.SequenceEndEvent())

    def _value(self, value: Json, *, flow: bool) -> None:
        """Any value: mappings in block style unless they are empty or inside a line, lists in flow style."""
        if isinstance(value, dict):
            self._emit(yaml.MappingStartEvent(None, None, True, flow_style=flow or not value))
            self.nodes += 2 * len(value)
            for key, item in value.items():
                self._string(key)
                self._value(item, flow=flow)
            self._emit(yaml.MappingEndEvent())
        elif isinstance(value, list):
            self._emit(yaml.SequenceStartEvent(None, None, True, flow_style=True))
            self.nodes += len(value)
            for item in value:
                self._value(item, flow=True)
            self._emit(yaml.SequenceEndEvent())
        elif isinstance(value, str):
            self._string(value)
        else:
            self._emit(yaml.ScalarEvent(None, None, (True, True), _literal(value)))

    def _string(self, text: str) -> None:
        event = self._strings.get(text)
        if event is None:
            is_plain = _PLAIN.fullmatch(text) is not None and not is_ambiguous(text)
            style = None if is_plain else '"'
            event = self._strings[text] = yaml.ScalarEvent(None, None, (True, True), text, style=style)
        self._emit(event)


def _literal(value: bool | int | float | None) -> str:
    """A value that is no string, in a notation that every YAML reader takes for the same."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    # An exponent without a dot is a string to readers of YAML 1.1.
    return text.replace("e", ".0e", 1) if "e" in text and "." not in text else text
