"""The tool that runs decoder and drafter over several ranks, as torchrun starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from executor.distributed.layout import Layout
from executor.errors import RanksError
from tools.run_distributed import main

PROJECT = Path(__file__).resolve().parents[2]
TOOL = "tools/run_distributed.py"


def start(ranks: int, *args: str) -> subprocess.CompletedProcess[str]:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [sys.executable, *torchrun, TOOL, *args]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=200, check=False)


def reports_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stdout + done.stderr
    reports: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])["ranks"]
    return reports


@pytest.mark.slow
def test_every_step_of_four_ranks_is_that_of_one_process() -> None:
    reports = reports_of(start(4, "--data", "2", "--tensor", "2"))
    assert len(reports) == 4
    assert all(each["ok"] and not each["differences"] for each in reports)
    assert all(each["captured"] == each["entries"] == each["recorded"] == 9 for each in reports)
    assert all(each["acceptance"] > 1 for each in reports)


def test_without_torchrun_the_tool_says_how_it_is_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(sys, "argv", [TOOL])
    assert main() == 3
    assert capsys.readouterr() == ("", "rank 0: not started by torchrun; see --help for how it is\n")


def test_another_number_of_ranks_than_the_sizes_make_is_refused() -> None:
    Layout(data=2, tensor=2).require(4)
    with pytest.raises(RanksError, match="the job has 3 ranks, but data 2 x pipeline 1 x tensor 2 is 4"):
        Layout(data=2, tensor=2).require(3)
