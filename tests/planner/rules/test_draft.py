"""The DFlash draft family (rules 7.1 and 7.2)."""

from __future__ import annotations

from typing import Any

import pytest

from planner import CUDAGraphMode, Plan, compile_plan, load_deployment


def compiled(**sections: Any) -> Plan:
    speculative = {"method": "dflash", "num_speculative_tokens": 15, **sections.pop("speculative", {})}
    document = {"apiVersion": "graphplan/v1", "kind": "Deployment", "speculative": speculative, **sections}
    return compile_plan(load_deployment(document))


@pytest.mark.parametrize(
    ("target_mode", "target", "draft", "mode"),
    [
        ("FULL_AND_PIECEWISE", "ALWAYS", "ALWAYS", "FULL_DECODE_ONLY"),
        ("FULL", "ALWAYS", "UNIFORM_BATCH", "FULL_DECODE_ONLY"),
        ("FULL_DECODE_ONLY", "UNIFORM_BATCH", "UNIFORM_BATCH", "FULL_DECODE_ONLY"),
        ("FULL_AND_PIECEWISE", "ALWAYS", "UNIFORM_SINGLE_TOKEN_DECODE", "NONE"),
        ("FULL_AND_PIECEWISE", "NEVER", "ALWAYS", "NONE"),
        ("PIECEWISE", "ALWAYS", "ALWAYS", "NONE"),
        ("NONE", "ALWAYS", "ALWAYS", "NONE"),
    ],
)
def test_the_draft_is_full_decode_only_or_nothing(
    target_mode: str, target: str, draft: str, mode: str
) -> None:
    plan = compiled(
        model={"attention_support": target},
        compilation={"cudagraph_mode": target_mode},
        speculative={"attention_support": draft},
    )
    assert plan.resolved["draft"].cudagraph_mode is CUDAGraphMode[mode]
    assert bool(plan.entries("draft")) is (mode != "NONE")
    assert all(entry.mode is CUDAGraphMode.FULL for entry in plan.entries("draft"))


def test_the_prologue_holds_one_verification_of_every_request() -> None:
    plan = compiled(scheduler={"max_num_seqs": 8, "max_num_batched_tokens": 8192})
    rows = {entry.num_reqs: entry.prologue for entry in plan.entries("draft")}
    assert [prologue.num_context_tokens for prologue in rows.values() if prologue] == [
        16 * reqs for reqs in range(8, 0, -1)
    ]


def test_the_prologue_never_exceeds_the_token_budget() -> None:
    plan = compiled(scheduler={"max_num_seqs": 8, "max_num_batched_tokens": 100})
    context = [entry.prologue.num_context_tokens for entry in plan.entries("draft") if entry.prologue]
    assert len(context) == len(plan.entries("draft"))
    assert max(context) <= 100
    assert min(context) == 16


def test_the_draft_knows_no_adapters() -> None:
    plan = compiled(lora={"max_loras": 4})
    assert {entry.num_active_loras for entry in plan.entries("draft")} == {0}
    assert {entry.num_active_loras for entry in plan.entries()} == {0, 5}


def test_a_schedule_gives_the_draft_entries_of_each_tier() -> None:
    plan = compiled(
        speculative={"num_speculative_tokens_per_batch_size": [[1, 8, 15], [9, 64, 3]]},
        scheduler={"max_num_seqs": 64, "max_num_batched_tokens": 8192},
    )
    assert {entry.uniform_token_count for entry in plan.entries("draft")} == {16, 4}


@pytest.mark.parametrize("method", ["eagle3", "mtp", "ngram"])
def test_other_methods_have_no_dflash_family(method: str) -> None:
    plan = compiled(speculative={"method": method, "num_speculative_tokens": 3})
    assert all(entry.prologue is None for family in plan.graphs for entry in plan.entries(family))
