"""Decoding under data and tensor parallelism: the tokens of one process, on every rank."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from executor.distributed.layout import Layout
from executor.errors import ModelError
from executor.models.pairs import build_pair
from executor.models.tensor_parallel import kv_heads_are_shared
from executor.speculate import SpeculativeDecoder
from tests.executor.distributed.launch import run_cases
from tests.executor.distributed.model_cases import (
    NEW_TOKENS,
    PROPOSED,
    decode,
    prompts_of,
    tensor_parallel,
    told,
    wide_decoder,
)
from tests.executor.serving import dflash_plan, draft_runner, target_runner


def one_process(data_rank: int) -> dict[str, object]:
    """What one rank with the whole model decodes, without graphs."""
    pair = build_pair(PROPOSED, seed=1)
    plan = dflash_plan(PROPOSED)
    runner = target_runner(plan, pair.target, graphs=False, draft=pair.draft, max_num_tokens=128)
    drafting = draft_runner(plan, pair.draft, runner, PROPOSED)
    return told(SpeculativeDecoder(runner, drafting).generate(prompts_of(pair, data_rank), NEW_TOKENS))


LAYOUTS = {2: [(Layout(data=2), True), (Layout(data=2), False)], 4: [(Layout(data=2, tensor=2), True)]}
"""Ranks, and what they decode as: a layout, with graphs or without."""

Outcomes = dict[int, list[list[Any]]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Of each number of ranks, first those of the model in parts, then those of decoding."""
    stores = tmp_path_factory.mktemp("ranks")
    return {
        size: run_cases(
            size, stores / str(size), [(tensor_parallel,), *((decode, *each) for each in layouts)]
        )
        for size, layouts in LAYOUTS.items()
    }


@pytest.mark.parametrize("size", LAYOUTS)
def test_each_entry_of_a_model_in_parts_gives_what_the_whole_model_does(
    size: int, outcomes: Outcomes
) -> None:
    for outcome in outcomes[size][0]:
        assert outcome["worst"] < 1e-4
        assert outcome["modes"] == ["PIECEWISE", "FULL", "FULL"]
        assert outcome["heads"] == 4 // size
        assert outcome["verified"] == [True] * 3


@pytest.mark.parametrize(
    ("size", "number"), [(size, at) for size in LAYOUTS for at in range(len(LAYOUTS[size]))]
)
def test_tokens_and_acceptance_are_those_of_one_process(size: int, number: int, outcomes: Outcomes) -> None:
    layout, graphs = LAYOUTS[size][number]
    found = outcomes[size][1 + number]
    for rank, outcome in enumerate(found):
        one = one_process(layout.place(rank, "data"))
        assert outcome["tokens"] == one["tokens"]
        assert outcome["accepted"] == one["accepted"]
    # Every rank runs every step, in the same mode.
    assert all(outcome["modes"] == found[0]["modes"] for outcome in found)
    assert ("FULL" in found[0]["modes"]) == graphs


@pytest.mark.parametrize(
    ("sizes", "name"),
    [
        ({"num_attention_heads": 6, "num_key_value_heads": 6}, "num_attention_heads"),
        ({"intermediate_size": 54}, "intermediate_size"),
        ({"num_key_value_heads": 2}, "num_key_value_heads"),
    ],
)
def test_a_model_that_the_ranks_cannot_share_evenly_is_refused(sizes: dict[str, int], name: str) -> None:
    with pytest.raises(ModelError, match=f"{name} is .* 4 tensor-parallel ranks"):
        kv_heads_are_shared(evolve(wide_decoder().config, **sizes), 4)


def test_a_single_kv_head_is_on_every_rank() -> None:
    assert not kv_heads_are_shared(evolve(wide_decoder().config, num_key_value_heads=1), 4)
