"""The table of SGLang's flags, made from its source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools.make_sglang_flags import flags_of

FIELDS = """
class Fields:
    {field}
"""
SERVER = """
class ServerArgs:
    def add_cli_args(parser):
        parser.add_argument("--config", type=str, help="A file.")
        parser.add_argument("--old-switch", action=DeprecatedStoreTrueAction, new_flag="--new")
"""


def flags(folder: Path, field: str) -> dict[str, dict[str, Any]]:
    fields = folder / "arg_groups" / "fields"
    fields.mkdir(parents=True)
    (fields / "some.py").write_text(FIELDS.format(field=field))
    (folder / "server_args.py").write_text(SERVER)
    return {row["field"]: row for row in flags_of(folder)}


@pytest.mark.parametrize(
    ("field", "row"),
    [
        ("a_b: A[int, 'Help.'] = 1", {"spellings": ["--a-b"], "type": "int"}),
        ("a_b: A[Optional[float], 'Help.'] = None", {"spellings": ["--a-b"], "type": "float"}),
        ("a_b: A[bool, 'Help.'] = False", {"spellings": ["--a-b"], "values": "none"}),
        ("a_b: A[List[int], 'Help.'] = []", {"spellings": ["--a-b"], "type": "int", "values": "many"}),
        (
            "a_b: A[int, Arg(help='', aliases=['--long'], cli_name='--c')] = 1",
            {"spellings": ["--c", "--long"], "type": "int"},
        ),
        ("a_b: A[str, Arg(help='', nargs='?')] = ''", {"spellings": ["--a-b"], "values": "optional"}),
        ("a_b: A[dict, Arg(type_parser=json.loads)] = None", {"spellings": ["--a-b"], "json": True}),
        ("a_b: A[int, Arg(type_parser=human_readable_int)] = 1", {"spellings": ["--a-b"], "type": "size"}),
        (
            "a_b: A[bool, Arg(action=argparse.BooleanOptionalAction)] = 1",
            {"spellings": ["--a-b", "--no-a-b"], "negative": ["--no-a-b"], "values": "none"},
        ),
        (
            "a_b: A[list, Arg(action=Own, action_kwargs={'type': str, 'nargs': '*'})] = 1",
            {"spellings": ["--a-b"], "values": "any"},
        ),
    ],
)
def test_a_field_becomes_the_row_of_its_flag(field: str, row: dict[str, Any], tmp_path: Path) -> None:
    assert flags(tmp_path, field)["a_b"] == {"field": "a_b", **row}


@pytest.mark.parametrize(
    "field", ["a_b: int = 1", "a_b: A[int, Arg(no_cli=True)] = 1", "a_b: A[int, Derived] = 1"]
)
def test_a_field_without_an_option_is_left_out(field: str, tmp_path: Path) -> None:
    assert flags(tmp_path, field) == {
        "config": {"field": "config", "spellings": ["--config"]},
        "old_switch": {"field": "old_switch", "spellings": ["--old-switch"], "values": "none"},
    }
