"""Running commands: in this process for most tests, as a program of its own where that matters."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from planner.cli.main import main

PROJECT = Path(__file__).resolve().parents[3]

DEPLOYMENT = """\
apiVersion: graphplan/v1
kind: Deployment
name: small
model: {attention_support: UNIFORM_BATCH}
scheduler: {max_num_seqs: 8, max_num_batched_tokens: 2048}
compilation: {cudagraph_mode: FULL}
speculative: {method: dflash, num_speculative_tokens: 3, attention_support: ALWAYS}
"""

PLAN_BY_HAND = """\
apiVersion: graphplan/v1
kind: Plan
graphs:
  target:
  - {mode: PIECEWISE, num_tokens: 8}
  - {mode: FULL, num_tokens: 4, num_reqs: 4, uniform_token_count: 1}
"""

Run = Callable[..., Result]
Program = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def run() -> Run:
    """Calls a command in this process; ``input`` is its standard input."""

    def call(*args: object, input: str | bytes | None = None) -> Result:  # noqa: A002 - as click calls it
        return CliRunner().invoke(main, [str(arg) for arg in args], input=input)

    return call


def as_program(*args: object, **options: object) -> subprocess.CompletedProcess[bytes]:
    """Calls a command as users do."""
    command = [sys.executable, "-m", "planner.cli.main", *map(str, args)]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, check=False, **options)  # type: ignore[call-overload, no-any-return]


@pytest.fixture
def program() -> Program:
    """Calls a command as users do."""
    return as_program


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    """A file with a deployment of two families."""
    path = tmp_path / "deployment.yaml"
    path.write_text(DEPLOYMENT)
    return path


@pytest.fixture
def plan(tmp_path: Path, deployment: Path, run: Run) -> Path:
    """A file with the plan of ``deployment``."""
    path = tmp_path / "plan.yaml"
    assert run("compile", deployment, "-o", path, "-q").exit_code == 0
    return path


@pytest.fixture
def by_hand(tmp_path: Path) -> Path:
    """A file with a plan written by hand."""
    path = tmp_path / "by-hand.yaml"
    path.write_text(PLAN_BY_HAND)
    return path


def one_line(text: str) -> str:
    """The one line that ``text`` is."""
    assert text.endswith("\n")
    assert text.count("\n") == 1
    return text[:-1]
