"""Commands on plans of SGLang and TensorRT-LLM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner import compile_plan, dump_plan, load_deployment
from tests.planner.cli.conftest import PROJECT, Run, one_line

SGLANG = PROJECT / "plans" / "deployments" / "sglang-llama-3.1-8b.yaml"
TENSORRT = PROJECT / "plans" / "deployments" / "trtllm-defaults.yaml"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    file = tmp_path / "plan.yaml"
    file.write_text(dump_plan(compile_plan(load_deployment(SGLANG))), encoding="utf-8")
    return file


def test_the_summary_tells_decode_from_prefill(run: Run) -> None:
    result = run("compile", SGLANG)
    assert result.exit_code == 0
    assert result.stderr.startswith("sglang-llama-3.1-8b: sglang 0.5.23\n")
    lines = result.stderr.splitlines()
    assert "decode   1, 2, 4..16/4, 24..200/8 requests (29 sizes)" in lines
    assert any(line.startswith("prefill  4..32/4, 48..256/16") for line in lines)
    assert "step     decode of up to 200 requests of 1 token" in lines


def test_a_plan_without_padding_says_so_and_check_counts_it(run: Run) -> None:
    result = run("check", TENSORRT, "--strict")
    assert result.exit_code == 1
    assert "no-exact-size" in result.stdout
    assert "enable_padding: true" in result.stdout


def test_explain_says_which_graph_and_why_not_another(run: Run, plan: Path) -> None:
    served = run("explain", plan, "--num-reqs", 9, "--num-tokens", 9, "--uniform-token-count", 1).stdout
    assert "FULL 12 tokens, 12 requests of 1" in served
    assert "for prefill, the batch is decode" in served
    eager = run("explain", plan, "--num-reqs", 1, "--num-tokens", 1).stdout
    assert "none: it runs eagerly" in eager
    assert "the next size has 4 tokens, and this batch is padded to 2 at most" in eager


def test_dispatch_answers_by_requests_and_by_tokens(run: Run, plan: Path) -> None:
    asked = [
        {"num_reqs": 9, "num_tokens": 9, "uniform_decode": True},
        {"num_reqs": 1, "num_tokens": 33},
        {"num_reqs": 1, "num_tokens": 1},
    ]
    result = run("dispatch", plan, "--batches", "-", input="\n".join(map(json.dumps, asked)))
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(answer["mode"], answer["num_tokens"]) for answer in answers] == [
        ("FULL", 12),
        ("PIECEWISE", 48),
        ("NONE", 1),
    ]


def test_microbatches_are_refused(run: Run, plan: Path) -> None:
    batch = json.dumps({"num_reqs": 1, "num_tokens": 8, "num_ubatches": 2})
    result = run("dispatch", plan, "--batches", "-", input=batch)
    assert result.exit_code == 2
    assert "sglang does not dispatch by it" in one_line(result.stderr)


def test_plans_of_two_engines_can_be_compared(run: Run, plan: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(dump_plan(compile_plan(load_deployment(TENSORRT))), encoding="utf-8")
    result = run("diff", plan, other)
    assert result.exit_code == 1
    assert "tensorrt-llm" in result.stdout


def test_a_vllm_log_is_not_compared_with_another_engines_plan(run: Run, plan: Path) -> None:
    log = next((PROJECT / "tests" / "data" / "server-logs").glob("*.log*"))
    result = run("check", plan, "--log", log)
    assert result.exit_code == 2
    assert "only" in one_line(result.stderr)
    assert "logs of vllm are read" in result.stderr
