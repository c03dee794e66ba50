"""Trial batches: each is one that its entry serves, and those of one kind begin alike."""

from __future__ import annotations

import pytest
import torch

from executor.inputs.batch import ScheduledBatch
from executor.runner import TargetRunner
from planner import load_plan
from planner.descriptors import PlanEntry
from planner.modes import CUDAGraphMode
from tests.executor.serving import target_runner
from tests.executor.test_runner import model_of

SMALL = load_plan("plans/small-decode.yaml")
ENTRIES = SMALL.entries("target")


@pytest.fixture(scope="module")
def runner() -> TargetRunner:
    return target_runner(SMALL, model_of())


def of_mode(mode: CUDAGraphMode) -> list[PlanEntry]:
    return [entry for entry in ENTRIES if entry.mode is mode]


def rows(batch: ScheduledBatch) -> list[tuple[int, int, int]]:
    """Request, position and id of each token."""
    return [
        (index, batch.num_computed[index] + offset, token)
        for index, tokens in enumerate(batch.token_ids)
        for offset, token in enumerate(tokens)
    ]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.mode.name} {entry.num_tokens}")
def test_a_batch_runs_by_the_entry_that_it_is_made_for(runner: TargetRunner, entry: PlanEntry) -> None:
    desc = entry.execution_descriptor
    batch = runner.trials.batch(desc)
    assert 0 < batch.num_tokens <= entry.num_tokens
    assert batch == runner.trials.batch(desc)
    assert batch != runner.trials.batch(desc, seed=1)
    assert max(batch.seq_lens) <= runner.max_model_len
    padded = runner.padded(batch, desc)
    assert (padded.mode, padded.num_tokens) == (entry.mode, entry.num_tokens)


@pytest.mark.parametrize("mode", [CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE])
def test_batches_of_one_name_begin_alike_token_by_token(runner: TargetRunner, mode: CUDAGraphMode) -> None:
    descs = [entry.execution_descriptor for entry in of_mode(mode)]
    assert len({runner.trials.front_of(desc) for desc in descs}) == 1
    large, *smaller = (rows(runner.trials.batch(desc)) for desc in descs)
    assert smaller
    for each in smaller:
        assert each == large[: len(each)]


def test_the_places_of_a_batch_hold_nothing_of_use_until_they_are_stored(runner: TargetRunner) -> None:
    runner.kv_cache.randomize()
    desc = ENTRIES[0].execution_descriptor
    runner.trials.fill(desc)
    layer = next(iter(runner.kv_cache.layers.values()))
    assert int(layer.key.isnan().flatten(-2).all(-1).sum()) == runner.trials.batch(desc).num_tokens
    runner.trials.fill(desc)
    with torch.no_grad():
        hidden, _ = runner.trials.eager(desc)
    assert not hidden.isnan().any()
