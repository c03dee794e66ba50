"""Write planner/documents/vllm-0.33-fields.json from a listing of vLLM's config fields.

Usage: python tools/make_vllm_fields.py CONFIG_FIELDS.json

The listing has, for each config class, its fields with ``name``, ``type`` (as annotated),
``default``, ``init`` and ``bounds``.
"""

from __future__ import annotations

import json
import re
import sys
from ast import literal_eval
from pathlib import Path
from typing import Any

CONFIGS = (
    *("ParallelConfig", "SchedulerConfig", "SpeculativeConfig", "LoRAConfig", "CompilationConfig"),
    *("AttentionConfig", "KVTransferConfig"),
)
TARGET = Path(__file__).parent.parent / "planner/documents/vllm-0.33-fields.json"

LITERAL = re.compile(r"Literal(\[.*\])")
# Words that annotations use, and what a document holds in their place. Anything else is a config
# class of vLLM, which a user gives as a mapping.
SCALARS = {"bool": "bool", "int": "int", "float": "float", "str": "str", "Path": "str", "dtype": "str"}
BY_NAME = {
    "CompilationMode": "any",
    "CUDAGraphMode": "any",
    "AttentionBackendEnum": "str",
    "MLAPrefillBackendEnum": "str",
    "Any": "any",
}
SEQUENCES = ("list", "tuple", "set")


def main(listing: Path) -> None:
    """Read ``listing`` and write the table."""
    configs = json.loads(listing.read_text(encoding="utf-8"))["configs"]
    table = {
        config: {
            field["name"]: compact(field)
            for field in sorted(configs[config]["fields"], key=lambda field: str(field["name"]))
            if field.get("init", True) and not field["name"].startswith("_")
        }
        for config in CONFIGS
    }
    lines = []
    for config, fields in table.items():
        rows = [
            f"  {json.dumps(name)}: {json.dumps(known, sort_keys=True)}" for name, known in fields.items()
        ]
        lines.append(f' "{config}": {{\n' + ",\n".join(rows) + "\n }")
    TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def compact(field: dict[str, Any]) -> dict[str, Any]:
    """Type, items, bounds and choices of one field, without what is at its default."""
    parts = [part for part in split(field["type"]) if not part.startswith("type[")]
    # Some fields are annotated without None but have it as their default.
    nullable = "None" in parts or (field.get("default") is None and not field.get("required", False))
    parts = [part for part in parts if part != "None"]
    literals = [
        choice for part in parts if (found := LITERAL.fullmatch(part)) for choice in literal_eval(found[1])
    ]
    others = sorted({one_type(part) for part in parts if not part.startswith("Literal[")})
    known: dict[str, Any] = {}
    if len(others) == 1:
        known = others_type(others[0], parts)
    elif not others:
        known = {"type": type(literals[0]).__name__, "choices": literals}
    else:
        known = {"type": "int|str" if others == ["int", "str"] else "any"}
    if nullable:
        known["nullable"] = True
    if "bounds" in field:
        known["bounds"] = field["bounds"]
    return known


def others_type(name: str, parts: list[str]) -> dict[str, Any]:
    """The type ``name``, with the type of its items where it is a container of one scalar type."""
    container = next((part for part in parts if part.endswith("]") and not part.startswith("Literal")), "")
    inner = container[container.find("[") + 1 : -1].split(", ")[-1]
    if name in ("list", "dict") and inner in SCALARS:
        return {"type": name, "items": inner}
    if name == "list" and inner == "int | str":
        return {"type": name, "items": "int|str"}
    return {"type": name}


def one_type(part: str) -> str:
    """The kind of value that one alternative of an annotation takes."""
    head = part.split("[")[0]
    if head in SEQUENCES:
        return "list"
    return SCALARS.get(head) or BY_NAME.get(head) or "dict"


def split(annotation: str) -> list[str]:
    """The alternatives of an annotation such as ``list[int | str] | None``."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(annotation):
        depth += (letter == "[") - (letter == "]")
        if letter == "|" and depth == 0:
            parts.append(annotation[start:index].strip())
            start = index + 1
    return [*parts, annotation[start:].strip()]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
