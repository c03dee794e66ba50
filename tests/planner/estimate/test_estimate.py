"""Estimates of a plan's graphs: their shape, their ranges, and what measurements do to them."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings

from planner import Plan, compile_plan, dump_plan, load_deployment, load_plan
from planner.documents.digest import is_edited
from planner.documents.plan import DRAFT, TARGET
from planner.estimate import Estimate, Measurement, Quantity, estimate
from planner.testing import plans

QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
QWEN3_06B = {
    **QWEN3_8B,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
}


def compiled(config: dict[str, Any] | None = None, max_num_seqs: int = 64, **sections: Any) -> Plan:
    document = {"apiVersion": "graphplan/v1", "kind": "Deployment", **sections}
    document["model"] = {**({} if config is None else {"config": config}), **sections.get("model", {})}
    document["scheduler"] = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": 2048}
    return compile_plan(load_deployment(document))


def estimated(*args: Any, **sections: Any) -> Estimate:
    return estimate(compiled(*args, **sections))


def measured(plan: Plan, family: str = TARGET, **changed: Any) -> Measurement:
    figures: dict[str, Any] = {
        "family": family,
        "entries": plan.entries(family),
        "seconds": 3.5,
        "num_bytes": 3 << 28,
        "pool_bytes": 1 << 28,
        "gpu": "NVIDIA H200",
        "torch": "2.11.0",
        "is_of_plan": True,
        "deployment": plan.deployment,
    }
    return Measurement(**{**figures, **changed})


def holds(quantity: Quantity) -> bool:
    return 0 < quantity.low <= quantity.expected <= quantity.high


def test_a_compiled_plan_has_its_estimates_and_its_digest_leaves_them_out() -> None:
    plan = compiled(QWEN3_8B)
    assert plan.estimates == estimate(plan)
    assert load_plan(dump_plan(plan)) == plan
    other = evolve(plan, estimates=None)
    assert not is_edited(plan)
    assert not is_edited(other)


@settings(max_examples=60)
@given(plans())
def test_no_estimate_is_0_where_something_is_captured(plan: Plan) -> None:
    found = estimate(plan)
    if any(plan.graphs.values()):
        assert holds(found.memory_gib)
        assert holds(found.seconds)
        assert found.num_graphs >= sum(len(entries) for entries in plan.graphs.values())
    else:
        assert (found.num_graphs, found.memory_gib.expected, found.seconds.expected) == (0, 0, 0)


def test_the_parts_are_what_is_expected() -> None:
    found = estimated(QWEN3_8B)
    for quantity, digits in ((found.memory_gib, 3), (found.seconds, 2)):
        assert sum(quantity.parts.values()) == pytest.approx(quantity.expected, abs=5 * 10**-digits)
    assert set(found.memory_gib.parts) == {"static", "pool", "graphs"}
    assert set(found.seconds.parts) == {"first", "target FULL", "target PIECEWISE"}


def test_the_pool_is_that_of_the_largest_entry_however_many_there_are() -> None:
    few, many = (
        estimated(QWEN3_8B, 512, compilation={"cudagraph_capture_sizes": sizes})
        for sizes in ([512], [*range(8, 513, 8)])
    )
    assert many.memory_gib.parts["pool"] == few.memory_gib.parts["pool"]
    assert many.memory_gib.parts["graphs"] > few.memory_gib.parts["graphs"]
    # Linear in activations, 64 entries would take about 32 times the pool of one.
    activations = many.memory_gib.parts["pool"] * 32
    assert many.memory_gib.expected - few.memory_gib.expected != pytest.approx(activations, rel=0.5)


def test_more_layers_take_longer_and_hold_more() -> None:
    small, large = estimated(QWEN3_06B), estimated(QWEN3_8B)
    assert small.seconds.expected < large.seconds.expected
    assert small.memory_gib.expected < large.memory_gib.expected
    assert small.num_graphs < large.num_graphs


def test_a_piecewise_entry_counts_all_its_pieces() -> None:
    plan = compiled(QWEN3_8B, compilation={"cudagraph_mode": "PIECEWISE"})
    assert estimate(plan).num_graphs == 37 * len(plan.entries())
    halved = compiled(
        QWEN3_8B, compilation={"cudagraph_mode": "PIECEWISE"}, parallel={"pipeline_parallel_size": 2}
    )
    assert estimate(halved).num_graphs == 19 * len(halved.entries())


def test_without_a_model_the_range_is_wider() -> None:
    known, unknown = estimated(QWEN3_8B).seconds, estimated().seconds
    assert unknown.high / unknown.expected > 1.9 * known.high / known.expected
    assert unknown.source == "formula"


def test_a_capture_of_the_same_graphs_replaces_the_formulas() -> None:
    plan = compiled(QWEN3_8B)
    found = estimate(plan, measurements=[measured(plan)])
    static = estimate(plan).memory_gib.parts["static"]
    assert found.memory_gib.source == found.seconds.source == "measured on NVIDIA H200 (torch 2.11.0)"
    assert found.seconds.expected == pytest.approx(3.5, abs=0.01)
    assert found.memory_gib.expected == pytest.approx(0.75 + static, abs=0.001)
    assert found.memory_gib.parts["pool"] == 0.25
    assert found.seconds.is_measured
    narrow, wide = found.seconds, estimate(plan).seconds
    assert narrow.high / narrow.low < wide.high / wide.low


def test_buffers_that_were_measured_count() -> None:
    plan = compiled(QWEN3_8B)
    found = estimate(plan, measurements=[measured(plan, static_bytes=1 << 30)])
    assert found.memory_gib.parts["static"] == 1


def test_of_two_captures_the_one_on_the_deployments_device_counts_then_the_later_one() -> None:
    plan = compiled(QWEN3_8B, device={"name": "H200"})
    here, there = measured(plan, created=1.0), measured(plan, gpu="NVIDIA H100", seconds=9.0, created=5.0)
    later = measured(plan, seconds=3.0, created=2.0)
    assert estimate(plan, measurements=[here, there]).seconds.expected == pytest.approx(3.5, abs=0.01)
    assert estimate(plan, measurements=[here, there, later]).seconds.expected == pytest.approx(3, abs=0.01)


def test_a_capture_of_other_graphs_is_scaled() -> None:
    plan, other = compiled(QWEN3_8B, 64), compiled(QWEN3_8B, 256)
    by_formula = estimate(other)
    factor = 2.0
    record = measured(other, seconds=factor * by_formula.seconds.expected, is_of_plan=False)
    found = estimate(plan, measurements=[record])
    assert found.seconds.expected == pytest.approx(factor * estimate(plan).seconds.expected, rel=0.01)
    assert found.seconds.source.startswith("measured on NVIDIA H200 (torch 2.11.0), scaled from ")
    assert found.seconds.low < found.seconds.expected < found.seconds.high


def test_the_nearest_capture_is_scaled() -> None:
    plan = compiled(QWEN3_8B, 64)
    near, far = compiled(QWEN3_8B, 72), compiled(QWEN3_06B, 512)
    records = [
        measured(far, seconds=500.0, is_of_plan=False),
        measured(near, seconds=estimate(near).seconds.expected, is_of_plan=False),
    ]
    found = estimate(plan, measurements=records)
    assert found.seconds.expected == pytest.approx(estimate(plan).seconds.expected, rel=0.01)
    assert f"scaled from {len(near.entries())} entries" in found.seconds.source


def test_a_capture_on_another_device_is_taken_with_care() -> None:
    plan, other = compiled(QWEN3_8B, 64, device={"name": "H200"}), compiled(QWEN3_8B, 256)
    here, there = (
        estimate(plan, measurements=[measured(other, gpu=gpu, is_of_plan=False)]).seconds
        for gpu in ("NVIDIA H200", "NVIDIA A100-SXM4-80GB")
    )
    assert there.high / there.low > here.high / here.low


def test_a_family_that_was_not_captured_goes_by_formula_beside_one_that_was() -> None:
    plan = compiled(
        QWEN3_8B, speculative={"method": "dflash", "num_speculative_tokens": 7, "attention_support": "ALWAYS"}
    )
    found = estimate(plan, measurements=[measured(plan)])
    assert found.seconds.source == "measured on NVIDIA H200 (torch 2.11.0) for target; formula for draft"
    assert f"{DRAFT} FULL" in found.seconds.parts
    alone = estimate(plan)
    assert found.memory_gib.parts["pool"] < 0.25 + alone.memory_gib.parts["pool"]


def test_a_stand_in_needs_room_for_the_context_that_its_attention_copies() -> None:
    plan = compiled(QWEN3_8B, 512, compilation={"cudagraph_mode": "FULL_DECODE_ONLY"})
    server, stand_in = estimate(plan), estimate(plan, gathered_tokens=256)
    copied = 2 * 512 * 256 * 8 * 128 * 2 / 2**30
    assert stand_in.memory_gib.parts["pool"] > server.memory_gib.parts["pool"] + copied
    pieces = compiled(QWEN3_8B, compilation={"cudagraph_mode": "PIECEWISE"})
    same = estimate(pieces, gathered_tokens=256).memory_gib.parts["pool"]
    assert same == estimate(pieces).memory_gib.parts["pool"]


@pytest.mark.parametrize(
    ("config", "entries", "reported_gib", "reported_seconds"),
    [(QWEN3_06B, 67, 0.59, 2.0), (QWEN3_8B, 67, 67 * 26 / 1024, 67 * 0.057)],
    ids=["vllm#21146", "vllm PR#22897"],
)
def test_what_engines_report_is_within_the_range(
    config: dict[str, Any], entries: int, reported_gib: float, reported_seconds: float
) -> None:
    sizes = [1, 2, 4, *range(8, 513, 8)]
    mode = "PIECEWISE" if config is QWEN3_06B else "FULL_DECODE_ONLY"
    plan = compiled(config, 512, compilation={"cudagraph_capture_sizes": sizes, "cudagraph_mode": mode})
    assert len(plan.entries()) == entries
    found = estimate(plan)
    assert found.memory_gib.low <= reported_gib <= found.memory_gib.high
    assert found.seconds.low <= reported_seconds <= found.seconds.high
