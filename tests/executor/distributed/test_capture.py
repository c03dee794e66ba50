"""Capture in lock-step: the same entries on every rank, whatever happens to one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.executor.distributed.launch import KILLED, run_cases, run_ranks
from tests.executor.distributed.model_cases import guided, lock_step, memory_on_one_rank

KINDS: dict[str, tuple[Any, ...]] = {
    "none": (lock_step, "none"),
    "recording": (lock_step, "recording"),
    "extra": (lock_step, "extra"),
    "known": (guided, "known"),
    "warm": (guided, "warm"),
    "order": (guided, "order"),
    "no memory": (memory_on_one_rank,),
}
"""Captures that leave all ranks running: they are run by one group after another."""

Outcomes = dict[str, list[Any]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    found = run_cases(2, tmp_path_factory.mktemp("ranks") / "store", list(KINDS.values()))
    return dict(zip(KINDS, found, strict=True))


def test_ranks_without_a_fault_capture_everything(outcomes: Outcomes) -> None:
    assert [outcome["captured"] for outcome in outcomes["none"]] == [[8, 4, 2]] * 2


def test_an_entry_that_one_rank_cannot_record_is_skipped_by_all(outcomes: Outcomes) -> None:
    first, last = outcomes["recording"]
    assert first["captured"] == last["captured"] == [8, 2]
    assert last["errors"]["4"] == "no such kernel"
    assert first["errors"]["4"] == "failed on rank 1: no such kernel"


def test_an_entry_whose_collectives_differ_is_skipped_by_all(outcomes: Outcomes) -> None:
    for outcome in outcomes["extra"]:
        assert outcome["captured"] == [8, 2]
        assert "different collectives" in outcome["errors"]["4"]
        assert "8 on rank 0, 9 on rank 1" in outcome["errors"]["4"]


def test_an_entry_that_a_record_says_fails_on_one_rank_is_skipped_by_all(outcomes: Outcomes) -> None:
    first, last = outcomes["known"]
    assert first["captured"] == last["captured"] == [4, 1]
    assert first["errors"]["2"] == "failed on rank 1: does not fit"


def test_a_warm_up_that_one_rank_needs_is_run_by_all(outcomes: Outcomes) -> None:
    first, last = outcomes["warm"]
    assert first["captured"] == last["captured"] == [4, 2, 1]
    assert first["calls"] == last["calls"] == 6


def test_another_order_on_one_rank_ends_all(outcomes: Outcomes) -> None:
    first, last = outcomes["order"]
    assert first.startswith("RanksError: capture: this rank is at {mode: FULL, num_tokens: 4")
    assert "rank 1 at {mode: FULL, num_tokens: 2" in first
    assert last.startswith("RanksError: capture: this rank is at {mode: FULL, num_tokens: 2")


def test_memory_that_lacks_on_one_rank_costs_the_entry_and_a_larger_one_serves(outcomes: Outcomes) -> None:
    for outcome in outcomes["no memory"]:
        assert (outcome["captured"], outcome["dispatched"]) == ([4, 1], 4)


def test_memory_that_lacks_within_collectives_ends_all_with_its_reason(tmp_path: Path) -> None:
    first, last = run_ranks(2, lock_step, tmp_path / "store", "memory")
    assert last.startswith("RanksError: capture of {mode: FULL, num_tokens: 4")
    assert "out of memory: 2 GiB wanted" in last
    assert first.startswith("RanksError: capture of {mode: FULL, num_tokens: 4")
    assert "rank 1 gave up: {mode: FULL, num_tokens: 4" in first
    assert "2 GiB wanted" in first


def test_a_forward_that_fails_while_warming_up_ends_all_with_its_reason(tmp_path: Path) -> None:
    first, last = run_ranks(2, lock_step, tmp_path / "store", "warm-up")
    assert first.startswith("RanksError: capture of {mode: FULL, num_tokens: 4")
    assert "rank 1 gave up" in first
    assert first.endswith("weights are missing")
    assert "ValueError: weights are missing" in last


def test_a_rank_that_is_killed_while_capturing_is_named(tmp_path: Path) -> None:
    first, last = run_ranks(2, lock_step, tmp_path / "store", "killed")
    assert last == KILLED
    assert first.startswith("RanksError: capture of {mode: FULL, num_tokens: 4")
    assert "rank 1 ended, or took longer" in first


@pytest.mark.slow
def test_a_rank_that_comes_late_to_an_entry_is_named(tmp_path: Path) -> None:
    for outcome in run_ranks(2, lock_step, tmp_path / "store", "late"):
        assert "rank 1 came when the others had waited 2 s" in outcome
