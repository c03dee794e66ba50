"""``planner capture`` on the CPU: a table of proved graphs, and machines that cannot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from cache.keys import stable_digest
from cache.safe import SafeCache
from executor.check import CheckReport
from planner import PlanEntry, load_plan
from tests.planner.cli.conftest import PROJECT, Run, one_line

MODEL = ("--model", PROJECT / "plans" / "models" / "qwen3-0.6b" / "config.json", "--shrink")
ON_CPU = (*MODEL, "--device", "cpu")
SMALL = PROJECT / "plans" / "small-decode.yaml"
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


def test_a_plan_without_a_model_is_tried_with_any(run: Run) -> None:
    result = run("capture", SMALL, "--shrink", "--device", "cpu")
    assert result.exit_code == 0, result.stderr
    assert "target on cpu" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--device", "cpu"),
            "the plan knows no model; give one with --model config.json, or try any with --shrink",
        ),
        (("--device", "cpu", "--model", "nowhere.json"), "nowhere.json: no such file"),
        (("--device", "cpu", "--memory-budget", "0"), "0 is too small"),
        (("--device", "tpu"), "'tpu' is not one of"),
        (("--device", "cpu", "--model", ""), "--model is empty; give the name of a config.json"),
        (("--device", "cpu", "--draft", ""), "--draft is empty; give the name of a config.json"),
        *((("--ready-after", share), "is not within 0 and 1") for share in ("nan", "inf", "-0.1", "1.01")),
        (("--ready-after", "most"), "'most' is not a number"),
        (("--ready-after", "0.5"), "--ready-after is about a cache; name one with --cache DIR"),
        (("--cold",), "--cold is about a cache; name one with --cache DIR"),
        (("--materialize",), "--materialize is about a cache; name one with --cache DIR"),
        (("--prove", "none"), "--prove is about graphs that are rebuilt; give --materialize as well"),
        (("--materialize", "--cache", "c", "--device", "cpu"), "--materialize needs a GPU"),
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
    assert "is no directory; give another place" in one_line(result.stderr)
    assert "cold, as the cache cannot be used" in result.stdout


def test_a_drafter_for_a_plan_without_one_is_told(run: Run) -> None:
    result = run("capture", SMALL, *ON_CPU, "--draft", MODEL[1])
    assert result.exit_code == 2
    assert "no graphs of a DFlash drafter; leave --draft out" in one_line(result.stderr)


def test_options_that_another_leaves_nothing_to_do_are_named(run: Run, tmp_path: Path) -> None:
    cache = ("--cache", tmp_path / "c", "--ready-after", "0.5")
    checked = run("capture", SMALL, *MODEL, "--check", "--device", "cuda", "--memory-budget", "4", *cache)
    assert checked.exit_code == 0
    assert one_line(checked.stderr) == (
        "planner: note: without effect with --check: --device, --memory-budget, --cache, --ready-after"
    )
    cold = run("capture", SMALL, *ON_CPU, *cache, "--cold")
    assert cold.exit_code == 0
    assert one_line(cold.stderr) == "planner: note: without effect with --cold: --ready-after"
    assert not (tmp_path / "c").exists()
    assert run("capture", SMALL, *ON_CPU, "--check").stderr == ""


def test_without_recorded_traffic_the_order_is_the_plans_and_that_is_told(run: Run, tmp_path: Path) -> None:
    call = ("capture", SMALL, *ON_CPU, "--cache", tmp_path / "c", "--ready-after", "0.5")
    assert "no traffic is recorded, so the order is the plan's" in run(*call).stdout
    plan = load_plan(SMALL)
    counter = SafeCache(tmp_path / "c")
    assert counter.add_usage(stable_digest(plan), "target", {plan.entries("target")[-1]: 7})
    counter.close()
    assert "the most used graphs came first: 7 replays of 1 graph on record" in run(*call).stdout
    found = json.loads(run(*call, "--json").stdout)["families"][0]
    assert found["restart"]["recorded_replays"] == 7
    assert found["entries"][0]["num_tokens"] == 1


def test_a_plan_that_was_edited_since_it_was_compiled_is_captured_and_told(run: Run, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    line = "vllm serve Qwen/Qwen3-0.6B --max-num-seqs 2 --max-num-batched-tokens 64"
    assert run("compile", "--device", "H200", "-q", "-o", plan, line).exit_code == 0
    call = ("capture", plan, "--device", "cpu", "--shrink")
    assert run(*call).stderr == ""
    text = plan.read_text()
    edited = "".join(row for row in text.splitlines(True) if "{mode: FULL, num_tokens: 2," not in row)
    assert edited != text
    plan.write_text(edited)
    result = run(*call)
    assert result.exit_code == 0
    assert one_line(result.stderr).startswith(
        f"planner: note: {plan} was changed after it was compiled: its graphs are captured as they stand"
    )
    assert "edited" in run("check", plan).stdout


def test_a_check_looks_at_the_drafter_as_well(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counting(_: object, entries: Sequence[PlanEntry]) -> CheckReport:
        asked.append(len(entries))
        return CheckReport(findings=(), num_operations=3)

    monkeypatch.setattr("executor.check.check_factory", counting)
    assert run("capture", PROLOGUE, *MODEL, "--check").exit_code == 0
    plan = load_plan(PROLOGUE)
    assert asked == [len(plan.entries("target")), len(plan.entries("draft"))]
