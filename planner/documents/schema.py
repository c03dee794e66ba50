"""JSON Schemas of both kinds of document, for editors: made from the document classes.

They describe documents as JSON has them. One thing a schema cannot say: string fields take unquoted
numbers as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from types import UnionType
from typing import Any, Union, get_args, get_origin

from attrs import NOTHING, Attribute, fields, has, resolve_types

from planner.documents.data import UNWRITTEN, VLLM_CONFIG
from planner.documents.deployment import API_VERSION, Deployment, HfConfig, Json
from planner.documents.hf_config import CONFIG_SHA256
from planner.documents.plan import Plan
from planner.documents.structure import INTEGER_ENUMS
from planner.documents.vllm_fields import VllmField, vllm_fields

KINDS: Mapping[str, type] = {"deployment": Deployment, "plan": Plan}

Schema = dict[str, Json]

_SCALARS: Mapping[Any, Schema] = {
    str: {"type": ["string", "number", "boolean"]},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
}
_LIMITS = {"minimum": "minimum", "maximum": "maximum"}
_VLLM_LIMITS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_VLLM_TYPES: Mapping[str, Schema] = {
    **{cls.__name__: schema for cls, schema in _SCALARS.items()},
    "int|str": {"type": ["integer", "string"]},
    "any": {},
}


def json_schema(kind: str) -> Schema:
    """The JSON Schema (2020-12) of ``deployment`` or ``plan``."""
    cls = KINDS[kind]
    definitions: dict[str, Schema] = {}
    root = _object(cls, definitions)
    header = {"apiVersion": {"const": API_VERSION}, "kind": {"const": cls.__name__}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"graphplan {cls.__name__}",
        **root,
        "properties": {**header, **root["properties"]},
        "required": [*header, *root["required"]],
        "$defs": dict(sorted(definitions.items())),
    }


def schema_text(kind: str) -> str:
    """The JSON Schema of ``deployment`` or ``plan`` as the file that it is shipped in."""
    return json.dumps(json_schema(kind), indent=2, ensure_ascii=False) + "\n"


def _object(cls: Any, definitions: dict[str, Schema]) -> Schema:
    """The schema of a document class; those of the classes inside it go into ``definitions``."""
    resolve_types(cls)
    known = [field for field in fields(cls) if field.name not in UNWRITTEN]
    vllm_config: str | None = getattr(cls, VLLM_CONFIG, None)
    properties = {field.name: _field(field, vllm_config, definitions) for field in known}
    if any(_is_config(field.type) for field in known):
        properties[CONFIG_SHA256] = {
            "description": "SHA-256 of the config.json that an inline config was taken from.",
            "type": ["string", "null"],
            "pattern": "^[0-9a-f]{64}$",
        }
    if vllm_config is not None:
        for name, setting in vllm_fields(vllm_config).items():
            if name not in properties:
                properties[name] = _vllm_setting(name, setting, vllm_config)
    return {
        "description": _first_paragraph(cls),
        "type": "object",
        "properties": properties,
        "required": [field.name for field in known if field.default is NOTHING],
        "additionalProperties": False,
    }


def _first_paragraph(cls: type) -> str:
    return " ".join((cls.__doc__ or "").split("\n\n")[0].split()).replace("``", "")


def _field(field: Attribute[Any], vllm_config: str | None, definitions: dict[str, Schema]) -> Schema:
    schema = _with_limits(_type(field.type, definitions), field.metadata, _LIMITS)
    if choices := field.metadata.get("choices"):
        is_enum = isinstance(choices[0], Enum)
        schema = _enum(choices) if is_enum else {"enum": list(choices)}
    if field.default is not NOTHING:
        schema = _or_null(schema)
    if vllm_config is not None and field.name in vllm_fields(vllm_config):
        schema = {"description": f"vLLM 0.33: {vllm_config}.{field.name}", **schema}
    return schema


def _is_config(annotation: Any) -> bool:
    return annotation is HfConfig or HfConfig in get_args(annotation)


def _type(annotation: Any, definitions: dict[str, Schema]) -> Schema:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return _union(arguments, definitions)
    if origin is tuple:
        return {"type": "array", "items": _type(arguments[0], definitions)}
    if origin is not None:
        return {"type": "object", "additionalProperties": _type(arguments[1], definitions)}
    if annotation is HfConfig:
        return {
            "description": "Path of the model's config.json, or its content.",
            "type": ["string", "object"],
        }
    if has(annotation):
        return _reference(annotation, definitions)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _enum(tuple(annotation))
    return dict(_SCALARS.get(annotation, {}))


def _union(members: tuple[Any, ...], definitions: dict[str, Schema]) -> Schema:
    given = [member for member in members if member is not type(None)]
    if len(given) == 1:
        return _type(given[0], definitions)
    return {"type": ["integer", "string"]}


def _reference(cls: Any, definitions: dict[str, Schema]) -> Schema:
    if cls.__name__ not in definitions:
        definitions[cls.__name__] = _object(cls, definitions)
    return {"$ref": f"#/$defs/{cls.__name__}"}


def _enum(members: Sequence[Enum]) -> Schema:
    """Names as documents spell them, which editors offer, and the same in any other case."""
    names = [str(member) for member in members]
    integers = [
        member.value for member in members if type(member) in INTEGER_ENUMS and isinstance(member.value, int)
    ]
    any_case = "|".join("".join(map(_any_case, name)) for name in names)
    return {"anyOf": [{"enum": [*names, *integers]}, {"type": "string", "pattern": f"^(?:{any_case})$"}]}


def _any_case(letter: str) -> str:
    return f"[{letter.upper()}{letter.lower()}]" if letter.isalpha() else letter


def _with_limits(schema: Schema, limits: Mapping[str, Any], names: Mapping[str, str]) -> Schema:
    """``schema`` with limits on its numbers: those of a list are limits of its items."""
    if "items" in schema:
        return {**schema, "items": _with_limits(schema["items"], limits, names)}
    return {**schema, **{names[name]: limit for name, limit in limits.items() if name in names}}


def _or_null(schema: Schema) -> Schema:
    """``schema`` for a key that may be empty, which is the same as leaving it out."""
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return {**schema, "type": [*types, "null"]}
    return {"anyOf": [schema, {"type": "null"}]} if schema else {}


def _vllm_setting(name: str, setting: VllmField, vllm_config: str) -> Schema:
    schema: Schema
    if setting.choices:
        schema = {"enum": list(setting.choices)}
    elif setting.type == "list":
        schema = {"type": "array", "items": dict(_VLLM_TYPES[setting.items])}
    elif setting.type == "dict":
        schema = {"type": "object", "additionalProperties": dict(_VLLM_TYPES[setting.items])}
    else:
        schema = _with_limits(dict(_VLLM_TYPES[setting.type]), setting.bounds, _VLLM_LIMITS)
    if setting.nullable:
        schema = _or_null(schema)
    return {"description": f"vLLM 0.33: {vllm_config}.{name}; has no effect on planning.", **schema}
