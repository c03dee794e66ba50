"""``planner schema``: what editors read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.documents.schema import json_schema
from tests.planner.cli.conftest import PROJECT, Run


@pytest.mark.parametrize("kind", ["deployment", "plan"])
def test_the_schema_is_printed_or_written(run: Run, tmp_path: Path, kind: str) -> None:
    result = run("schema", kind)
    assert result.exit_code == 0
    assert json.loads(result.stdout) == json_schema(kind)
    assert result.stdout == (PROJECT / "plans" / "schemas" / f"{kind}.schema.json").read_text()
    assert run("schema", kind, "-o", tmp_path / "schema.json").stdout == ""
    assert (tmp_path / "schema.json").read_text() == result.stdout
