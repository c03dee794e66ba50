"""Shapes of models out of config.json files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from executor.errors import ModelError
from executor.models.config import DecoderConfig, DFlashConfig, RopeScaling, read_config
from planner import load_plan

MODELS = Path("plans/models")


def qwen(**changes: Any) -> dict[str, Any]:
    return {**read_config(MODELS / "qwen3-0.6b/config.json"), **changes}


def test_qwen3_is_read_from_its_file() -> None:
    config = DecoderConfig.from_file(MODELS / "qwen3-0.6b/config.json")
    assert (config.hidden_size, config.num_hidden_layers, config.head_dim) == (1024, 28, 128)
    assert (config.num_attention_heads, config.num_key_value_heads) == (16, 8)
    assert config.rope_theta == 1_000_000
    assert config.qk_norm
    assert config.tie_word_embeddings


def test_llama_has_no_norm_over_queries_and_its_own_long_context() -> None:
    config = DecoderConfig.from_file(MODELS / "llama-3.1-8b/config.json")
    assert not config.qk_norm
    assert config.head_dim == 128
    assert config.rope_scaling == RopeScaling(
        kind="llama3", factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position=8192
    )


def test_the_facts_in_a_compiled_plan_are_enough() -> None:
    plan = load_plan("plans/compiled/qwen3-8b-dflash.yaml")
    assert plan.deployment.model.config is not None
    config = DecoderConfig.of(plan.deployment.model.config.facts)
    assert (config.hidden_size, config.num_hidden_layers) == (4096, 36)
    assert plan.deployment.speculative is not None
    assert plan.deployment.speculative.config is not None
    draft = DFlashConfig.of(plan.deployment.speculative.config.facts)
    assert draft.target_layer_ids == (1, 9, 17, 25, 33)
    assert draft.num_speculative_tokens == 15
    assert draft.mask_token_id == 151669
    assert not draft.causal


def test_shrinking_keeps_the_kind_of_model() -> None:
    config = DecoderConfig.from_file(MODELS / "llama-3.1-8b/config.json").shrunk()
    assert (config.num_attention_heads, config.num_key_value_heads) == (4, 1)
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (64, 2, 128)
    assert not config.qk_norm


def test_a_shrunk_drafter_fits_its_shrunk_target() -> None:
    target = DecoderConfig.from_file(MODELS / "qwen3-8b/config.json").shrunk(layers=3)
    draft = DFlashConfig.from_file(MODELS / "qwen3-8b-dflash-b16/config.json").shrunk(target)
    assert draft.target_layer_ids == (0, 2)
    assert draft.decoder.hidden_size == target.hidden_size
    assert draft.mask_token_id < target.vocab_size


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mixtral"}, "mixtral"),
        ({"num_experts": 8}, "dense"),
        ({"num_key_value_heads": 3}, "evenly"),
        ({"head_dim": 7}, "even number"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 0}, "sliding window"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"rope_theta": -1}, "rope_theta"),
        ({"vocab_size": None}, "vocab_size"),
    ],
)
def test_what_the_decoder_cannot_be_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as raised:
        DecoderConfig.of(qwen(**changes))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "no dflash_config"),
        ({"dflash_config": {"mask_token_id": 3}}, "target_layer_ids"),
        ({"dflash_config": {"target_layer_ids": [1]}}, "mask_token_id is missing"),
        ({"dflash_config": {"target_layer_ids": [1], "mask_token_id": 1 << 30}}, "vocabulary"),
    ],
)
def test_what_is_no_drafter_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        DFlashConfig.of(qwen(**changes))


def test_files_that_are_no_configs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(ModelError, match="no such file"):
        read_config(path)
    for text, message in (("{", "not JSON"), ("[]", "not a JSON object"), ("[" * 100_000, "not JSON")):
        path.write_text(text)
        with pytest.raises(ModelError, match=message):
            read_config(path)
    path.write_text(json.dumps(qwen()))
    assert DecoderConfig.from_file(path).hidden_size == 1024
