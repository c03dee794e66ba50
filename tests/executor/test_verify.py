"""Proof of captured graphs: what is right passes at the least cost, and what is wrong in any way shows."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from attrs import define, field

from executor.dispatching import graph_key
from executor.inputs.kv_cache import LayerKVCache
from executor.manager import CudaGraphManager
from executor.runner import TargetRunner
from executor.verify import Verdict, relative_error, verify_entries
from planner import load_plan
from planner.descriptors import BatchExecutionDescriptor
from planner.modes import CUDAGraphMode
from tests.executor.serving import capture, target_runner
from tests.executor.test_runner import model_of
from tests.executor.toys import sizes_plan

SMALL = load_plan("plans/small-decode.yaml")


def _runner() -> TargetRunner:
    runner = target_runner(SMALL, model_of())
    runner.kv_cache.randomize()
    return runner


@define
class Proof:
    """A captured runner, and the batches that were run eagerly to prove it."""

    runner: TargetRunner = field(factory=_runner)
    eager: list[int] = field(factory=list)
    eager_pieces: list[int] = field(factory=list)

    def verdicts(self, **options: Any) -> tuple[Verdict, ...]:
        runner = self.runner
        assert runner.manager is not None

        def create(desc: BatchExecutionDescriptor, warmup: bool) -> Any:
            if warmup:
                self.eager.append(desc.num_tokens)
            return runner.create_forward_fn(desc, warmup)

        def pieces(desc: BatchExecutionDescriptor) -> Any:
            self.eager_pieces.append(desc.num_tokens)
            return runner.trials.eager(desc)

        return verify_entries(
            runner.manager, create, runner.trials.fill, runner.trials.replay_context, pieces, **options
        )


def sizes(verdicts: tuple[Verdict, ...], *, ok: bool) -> list[int]:
    return [verdict.entry.num_tokens for verdict in verdicts if verdict.ok is ok]


def test_one_eager_forward_stands_for_all_batches_that_begin_alike() -> None:
    proof = Proof()
    verdicts = proof.verdicts(front=proof.runner.trials.front_of, poison=True)
    assert sizes(verdicts, ok=True) == [64, 16, 4, 2, 1]
    assert (proof.eager, proof.eager_pieces) == ([4], [64])


def test_without_it_each_entry_is_compared_with_a_forward_of_its_own() -> None:
    proof = Proof()
    assert sizes(proof.verdicts(), ok=True) == [64, 16, 4, 2, 1]
    assert (proof.eager, proof.eager_pieces) == ([4, 2, 1], [64, 16])


@pytest.mark.parametrize("shared", [False, True])
def test_a_replay_that_computes_something_else_is_found(shared: bool) -> None:
    proof = Proof()
    manager = proof.runner.manager
    assert manager is not None
    run, entry = manager.run_fullgraph, next(each for each in SMALL.entries("target") if each.num_tokens == 2)
    wrong = graph_key(SMALL, "target", entry)

    def spoiled(key: Any) -> Any:
        hidden, aux = run(key)
        return (hidden + 0.5, aux) if key == wrong else (hidden, aux)

    with mock.patch.object(manager, "run_fullgraph", spoiled):
        verdicts = proof.verdicts(front=proof.runner.trials.front_of if shared else None)
    assert sizes(verdicts, ok=False) == [2]
    assert proof.eager == ([4, 2] if shared else [4, 2, 1])


def test_graphs_that_store_no_keys_and_values_are_found() -> None:
    with mock.patch.object(LayerKVCache, "store", return_value=None):
        proof = Proof()
    verdicts = proof.verdicts(front=proof.runner.trials.front_of)
    assert sizes(verdicts, ok=False) == [4, 2, 1]  # pieces store between graphs, where nothing is missing
    assert all(verdict.error == float("inf") for verdict in verdicts if not verdict.ok)


def test_pieces_and_whole_graphs_are_not_compared_with_each_other() -> None:
    proof = Proof()
    verdicts = proof.verdicts(front=lambda _: "alike")
    assert sizes(verdicts, ok=True) == [64, 16, 4, 2, 1]
    assert (proof.eager, proof.eager_pieces) == ([4], [64])


def test_a_model_whose_rows_depend_on_each_other_is_compared_batch_by_batch() -> None:
    plan, inputs, eager = sizes_plan(4, 2, 1), torch.randn(4, 3), []
    manager = CudaGraphManager(plan, device="cpu")

    def create(desc: BatchExecutionDescriptor, warmup: bool) -> Any:
        if warmup:
            eager.append(desc.num_tokens)
        return lambda mode: inputs[: desc.num_tokens] - inputs[: desc.num_tokens].mean(0)  # noqa: ARG005

    capture(manager.capture, create)
    eager.clear()
    verdicts = verify_entries(manager, create, front=lambda desc: desc.uniform_token_count)
    assert sizes(verdicts, ok=True) == [4, 2, 1]
    assert eager == [4, 2, 1]


@pytest.mark.parametrize("shared", [False, True])
def test_a_replay_with_fewer_rows_than_eager_is_found(shared: bool) -> None:
    proof = Proof()
    manager = proof.runner.manager
    assert manager is not None
    run = manager.run_fullgraph

    def shorter(key: Any) -> Any:
        hidden, aux = run(key)
        return (hidden[:1], aux)

    with mock.patch.object(manager, "run_fullgraph", shorter):
        verdicts = proof.verdicts(front=proof.runner.trials.front_of if shared else None)
    assert sizes(verdicts, ok=True) == [1]


def test_verdicts_come_in_the_order_of_capture_and_only_on_what_was_asked_for() -> None:
    proof = Proof()
    asked = [entry for entry in SMALL.entries("target") if entry.mode is CUDAGraphMode.FULL][::-2]
    verdicts = proof.verdicts(entries=asked, front=proof.runner.trials.front_of)
    assert [verdict.entry.num_tokens for verdict in verdicts] == [4, 1]


@pytest.mark.parametrize(
    ("one", "other", "error"),
    [
        (torch.zeros(3), torch.zeros(3), 0.0),
        (torch.ones(4), torch.full((4,), 1.5), 0.5),
        (torch.zeros(1), torch.full((1,), 0.25), 0.25),
        (torch.ones(2), torch.ones(3), float("inf")),
        (torch.tensor([1.0, float("nan")]), torch.ones(2), float("inf")),
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), 0.0),
        (torch.full((2,), float("nan")), torch.full((2,), float("nan")), float("inf")),
        (torch.ones(0), torch.ones(0), 0.0),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), 1.0),
        (torch.tensor([1, 2]), torch.tensor([1, 2]), 0.0),
    ],
)
def test_errors_are_relative_to_what_was_expected(
    one: torch.Tensor, other: torch.Tensor, error: float
) -> None:
    assert relative_error(one, other) == error
