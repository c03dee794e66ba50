"""Fuzzing: some hundred mutated documents, and that the tool notices what must not happen."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from planner import GraphplanError
from tests.planner.fuzzing import outcome
from tests.planner.fuzzing.mutate import mutated_document
from tests.planner.fuzzing.outcome import FaultError, outcome_of
from tools.fuzz_documents import fuzz, save, summary

TOOL = Path(__file__).parents[2] / "tools" / "fuzz_documents.py"
LIMIT_S = 60.0
VALID = b"apiVersion: graphplan/v1\nkind: Plan\ngraphs: {target: [{mode: PIECEWISE, num_tokens: 8}]}\n"


def test_mutated_documents_end_in_a_result_or_in_one_clear_error() -> None:
    report = fuzz(range(300), 0, LIMIT_S)
    figures = summary(report, 1.0)
    assert figures["failed"] == []
    assert figures["documents"] == 300
    assert figures["valid_share"] >= 0.3
    assert min(figures["deployments_compiled"], figures["plans_read"], *figures["refused"].values()) > 0
    assert set(figures["refused"]) == {"DocumentError", "PlanError"}


def test_a_number_makes_the_same_document_each_time() -> None:
    documents = [mutated_document(Random(f"0:{number}")) for number in range(20)]
    assert documents == [mutated_document(Random(f"0:{number}")) for number in range(20)]
    assert len(set(documents)) == 20


@pytest.mark.parametrize(
    ("source", "end"),
    [
        (VALID, "plan"),
        (b"apiVersion: graphplan/v1\nkind: Deployment\n", "compiled"),
        (b"apiVersion: graphplan/v1\nkind: Deployment\nengine: {name: lmdeploy}\n", "PlanError"),
        (b"kind: x", "DocumentError"),
        (b"\xff", "DocumentError"),
    ],
)
def test_each_end_is_told_apart(source: bytes, end: str) -> None:
    assert outcome_of(source, Random(0)) == end


def fall_over(_source: bytes, _rng: Random) -> str:
    raise KeyError("a bare one")


def hang(_source: bytes, _rng: Random) -> str:
    while True:
        with suppress(Exception):  # what must not swallow the alarm
            sum(range(1000))


@pytest.mark.parametrize(
    ("check", "limit", "why"), [(fall_over, 60.0, "KeyError"), (hang, 0.05, "OutOfTimeError")]
)
def test_a_traceback_and_a_hang_are_failures_with_number_and_document(
    check: Any, limit: float, why: str
) -> None:
    report = fuzz(range(7, 8), 0, limit, check)
    (failure,) = report.failures
    assert failure.number == 7
    assert failure.document == mutated_document(Random("0:7"))
    assert why in failure.why
    assert summary(report, 1.0)["valid_share"] == 0.0


@pytest.mark.parametrize("message", ["", "a\nb", "a\x1b[31m", "a" * 2_000])
def test_an_unclear_error_is_a_failure(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class UnclearError(GraphplanError):
        def __str__(self) -> str:
            return message

    def refuse(_source: bytes) -> None:
        raise UnclearError

    monkeypatch.setattr(outcome, "load_document", refuse)
    with pytest.raises(FaultError):
        outcome_of(VALID, Random(0))


def test_a_plan_that_reads_back_different_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    other = outcome.load_plan(VALID.replace(b"8", b"9"))
    monkeypatch.setattr(outcome, "load_plan", lambda _text: other)
    with pytest.raises(FaultError, match="reads back different"):
        outcome_of(VALID, Random(0))


def test_failing_documents_are_saved_with_their_traceback(tmp_path: Path) -> None:
    report = fuzz(range(3), 0, LIMIT_S, fall_over)
    save(report.failures, tmp_path / "new")
    assert (tmp_path / "new" / "2.yaml").read_bytes() == mutated_document(Random("0:2"))
    assert "a bare one" in (tmp_path / "new" / "2.txt").read_text(encoding="utf-8")


def test_the_tool_prints_one_summary_of_all_its_processes() -> None:
    command = [sys.executable, str(TOOL), "--first", "10", "--count", "60", "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    figures = json.loads(done.stdout)
    assert figures["documents"] == 60
    assert figures["valid"] == summary(fuzz(range(10, 70), 0, LIMIT_S), 1.0)["valid"]
