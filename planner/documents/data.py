"""Documents as plain data: what is written, and what digests are taken over.

Fields at their default are left out. Enumerations are written as documents spell them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any

from attrs import NOTHING, Attribute, Factory, fields, has

from planner.descriptors import PlanEntry
from planner.documents.deployment import API_VERSION, Deployment, HfConfig, Json
from planner.documents.plan import Plan

UNWRITTEN = frozenset({"ignored", "with_lora", "histogram"})
"""Fields that are no keys: other settings that are kept, what follows from the surroundings, and what is
read from a file beside the document."""

VLLM_CONFIG = "vllm_config"
"""Class variable of the sections that also take whatever keys that config of vLLM has."""

_EXACT = 2**53


def as_data(document: Deployment | Plan) -> dict[str, Json]:
    """A whole document as JSON data, with its version and kind first."""
    return {"apiVersion": API_VERSION, "kind": type(document).__name__, **plain(document)}


def plain(value: Any) -> Any:
    """A part of a document as JSON data."""
    if type(value) is PlanEntry:
        return entry_data(value)
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return _record(value) if has(type(value)) else value


def entry_data(entry: PlanEntry) -> dict[str, Json]:
    """``plain`` of an entry, of which a plan may have very many."""
    data: dict[str, Json] = {"mode": entry.mode.name, "num_tokens": entry.num_tokens}
    if entry.num_reqs is not None:
        data["num_reqs"] = entry.num_reqs
    if entry.uniform_token_count is not None:
        data["uniform_token_count"] = entry.uniform_token_count
    if entry.max_query_len is not None:
        data["max_query_len"] = entry.max_query_len
    if entry.num_active_loras:
        data["num_active_loras"] = entry.num_active_loras
    if entry.num_ubatches != 1:
        data["num_ubatches"] = entry.num_ubatches
    if entry.prologue is not None:
        data["prologue"] = _record(entry.prologue)
    return data


def _record(record: Any) -> dict[str, Json]:
    data: dict[str, Json] = {}
    cls: Any = type(record)
    for attribute, default in _written_fields(cls):
        value = getattr(record, attribute)
        if default is not NOTHING and value == default:
            continue
        if isinstance(value, HfConfig):
            data[attribute] = plain(value.facts)
            data[f"{attribute}_sha256"] = value.sha256
        elif type(value) is float and value.is_integer() and abs(value) < _EXACT:
            data[attribute] = int(value)
        else:
            data[attribute] = plain(value)
    if hasattr(cls, VLLM_CONFIG):
        data.update(plain(record.ignored))
    return data


@cache
def _written_fields(cls: Any) -> tuple[tuple[str, Any], ...]:
    """Names and defaults of the fields that are keys of a document."""
    return tuple((field.name, _default(field)) for field in fields(cls) if field.name not in UNWRITTEN)


def _default(field: Attribute[Any]) -> Any:
    default: Any = field.default
    return default.factory() if isinstance(default, Factory) else default  # type: ignore[arg-type]
