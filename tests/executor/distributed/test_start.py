"""Ranks that were not started alike end with one message before anything is captured."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache.fingerprint import EnvironmentFingerprint, ModelFingerprint
from executor.distributed.start import Statement, differences, refusal
from planner import load_plan
from tests.executor.distributed.cases import DECODE, halves, never_there, start
from tests.executor.distributed.launch import KILLED, run_ranks

SMALLER = DECODE.replace("  - {mode: FULL, num_tokens: 4, num_reqs: 4, uniform_token_count: 1}\n", "")
PIECES = DECODE.replace(
    "mode: FULL, num_tokens: 4, num_reqs: 4, uniform_token_count: 1", "mode: PIECEWISE, num_tokens: 4"
)


def statement(text: str = DECODE, stage: int = 0, **fields: str) -> Statement:
    environment = EnvironmentFingerprint(gpu=fields.get("gpu", "H200"))
    model = ModelFingerprint(dtype=fields.get("dtype", "bfloat16"))
    return Statement.of(load_plan(text), environment, model, stage=stage)


def test_equal_statements_do_not_differ() -> None:
    assert not differences(dict.fromkeys(range(8), statement()))


def test_another_plan_is_told_by_digest_and_by_the_entry_that_differs() -> None:
    found = differences({0: statement(), 1: statement(SMALLER), 2: statement()})
    names = [difference.name for difference in found]
    assert names[:3] == ["plan", "graphs.target", "graphs.target[0]"]
    assert "sizes.target" in names
    text = refusal(found)
    assert "on ranks 0 and 2" in text
    assert "on rank 1" in text
    assert "2 entries on ranks 0 and 2, 1 entries on rank 1" in text
    assert "more fields differ" in text
    assert "\n" not in text


@pytest.mark.parametrize(("field", "name"), [("gpu", "environment.gpu"), ("dtype", "model.dtype")])
def test_another_machine_or_model_is_told_with_both_values(field: str, name: str) -> None:
    ranks = {rank: statement() for rank in range(4)} | {3: statement(**{field: "other"})}
    (difference,) = differences(ranks)
    usual = "H200" if field == "gpu" else "bfloat16"
    assert str(difference) == f"{name} is {usual} on ranks 0 to 2, other on rank 3"


def test_stages_have_plans_and_models_of_their_own_but_the_same_sizes() -> None:
    ranks = {
        0: statement(),
        1: statement(),
        2: statement(PIECES, stage=1, dtype="float16"),
        3: statement(PIECES, stage=1, dtype="float16"),
    }
    assert not differences(ranks)
    (difference,) = differences(ranks | {2: statement(SMALLER, 1), 3: statement(SMALLER, 1)})
    assert str(difference) == "sizes.target is [1, 4] on ranks 0 and 1, [1] on ranks 2 and 3"


def test_ranks_of_one_stage_have_one_plan() -> None:
    found = differences(
        {0: statement(), 1: statement(), 2: statement(stage=1), 3: statement(PIECES, stage=1)}
    )
    assert found[0].name == "plan"
    assert set(found[0].ranks.values()) == {(2,), (3,)}


def test_a_family_that_only_the_last_stage_has_is_no_difference_of_sizes() -> None:
    both = load_plan(
        "apiVersion: graphplan/v1\nkind: Plan\ngraphs:\n"
        "  target: [{mode: PIECEWISE, num_tokens: 4}, {mode: PIECEWISE, num_tokens: 1}]\n"
        "  draft: [{mode: PIECEWISE, num_tokens: 2}]\n"
    )
    last = Statement.of(both, EnvironmentFingerprint(gpu="H200"), ModelFingerprint(), stage=1)
    assert not differences({0: statement(), 1: last})


def test_a_statement_survives_its_way_to_another_rank() -> None:
    assert Statement.from_bytes(statement().as_bytes()) == statement()


def test_ranks_that_were_started_alike_agree(tmp_path: Path) -> None:
    assert run_ranks(4, start, tmp_path / "store", [DECODE] * 4, [{}] * 4, [0, 0, 1, 1]) == ["agreed"] * 4


def test_a_rank_with_another_plan_ends_all_with_the_same_message(tmp_path: Path) -> None:
    plans = [DECODE, DECODE, SMALLER, DECODE]
    outcomes = run_ranks(4, start, tmp_path / "store", plans, [{}, {}, {}, {"torch": "2.11"}], [0] * 4)
    (message,) = set(outcomes)
    assert message.startswith("RanksError: the ranks were not started alike: plan is sha256:")
    assert "on ranks 0, 1 and 3, " in message
    assert "on rank 2" in message


def test_a_rank_that_never_starts_is_named(tmp_path: Path) -> None:
    outcomes = run_ranks(2, never_there, tmp_path / "store", 1.0)
    assert outcomes[0].startswith("RanksError: job: rank 1 did not start within 1 s")


def test_groups_of_one_name_are_apart_and_lose_ranks_apart(tmp_path: Path) -> None:
    outcomes = run_ranks(4, halves, tmp_path / "store")
    assert outcomes[0] == outcomes[2] == (["0", "2"], "agreed")
    assert outcomes[3] == KILLED
    numbers, message = outcomes[1]
    assert numbers == ["1", "3"]
    assert message.startswith("after the loss: rank 3 ended, or took longer than 1.5 s")
