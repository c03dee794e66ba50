"""Backends that a deployment names, one a KV group, one for all layers or one for each kind."""

from __future__ import annotations

from typing import Any

import pytest

from planner import PlanError, compile_plan, load_deployment
from planner.rules.attention import MAX_KV_GROUPS


def deployment(groups: int) -> dict[str, object]:
    backends = ["FLASH_ATTN"] * groups
    return {"apiVersion": "graphplan/v1", "kind": "Deployment", "model": {"attention_backends": backends}}


def test_a_model_has_no_more_kv_groups_than_every_family_can_list() -> None:
    plan = compile_plan(load_deployment(deployment(MAX_KV_GROUPS)))
    assert len(plan.resolved["target"].attention_groups) == MAX_KV_GROUPS
    with pytest.raises(PlanError, match="257 backends are named"):
        compile_plan(load_deployment(deployment(MAX_KV_GROUPS + 1)))


GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_hidden_layers": 4,
    "sliding_window": 128,
}


def resolved(attention: dict[str, Any], capability: str = "9.0", **model: Any) -> tuple[str, list[str], str]:
    document = {
        "apiVersion": "graphplan/v1",
        "kind": "Deployment",
        "model": model,
        "attention": attention,
        "device": {"compute_capability": capability, "memory_gib": 139},
        "compilation": {"cudagraph_mode": "FULL"},
    }
    target = compile_plan(load_deployment(document)).resolved["target"]
    groups = [f"{group.kind}:{group.backend}" for group in target.attention_groups]
    return str(target.attention_support), groups, str(target.cudagraph_mode)


@pytest.mark.parametrize(
    ("capability", "groups", "support", "mode"),
    [
        ("9.0", ["sliding_window:TRITON_ATTN", "full_attention:FLASH_ATTN"], "ALWAYS", "FULL"),
        (
            "10.0",
            ["sliding_window:TRITON_ATTN", "full_attention:FLASHINFER"],
            "UNIFORM_BATCH",
            "FULL_AND_PIECEWISE",
        ),
        (
            "12.0",
            ["sliding_window:TRITON_ATTN", "full_attention:FLASHINFER"],
            "UNIFORM_BATCH",
            "FULL_AND_PIECEWISE",
        ),
    ],
)
def test_a_backend_for_one_kind_leaves_the_others_to_the_engine(
    capability: str, groups: list[str], support: str, mode: str
) -> None:
    asked = {"backend_per_kind": {"sliding_window": "TRITON_ATTN"}}
    assert resolved(asked, capability, config=GPT_OSS) == (support, groups, mode)


@pytest.mark.parametrize(
    ("version", "capability", "support"),
    [
        (2, "9.0", "UNIFORM_BATCH"),
        (3, "9.0", "ALWAYS"),
        (4, "9.0", "ALWAYS"),
        (2, "10.0", "UNIFORM_BATCH"),
        (3, "10.0", "ALWAYS"),
        (4, "12.0", "UNIFORM_BATCH"),
    ],
)
def test_a_flash_attention_version_decides_what_is_replayed(
    version: int, capability: str, support: str
) -> None:
    asked = {"backend": "FLASH_ATTN", "flash_attn_version": version}
    assert resolved(asked, capability)[0] == support


def test_trtllm_kernels_switched_off_leave_flashinfer_one_token_a_request() -> None:
    asked = {"backend": "FLASHINFER", "use_trtllm_attention": False}
    assert resolved(asked)[0] == "UNIFORM_SINGLE_TOKEN_DECODE"
    assert resolved({"backend": "FLASHINFER"})[0] == "UNIFORM_BATCH"


def test_without_a_model_every_named_kind_is_taken_to_have_layers() -> None:
    asked = {"backend": "TRITON_ATTN", "backend_per_kind": {"sliding_window": "FLASHINFER"}}
    support, groups, _ = resolved(asked)
    assert (support, groups) == ("UNIFORM_BATCH", ["named:TRITON_ATTN", "sliding_window:FLASHINFER"])


@pytest.mark.parametrize(
    ("attention", "model", "field"),
    [
        ({"backend": "FLASHMLA"}, {"config": GPT_OSS}, "attention.backend"),
        ({"backend": "NO_SUCH"}, {"config": GPT_OSS}, "attention.backend"),
        ({"backend": "NO_SUCH"}, {}, "attention.backend"),
        (
            {"backend_per_kind": {"full_attention": "FLASHMLA"}},
            {"config": GPT_OSS},
            "attention.backend_per_kind.full_attention",
        ),
        (
            {"backend_per_kind": {"full_attention": "NO_SUCH"}},
            {},
            "attention.backend_per_kind.full_attention",
        ),
        ({"backend": "FLASH_ATTN"}, {"attention_backend": "TRITON_ATTN"}, "attention.backend"),
        (
            {"backend": "FLASH_ATTN"},
            {"attention_backend": "TRITON_ATTN", "attention_support": "ALWAYS"},
            "attention.backend",
        ),
    ],
)
def test_a_refusal_names_the_setting_that_asks(
    attention: dict[str, Any], model: dict[str, Any], field: str
) -> None:
    with pytest.raises(PlanError) as caught:
        resolved(attention, **model)
    assert field in caught.value.fields
