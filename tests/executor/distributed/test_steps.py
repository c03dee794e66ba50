"""Steps of data-parallel ranks over a real process group: what the planner decides, on every rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor.distributed.steps import dummy_batch
from planner import agree, load_plan
from tests.executor.distributed.cases import DECODE, fault, golden, random_steps
from tests.executor.distributed.launch import KILLED, run_cases, run_ranks
from tests.planner.golden_lines import as_decision, golden_lines

LINES = [line for line in golden_lines("v2") if "dp_steps" in line.get("expect", {})]
PLANS = [
    Path(f"plans/compiled/{name}.yaml").read_text()
    for name in (
        "qwen3-30b-a3b-dbo",
        "llama-3.1-8b-lora",
        "sglang-deepseek-v3-dp4-eagle",
        "llama-3.1-70b-eagle3-v1",
    )
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[list[Any]]]:
    """Of 2 and of 4 ranks: the golden steps, then random ones."""
    stores = tmp_path_factory.mktemp("ranks")
    lines = [{name: line[name] for name in ("deployment", "dp_steps")} for line in LINES]
    cases = [(golden, lines), (random_steps, PLANS, 100, 1)]
    return {size: run_cases(size, stores / str(size), cases) for size in (2, 4)}


@pytest.mark.parametrize("size", [2, 4])
def test_every_golden_step_is_decided_as_by_the_engine(size: int, outcomes: dict[int, Any]) -> None:
    expected = [
        answer
        for line in LINES
        for step, answer in zip(line["dp_steps"], line["expect"]["dp_steps"], strict=True)
        if len(step) == size
    ]
    assert len(expected) > 0
    for rank, decided in enumerate(outcomes[size][0]):
        assert [as_decision(agreement) for agreement in decided] == [answer[rank] for answer in expected]


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_of_three_engines_decide_as_one_process_does(size: int, outcomes: dict[int, Any]) -> None:
    assert outcomes[size][1] == [{"different": 0, "modes": ["FULL", "NONE", "PIECEWISE"]}] * size


@pytest.mark.slow
def test_two_ranks_never_disagree_in_ten_thousand_steps(tmp_path: Path) -> None:
    outcomes = run_ranks(2, random_steps, tmp_path / "store", PLANS, 10_000, 2)
    assert outcomes == [{"different": 0, "modes": ["FULL", "NONE", "PIECEWISE"]}] * 2


@pytest.mark.parametrize("size", [2, 4])
def test_a_killed_rank_ends_the_others_with_its_name(size: int, tmp_path: Path) -> None:
    outcomes = run_ranks(size, fault, tmp_path / "store", "killed", 1.5)
    assert outcomes[-1] == KILLED
    for message, took in outcomes[:-1]:
        assert message.startswith(
            f"RanksError: step agreement: rank {size - 1} ended, or took longer than 1.5 s"
        )
        assert took < 5


def test_a_late_rank_is_named_by_all_itself_included(tmp_path: Path) -> None:
    outcomes = run_ranks(4, fault, tmp_path / "store", "late", 1.5)
    for message, took in outcomes:
        assert message.startswith("RanksError: step agreement: rank 3 came when the others had waited 1.5 s")
        assert took < 7


def test_a_dummy_run_leaves_the_others_their_graph_and_an_idle_rank_does_not() -> None:
    table = load_plan(DECODE).dispatch_table("target")
    busy = {"num_reqs": 3, "num_tokens": 3, "uniform_token_count": 1}
    graphs = agree(table, [busy, dummy_batch()])
    assert [str(agreement.descriptor.cg_mode) for agreement in graphs] == ["FULL", "FULL"]
    idle = agree(table, [busy, {"num_reqs": 0, "num_tokens": 0}])
    assert [agreement.descriptor.num_tokens for agreement in idle] == [3, 0]
    assert all(agreement.eager for agreement in idle)
