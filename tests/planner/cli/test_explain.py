"""``planner explain``: the answer and its reasons, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.planner.cli.conftest import Run, one_line


def test_a_person_reads_graph_padding_and_reasons(run: Run, by_hand: Path) -> None:
    result = run("explain", by_hand, "--num-reqs", 3, "--num-tokens", 3, "--uniform-token-count", 1)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout == (
        f"{by_hand}: family target, runner v2\n"
        "\n"
        "batch    3 requests of 1, 3 tokens\n"
        "graph    FULL 4 tokens, 4 requests of 1\n"
        "padding  1 token (25.0% of the graph), 1 request\n"
        "\n"
        "graphs looked at, in this order\n"
        "  FULL 4 tokens, 4 requests of 1  serves\n"
        "  PIECEWISE 8 tokens              fits too, but comes later\n"
    )


def test_a_batch_without_a_graph_reads_as_eager(run: Run, by_hand: Path) -> None:
    result = run("explain", by_hand, "--num-reqs", 3, "--num-tokens", 9)
    assert result.exit_code == 0
    assert "graph  none: it runs eagerly, unpadded\n" in result.stdout
    assert "note   the largest graph has 8 tokens\n" in result.stdout


def test_the_decisions_that_led_there_are_told(run: Run, plan: Path) -> None:
    result = run("explain", plan, "--num-reqs", 2, "--num-tokens", 8, "--uniform-decode")
    assert "FULL -> FULL_AND_PIECEWISE" in result.stdout
    assert "attention  UNIFORM_BATCH" in result.stdout


def test_a_draft_graph_tells_its_prologue(run: Run, plan: Path) -> None:
    result = run("explain", plan, "--num-reqs", 2, "--num-tokens", 8, "--uniform-decode", "--family", "draft")
    assert "prologue   dflash_context_kv, 8 context tokens\n" in result.stdout


def test_a_program_reads_all_of_it(run: Run, plan: Path) -> None:
    args = ("--num-reqs", 2, "--num-tokens", 7, "--format", "json")
    answer = json.loads(run("explain", plan, *args).stdout)
    assert answer["batch"]["num_tokens"] == 7
    assert answer["answer"]["mode"] == "PIECEWISE"
    assert answer["entry"] == {"mode": "PIECEWISE", "num_tokens": 8}
    assert answer["padding"] == {"num_tokens": 1, "share": 0.125, "num_reqs": None}
    assert [candidate["fits"] for candidate in answer["candidates"]] == [False, True]
    assert answer["candidates"][0]["obstacles"] == ["uniform token count 4, the batch has none"]
    assert "compilation.cudagraph_mode" in {decision["path"] for decision in answer["decisions"]}


def test_an_eager_answer_has_no_entry(run: Run, by_hand: Path) -> None:
    args = ("--num-reqs", 3, "--num-tokens", 9, "--format", "json")
    answer = json.loads(run("explain", by_hand, *args).stdout)
    assert answer["entry"] is None
    assert answer["answer"]["mode"] == "NONE"
    assert answer["answer"]["num_tokens"] == 9


def test_a_plan_is_read_from_standard_input(run: Run, plan: Path) -> None:
    args = ("--num-reqs", "1", "--num-tokens", "1")
    assert run("explain", "-", *args, input=plan.read_text()).stdout == run("explain", plan, *args).stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--num-reqs 1", "Missing option '--num-tokens'"),
        ("--num-reqs 0 --num-tokens 1", "0 is too small; the smallest value is 1"),
        ("--num-reqs -1 --num-tokens 1", "-1 is too small; the smallest value is 1"),
        ("--num-reqs 1_0 --num-tokens 10", "'1_0' is not a whole number in plain decimal digits"),
        ("--num-reqs 010 --num-tokens 10", "'010' is not a whole number in plain decimal digits"),
        ("--num-reqs 1.0 --num-tokens 1", "'1.0' is not a whole number in plain decimal digits"),
        ("--num-reqs ٣ --num-tokens 10", "is not a whole number in plain decimal digits"),
        (
            "--num-reqs 1 --num-tokens 99999999999999999999",
            "99999999999999999999 is too large; the largest value is 999999999999999999",
        ),
        (f"--num-reqs 1 --num-tokens {'9' * 5000}", "digits is too large; the largest value is 999999"),
        ("--num-reqs 1 --num-tokens 1 --num-active-loras -1", "-1 is too small; the smallest value is 0"),
        ("--num-reqs 2 --num-tokens 1", "2 requests have at least 2 tokens, but num_tokens is 1"),
        ("--num-reqs 2 --num-tokens 5 --uniform-token-count 2", "2 requests of 2 are 4 tokens"),
        ("--num-reqs 2 --num-tokens 2 --uniform-decode", "give uniform_token_count"),
        ("--num-reqs 1 --num-tokens 1 --family draft", "no such family; it has: target"),
    ],
)
def test_a_batch_that_cannot_be_is_one_line(run: Run, by_hand: Path, args: str, message: str) -> None:
    result = run("explain", by_hand, *args.split())
    assert result.exit_code == 2
    assert message in one_line(result.stderr)
    assert result.stdout == ""


def test_an_error_about_the_plan_begins_with_its_file(run: Run, by_hand: Path) -> None:
    for args in (
        ("explain", by_hand, "--num-reqs", 1, "--num-tokens", 1),
        ("dispatch", by_hand, "--batches", "-"),
    ):
        result = run(*args, "--family", "draft", input="")
        assert one_line(result.stderr).startswith(f"planner: error: {by_hand}: graphs.draft: ")


def test_a_deployment_is_no_plan(run: Run, deployment: Path) -> None:
    result = run("explain", deployment, "--num-reqs", 1, "--num-tokens", 1)
    assert result.exit_code == 2
    assert "this is a Deployment, where a Plan is expected" in one_line(result.stderr)
