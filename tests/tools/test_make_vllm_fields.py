"""How annotations of vLLM's config classes become the types that documents are checked against."""

import runpy
from pathlib import Path

import pytest

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "make_vllm_fields.py"), run_name="tool")


@pytest.mark.parametrize(
    ("annotation", "known"),
    [
        ("int", {"type": "int"}),
        ("Path | None", {"type": "str", "nullable": True}),
        ("list[int | str] | None", {"type": "list", "items": "int|str", "nullable": True}),
        ("list[tuple[int, int, int]] | None", {"type": "list", "nullable": True}),
        ("dict[str, str]", {"type": "dict", "items": "str"}),
        ("Literal['a', 'b'] | None", {"type": "str", "choices": ["a", "b"], "nullable": True}),
        ("Literal[1, 8]", {"type": "int", "choices": [1, 8]}),
        ("Literal['awq'] | str | None", {"type": "str", "nullable": True}),
        ("str | type[object] | None", {"type": "str", "nullable": True}),
        ("Any | None", {"type": "any", "nullable": True}),
        ("PassConfig", {"type": "dict"}),
    ],
)
def test_an_annotation_becomes_a_compact_type(annotation, known):
    assert TOOL["compact"]({"name": "x", "type": annotation, "default": 0}) == known


def test_a_field_without_none_in_its_type_but_in_its_default_is_nullable():
    assert TOOL["compact"]({"name": "x", "type": "bool", "default": None})["nullable"]
    required = {"name": "x", "type": "int", "required": True, "bounds": {"ge": 1}}
    assert TOOL["compact"](required) == {"type": "int", "bounds": {"ge": 1}}
