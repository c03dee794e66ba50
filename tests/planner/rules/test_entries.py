"""How many graphs a plan takes: documents of a few bytes must not ask for millions."""

from __future__ import annotations

from typing import Any

import pytest

from planner import CUDAGraphMode, PlanError, compile_plan, load_deployment
from planner.rules.entries import MAX_DECODE_SHAPES, MAX_ENTRIES, EntryRequest, family_entries
from planner.rules.entries_v1 import v1_family_entries

DEPLOYMENT = {"apiVersion": "graphplan/v1", "kind": "Deployment", "model": {"attention_support": "ALWAYS"}}
LARGEST = 1 << 20


def request(sizes: int, *, lora_cases: tuple[int, ...] = (0,), query_lens: int = 1) -> EntryRequest:
    return EntryRequest(
        mode=CUDAGraphMode.PIECEWISE,
        sizes=tuple(range(1, sizes + 1)),
        max_num_seqs=8,
        decode_query_len=1,
        query_lens=tuple(range(1, query_lens + 1)),
        lora_cases=lora_cases,
    )


@pytest.mark.parametrize("entries", [family_entries, v1_family_entries])
def test_the_largest_plan_is_made_and_one_graph_more_is_refused(entries: Any) -> None:
    assert len(entries(request(MAX_ENTRIES // 2, lora_cases=(0, 1)))) == MAX_ENTRIES
    with pytest.raises(
        PlanError, match=r"50001 capture sizes, 1 query length and 2 LoRA cases ask for more than"
    ):
        entries(request(MAX_ENTRIES // 2 + 1, lora_cases=(0, 1)))


def test_shapes_are_not_tried_by_the_million_even_if_few_are_new() -> None:
    lengths = MAX_DECODE_SHAPES // 1024
    assert family_entries(request(1024, query_lens=lengths))
    with pytest.raises(PlanError, match="1025 capture sizes, 1024 query lengths"):
        family_entries(request(1025, query_lens=lengths))


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_a_deployment_that_asks_for_a_million_graphs_is_refused_with_what_to_change(runner: str) -> None:
    sections = {
        "engine": {"runner": runner},
        "scheduler": {"max_num_batched_tokens": LARGEST},
        "lora": {"max_loras": 1 << 16, "specialize_active_lora": True},
        "compilation": {"max_cudagraph_capture_size": LARGEST},
    }
    with pytest.raises(PlanError, match="the most that a plan takes; lower the maximum") as refusal:
        compile_plan(load_deployment({**DEPLOYMENT, **sections}))
    assert "compilation.max_cudagraph_capture_size" in refusal.value.fields


def test_the_graphs_of_all_families_count_together() -> None:
    lengths = 300
    sections = {
        "engine": {"runner": "v2"},
        "scheduler": {"max_num_seqs": 1024, "max_num_batched_tokens": LARGEST},
        "speculative": {
            "method": "eagle",
            "num_speculative_tokens": lengths,
            "num_speculative_tokens_per_batch_size": [[size, size, size] for size in range(1, lengths + 1)],
        },
    }
    with pytest.raises(PlanError, match="capture sizes in 301 families ask for more than"):
        compile_plan(load_deployment({**DEPLOYMENT, **sections}))
