"""The README's examples are real: each command in it prints what the README shows."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from planner.cli.main import main

PROJECT = Path(__file__).resolve().parent.parent
README = (PROJECT / "README.md").read_text(encoding="utf-8")
SESSIONS = re.findall(r"```console\n(.*?)```", README, re.DOTALL)


def commands(session: str) -> list[tuple[str, str]]:
    """The commands of one block and what each printed."""
    parts = re.split(r"^\$ (.*)\n", session, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def test_every_command_prints_what_the_readme_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = re.search(r"```yaml\n(apiVersion.*?kind: Deployment.*?)```", README, re.DOTALL)
    assert example
    Path("my.yaml").write_text(example[1], encoding="utf-8")
    shutil.copy(PROJECT / "plans" / "models" / "llama-3.1-8b" / "config.json", "config.json")
    shown = [pair for session in SESSIONS for pair in commands(session)]
    assert len(shown) >= 3
    for command, output in shown:
        program, *arguments = shlex.split(command)
        if program == "sed":
            _delete_line(arguments)
            continue
        if command == "tools/run":
            # It sets up and compiles; a test of its own cannot be run from inside the suite.
            continue
        assert program in ("planner", ".venv/bin/planner"), command
        result = CliRunner().invoke(main, arguments)
        assert result.output == output, command


def _delete_line(arguments: list[str]) -> None:
    """The one use of sed in the README: ``sed '/word/d' FILE > COPY``."""
    pattern, source, _, target = arguments
    word = pattern.removeprefix("/").removesuffix("/d")
    lines = Path(source).read_text(encoding="utf-8").splitlines(keepends=True)
    Path(target).write_text("".join(line for line in lines if word not in line), encoding="utf-8")
