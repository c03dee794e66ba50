"""Whether graphs fit on a device: weights, KV cache, and the largest setting that would."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from planner import Plan, compile_plan
from planner.documents.deployment import DeviceSection
from planner.documents.estimates import Quantity
from planner.documents.plan import Finding
from planner.estimate import Estimate, estimate
from planner.estimate.findings import memory_found
from planner.estimate.fit import room_of
from planner.estimate.weights import footprint
from planner.verify import verify
from tests.planner.estimate.test_estimate import QWEN3_06B, QWEN3_8B, compiled

GIB = 2**30

QWEN3_30B_A3B = {
    **QWEN3_8B,
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}


def found(plan: Plan) -> list[Finding]:
    return [finding for finding in plan.findings if finding.code == "memory-does-not-fit"]


def with_memory(plan: Plan, gib: float) -> Plan:
    device = DeviceSection(compute_capability="9.0", memory_gib=gib)
    return compile_plan(evolve(plan.deployment, device=device))


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (QWEN3_8B, 8.19e9),
        ({**QWEN3_06B, "tie_word_embeddings": True}, 0.596e9),
        (QWEN3_30B_A3B, 30.5e9),
    ],
    ids=["dense", "tied", "experts"],
)
def test_weights_are_those_of_the_published_models(config: dict[str, Any], parameters: float) -> None:
    known = footprint(compiled(config).deployment)
    assert known is not None
    assert known.weight_bytes / 2 == pytest.approx(parameters, rel=0.01)


def test_ranks_share_weights_and_cache() -> None:
    whole, half = (
        footprint(compiled(QWEN3_8B, parallel={"tensor_parallel_size": ranks}).deployment) for ranks in (1, 2)
    )
    assert whole is not None
    assert half is not None
    assert half.weight_bytes == whole.weight_bytes / 2
    assert whole.token_bytes == 36 * 2 * 8 * 128 * 2
    assert half.token_bytes == whole.token_bytes / 2


def test_a_quantised_cache_and_a_quantised_model_take_less() -> None:
    plain = footprint(compiled(QWEN3_8B).deployment)
    small = footprint(
        compiled(
            {**QWEN3_8B, "quantization_config": {"quant_method": "fp8"}}, model={"kv_cache_dtype": "fp8"}
        ).deployment
    )
    assert plain is not None
    assert small is not None
    assert small.token_bytes == plain.token_bytes / 2
    assert plain.weight_bytes / 2 < small.weight_bytes < 0.65 * plain.weight_bytes


def test_an_unknown_quantisation_tells_no_size() -> None:
    config = {**QWEN3_8B, "quantization_config": {"quant_method": "somebodys-own"}}
    plan = compiled(config, device={"name": "H200"})
    assert footprint(plan.deployment) is None
    assert plan.estimates is not None
    assert plan.estimates.device is not None
    assert plan.estimates.device.weights_gib is None
    assert plan.estimates.device.share > 0


def test_the_share_of_the_device_and_what_is_left_for_the_cache_are_told() -> None:
    plan = compiled(QWEN3_8B, device={"name": "H200"})
    assert plan.estimates is not None
    device = plan.estimates.device
    assert device is not None
    assert device.share == pytest.approx(plan.estimates.memory_gib.expected / 139, abs=1e-4)
    assert device.weights_gib == pytest.approx(15.26, abs=0.01)
    assert device.usable_gib == pytest.approx(0.92 * 139, abs=0.01)
    assert device.kv_cache_gib is not None
    assert device.weights_gib is not None
    assert device.kv_cache_gib < device.usable_gib - device.weights_gib
    assert device.kv_cache_tokens == pytest.approx(device.kv_cache_gib * GIB / 147456, rel=0.001)
    assert not found(plan)


def test_without_memory_there_is_no_share() -> None:
    assert estimate(compiled(QWEN3_8B)).device is None


def test_a_given_number_of_blocks_is_what_the_cache_takes() -> None:
    plan = compiled(QWEN3_8B, device={"name": "H200"}, model={"num_kv_blocks": 1000, "block_size": 16})
    assert plan.estimates is not None
    assert plan.estimates.device is not None
    assert plan.estimates.device.kv_cache_tokens == 16000


def test_layers_with_a_sliding_window_leave_room_for_more_tokens() -> None:
    window = {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
    }
    known = footprint(compiled({**QWEN3_8B, **window}).deployment)
    assert known is not None
    # 6 of 36 layers keep all tokens of a request of 40960, the others 1024 of them.
    kept = (6 * 40960 + 30 * 1024) / 36
    assert known.num_tokens(known.token_bytes * kept) == pytest.approx(40960, abs=1)
    everywhere = footprint(compiled(QWEN3_8B).deployment)
    assert everywhere is not None
    assert everywhere.num_tokens(everywhere.token_bytes * 1000) == 1000


def test_graphs_that_do_not_fit_are_a_finding_with_the_largest_size_that_does() -> None:
    plan = compiled(QWEN3_8B, 256, device={"name": "H200"}, model={"max_model_len": 4096})
    room = room_of(plan)
    assert room is not None
    everything = room.weights + room.step + room.kv
    needed = estimate(plan).memory_gib.expected * GIB
    tight = with_memory(plan, (everything + 0.7 * needed) / 0.92 / GIB)
    (finding,) = found(tight)
    assert finding.fix is not None
    key, _, size = finding.fix.partition(": ")
    assert key == "max_cudagraph_capture_size"
    sizes = [entry.num_tokens for entry in tight.entries()]
    assert min(sizes) <= int(size) < max(sizes)

    def capped(maximum: int) -> Plan:
        compilation = evolve(tight.deployment.compilation, max_cudagraph_capture_size=maximum)
        return compile_plan(evolve(tight.deployment, compilation=compilation))

    assert not found(capped(int(size)))
    assert found(capped(min(other for other in sizes if other > int(size))))


def test_a_model_that_leaves_no_room_for_its_longest_request_is_told_the_length_that_fits() -> None:
    plan = compiled(QWEN3_8B, 8, device={"name": "H200"}, model={"max_model_len": 40960})
    room = room_of(plan)
    assert room is not None
    tight = with_memory(plan, (room.weights + room.step + 0.6 * room.kv) / 0.92 / GIB)
    (finding,) = found(tight)
    assert finding.fix is not None
    assert finding.fix.startswith("model.max_model_len: ")
    length = int(finding.fix.split(": ")[1].split(",")[0])
    assert 0 < length < 0.6 * 40960


def test_weights_that_exceed_the_device_are_told_what_would_hold_them() -> None:
    (finding,) = found(with_memory(compiled(QWEN3_8B, 8), 12))
    assert "weights 15.26 GiB" in finding.message
    assert finding.fix is not None
    assert finding.fix.startswith("a device of more than ")


def test_a_measured_estimate_decides_where_there_is_one() -> None:
    plan = compiled(QWEN3_8B, device={"name": "H200"})
    huge = Quantity(expected=120.0, low=110.0, high=130.0, source="measured on NVIDIA H200 (torch 2.11.0)")
    assert not list(memory_found(plan))
    assert list(memory_found(plan, Estimate(num_graphs=1, memory_gib=huge, seconds=huge)))


def test_check_finds_it_too() -> None:
    plan = with_memory(compiled(QWEN3_8B, 8), 12)
    assert "memory-does-not-fit" in {finding.code for finding in verify(plan)}


def test_a_drafter_shares_the_embeddings_of_its_target() -> None:
    alone = footprint(compiled(QWEN3_8B).deployment)
    with_draft = footprint(
        compiled(
            QWEN3_8B,
            speculative={
                "method": "dflash",
                "num_speculative_tokens": 7,
                "attention_support": "ALWAYS",
                "config": {**QWEN3_8B, "architectures": ["DFlashDraftModel"], "num_hidden_layers": 1},
            },
        ).deployment
    )
    assert alone is not None
    assert with_draft is not None
    embeddings = 2 * 151936 * 4096 * 2
    assert with_draft.weight_bytes - alone.weight_bytes == (alone.weight_bytes - embeddings) / 36
    assert with_draft.token_bytes == alone.token_bytes * 37 / 36
