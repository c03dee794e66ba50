"""The pair: as its construction promises, and refused where it cannot hold that."""

from __future__ import annotations

import pytest
import torch

from executor.errors import ModelError
from executor.models.pairs import VOCAB, build_pair
from executor.speculate import SpeculativeDecoder
from tests.executor.serving import dflash_plan, target_runner


def test_the_target_continues_with_the_successor_of_what_stood_a_period_earlier() -> None:
    pair = build_pair(3, seed=2)
    runner = target_runner(dflash_plan(3), pair.target, graphs=False)
    (prompt,) = pair.prompts(1)
    tokens = prompt + list(SpeculativeDecoder(runner).generate([prompt], 40).tokens[0])
    successors = {tokens[i - pair.period]: tokens[i] for i in range(len(prompt), len(tokens))}
    assert all(successors[tokens[i - pair.period]] == tokens[i] for i in range(len(prompt), len(tokens)))
    assert len(set(successors.values())) == len(successors) > 10


def test_the_same_seed_gives_the_same_pair_and_prompts() -> None:
    one, two = build_pair(3, seed=1), build_pair(3, seed=1)
    assert torch.equal(one.draft.fc.weight, two.draft.fc.weight)
    assert one.prompts(3, seed=5) == two.prompts(3, seed=5) != one.prompts(3, seed=6)
    assert all(len(prompt) >= one.period and max(prompt) < VOCAB - 1 for prompt in one.prompts(20))


@pytest.mark.parametrize(
    ("mean", "plausible"), [(0.0, False), (2.0, False), (2.2, True), (5.5, True), (6.9, False)]
)
def test_plausible_acceptance_is_neither_useless_nor_perfect(mean: float, plausible: bool) -> None:
    assert build_pair(7).accepts_plausibly(mean) is plausible


@pytest.mark.parametrize("num_tokens", [1, VOCAB // 2])
def test_drafts_that_a_pair_cannot_have_are_refused(num_tokens: int) -> None:
    with pytest.raises(ModelError, match="a pair has 2 to"):
        build_pair(num_tokens)
