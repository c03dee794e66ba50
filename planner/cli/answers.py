"""The JSON forms of what commands answer, for programs. Every field is there, defaults included."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

from attrs import asdict

from planner.documents.deployment import Json
from planner.queries import Answer


def to_json(data: Json) -> str:
    """JSON text, one indented document."""
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def record(value: Any) -> dict[str, Json]:
    """An attrs object with all its fields; ``value`` may hold others."""
    return asdict(value, value_serializer=_serialized)


def _serialized(_: type, __: Any, value: Any) -> Any:
    return str(value) if isinstance(value, Enum) else value


def dispatch_answer(answer: Answer) -> dict[str, Json]:
    """The mode, then the other fields of the runner's own descriptor."""
    if isinstance(answer, tuple):
        mode, descriptor = answer
        return {"mode": str(mode), **record(descriptor)}
    fields = record(answer)
    return {"mode": fields.pop("cg_mode"), **fields}
