"""``planner dispatch``: the engine's answers, line by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner import compile_plan, dump_plan
from tests.planner.cli.conftest import Run, one_line
from tests.planner.golden_lines import golden_lines, load

GOLDEN = [
    next(line for line in golden_lines("v2") if line.get("queries") and "error" not in line["expect"]),
    next(line for line in golden_lines("v1") if line.get("queries") and "error" not in line["expect"]),
]
BATCH = {"num_reqs": 3, "num_tokens": 3, "uniform_token_count": 1}


def lines(*batches: dict[str, Any]) -> str:
    return "".join(json.dumps(batch) + "\n" for batch in batches)


@pytest.mark.parametrize("line", GOLDEN, ids=["v2", "v1"])
def test_each_batch_gets_the_answer_of_the_engine(run: Run, tmp_path: Path, line: dict[str, Any]) -> None:
    plan, batches = tmp_path / "plan.yaml", tmp_path / "batches.jsonl"
    plan.write_text(dump_plan(compile_plan(load(line))))
    batches.write_text(lines(*line["queries"]))
    result = run("dispatch", plan, "--batches", batches)
    assert result.exit_code == 0
    assert [json.loads(answer) for answer in result.stdout.splitlines()] == line["expect"]["dispatch"]


def test_batches_are_read_from_standard_input_and_empty_lines_are_skipped(run: Run, by_hand: Path) -> None:
    result = run("dispatch", by_hand, "--batches", "-", input="\n" + lines(BATCH) + "  \n" + lines(BATCH))
    assert result.exit_code == 0
    assert (
        result.stdout
        == (
            '{"mode": "FULL", "num_tokens": 4, "num_reqs": 4, "uniform_token_count": 1, '
            '"max_query_len": null, "num_active_loras": 0, "num_ubatches": 1}\n'
        )
        * 2
    )


def test_a_byte_order_mark_ahead_of_the_batches_is_skipped(run: Run, by_hand: Path) -> None:
    marked = run("dispatch", by_hand, "--batches", "-", input=b"\xef\xbb\xbf" + lines(BATCH, BATCH).encode())
    assert marked.exit_code == 0
    assert marked.stdout == run("dispatch", by_hand, "--batches", "-", input=lines(BATCH, BATCH)).stdout


def test_no_batches_get_no_answers(run: Run, by_hand: Path) -> None:
    result = run("dispatch", by_hand, "--batches", "-", input="")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_many_batches_come_out_in_their_order(run: Run, by_hand: Path) -> None:
    batches = [{"num_reqs": 1, "num_tokens": 9 + index} for index in range(2500)]
    result = run("dispatch", by_hand, "--batches", "-", input=lines(*batches))
    answers = [json.loads(answer)["num_tokens"] for answer in result.stdout.splitlines()]
    assert answers == [batch["num_tokens"] for batch in batches]


def test_another_family_can_be_asked(run: Run, plan: Path) -> None:
    batch = {"num_reqs": 2, "num_tokens": 8, "uniform_decode": True}
    target = run("dispatch", plan, "--batches", "-", input=lines({"num_reqs": 2, "num_tokens": 8}))
    draft = run("dispatch", plan, "--batches", "-", "--family", "draft", input=lines(batch))
    assert json.loads(target.stdout)["mode"] == "PIECEWISE"
    assert json.loads(draft.stdout)["mode"] == "FULL"
    assert run("dispatch", plan, "--batches", "-", "--family", "x", input="").exit_code == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "not JSON: "),
        (b"[]", "not a batch"),
        (b"\xff", "not UTF-8 text"),
        (b'{"num_reqs": 1}', "field 'num_tokens' is missing"),
        (b'{"num_tokens": 1}', "field 'num_reqs' is missing"),
        (b'{"num_reqs": 1, "num_tokens": 1, "num_token": 1}', "unknown field 'num_token'"),
        (b'{"num_reqs": 1, "num_tokens": 1, "num_tokens": 2}', "a field is given twice"),
        (b'{"num_reqs": true, "num_tokens": 1}', "num_reqs: expected a whole number, found True"),
        (b'{"num_reqs": 1, "num_tokens": 1e3}', "num_tokens: expected a whole number, found 1000.0"),
        (b'{"num_reqs": 1, "num_tokens": NaN}', "num_tokens: expected a whole number, found nan"),
        (b'{"num_reqs": 1, "num_tokens": ' + b"9" * 5000 + b"}", "larger than 999999999999999999"),
        (b'{"num_reqs": 1, "num_tokens": ' + b"9" * 20 + b"}", "the largest value is 999999999999999999"),
        (b"[" * 60000, "nested"),
        (b'{"num_reqs": 2, "num_tokens": 1}', "2 requests have at least 2 tokens"),
        (b" " * 70000 + b"{}", "longer than 65536 bytes"),
    ],
)
def test_a_line_that_is_no_batch_is_named_after_the_answers_before_it(
    run: Run, by_hand: Path, tmp_path: Path, line: bytes, message: str
) -> None:
    batches = tmp_path / "batches.jsonl"
    batches.write_bytes(lines(BATCH).encode() + line + b"\n" + lines(BATCH).encode())
    result = run("dispatch", by_hand, "--batches", batches)
    assert result.exit_code == 2
    assert one_line(result.stderr).startswith(f"planner: error: {batches}:2: ")
    assert message in result.stderr
    assert len(result.stdout.splitlines()) == 1


def test_a_batches_file_that_cannot_be_read_is_one_line(run: Run, by_hand: Path, tmp_path: Path) -> None:
    for name in (tmp_path, tmp_path / "missing", "\0"):
        result = run("dispatch", by_hand, "--batches", name)
        assert result.exit_code == 2
        assert "cannot be read" in one_line(result.stderr)


def test_plan_and_batches_cannot_both_come_from_standard_input(run: Run) -> None:
    result = run("dispatch", "-", "--batches", "-", input="")
    assert result.exit_code == 2
    assert "once only" in one_line(result.stderr)
