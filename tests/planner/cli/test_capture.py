"""``planner capture`` on the CPU: a table of proved graphs, and machines that cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.planner.cli.conftest import PROJECT, Run, one_line

MODEL = ("--model", PROJECT / "plans" / "models" / "qwen3-0.6b" / "config.json", "--shrink")
ON_CPU = (*MODEL, "--device", "cpu")
PROLOGUE = PROJECT / "plans" / "dflash-prologue.yaml"


def test_every_entry_is_captured_and_compared_with_eager(run: Run) -> None:
    result = run("capture", PROLOGUE, *ON_CPU)
    assert result.exit_code == 0
    assert "target on cpu: " in result.stdout
    assert "draft on cpu: " in result.stdout
    assert "differs" not in result.stdout


def test_json_has_everything_that_was_measured(run: Run) -> None:
    result = run("capture", PROLOGUE, *ON_CPU, "--json")
    found = json.loads(result.stdout)
    assert found["ok"] is True
    assert found["left_out"] == []
    assert [family["family"] for family in found["families"]] == ["target", "draft"]
    for family in found["families"]:
        for entry in family["entries"]:
            assert entry["verified"]["ok"]
            assert entry["kernel_digest"]
            assert entry["topology_digest"]
            assert entry["num_nodes"] > 0


def test_a_budget_that_is_too_small_costs_entries_and_exits_with_1(run: Run, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "apiVersion: graphplan/v1\nkind: Plan\ngraphs:\n  target:\n"
        "  - {mode: FULL, num_tokens: 512, num_reqs: 512, uniform_token_count: 1}\n"
        "  - {mode: FULL, num_tokens: 1, num_reqs: 1, uniform_token_count: 1}\n"
    )
    result = run("capture", plan, *ON_CPU, "--memory-budget", "3")
    assert result.exit_code == 1
    words = " ".join(result.stdout.split())
    assert "the budget leaves" in words
    assert "max_cudagraph_capture_size: 1, which fitted" in words


def test_a_check_needs_no_gpu_and_finds_nothing_in_the_reference_model(run: Run) -> None:
    result = run("capture", PROLOGUE, *MODEL, "--check")
    assert result.exit_code == 0
    assert result.stdout.startswith("capture check: no findings in ")
    assert json.loads(run("capture", PROLOGUE, *MODEL, "--check", "--json").stdout)["ok"] is True


def test_a_plan_that_knows_its_model_needs_no_config(run: Run, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    line = "vllm serve Qwen/Qwen3-0.6B --max-num-seqs 2 --max-num-batched-tokens 64"
    assert run("compile", "--device", "H200", "-q", "-o", plan, line).exit_code == 0
    assert run("capture", plan, "--device", "cpu", "--shrink").exit_code == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="states what a machine without a GPU answers")
def test_a_machine_without_a_gpu_exits_with_3(run: Run) -> None:
    result = run("capture", PROLOGUE, *MODEL)
    assert result.exit_code == 3
    assert one_line(result.stderr).endswith("PyTorch finds no GPU here; --device cpu captures on the CPU")


def test_a_machine_without_pytorch_exits_with_3(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        assert name == "torch"

    monkeypatch.setattr("planner.cli.capture.find_spec", missing)
    result = run("capture", PROLOGUE, *ON_CPU)
    assert result.exit_code == 3
    assert "pip install 'graphplan[executor]'" in one_line(result.stderr)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "cpu"), "the plan knows no model; give one with --model config.json"),
        (("--device", "cpu", "--model", "nowhere.json"), "nowhere.json: no such file"),
        (("--device", "cpu", "--memory-budget", "0"), "0 is too small"),
        (("--device", "tpu"), "'tpu' is not one of"),
    ],
)
def test_wrong_arguments_are_one_line(run: Run, arguments: tuple[str, ...], message: str) -> None:
    result = run("capture", PROLOGUE, *arguments)
    assert result.exit_code == 2
    assert message in one_line(result.stderr)


def test_a_second_capture_with_a_cache_goes_by_the_first(run: Run, tmp_path: Path) -> None:
    first = json.loads(run("capture", PROLOGUE, *ON_CPU, "--cache", tmp_path / "c", "--json").stdout)
    assert [family["restart"]["warm"] for family in first["families"]] == [False, False]
    assert all(entry["num_warmups"] == 1 for family in first["families"] for entry in family["entries"])
    second = run("capture", PROLOGUE, *ON_CPU, "--cache", tmp_path / "c", "--json")
    assert second.exit_code == 0
    for family in json.loads(second.stdout)["families"]:
        assert family["restart"]["warm"]
        assert family["restart"]["preloaded_calls"] > 0
        assert not family["restart"]["differing"]
        assert all(entry["num_warmups"] == 0 for entry in family["entries"])
        assert all(entry["verified"]["ok"] for entry in family["entries"])
    shown = run("capture", PROLOGUE, *ON_CPU, "--cache", tmp_path / "c").stdout
    assert "no trial capture" in " ".join(shown.split())


def test_cold_leaves_the_cache_alone(run: Run, tmp_path: Path) -> None:
    result = run("capture", PROLOGUE, *ON_CPU, "--cache", tmp_path / "c", "--cold", "--json")
    assert result.exit_code == 0
    assert "restart" not in json.loads(result.stdout)["families"][0]
    assert not (tmp_path / "c").exists()


def test_a_cache_that_cannot_be_used_is_a_warning(run: Run, tmp_path: Path) -> None:
    (tmp_path / "c").write_text("no directory")
    result = run("capture", PROLOGUE, *ON_CPU, "--cache", tmp_path / "c")
    assert result.exit_code == 0
    assert result.stderr.count("warning: cache:") == 1
