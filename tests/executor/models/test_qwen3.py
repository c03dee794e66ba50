"""The decoder against transformers, and against itself in other batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from executor.errors import ModelError
from executor.inputs.batch import ScheduledBatch
from executor.models.config import DecoderConfig, RopeScaling
from executor.models.qwen3 import Decoder, build_decoder, inverse_frequencies
from executor.runner import TargetRunner
from planner import load_plan
from tests.executor.serving import target_runner, tokens_of

SHAPE: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 64,
    "max_position_embeddings": 128,
}
LLAMA3 = RopeScaling(kind="llama3", factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position=64)


def config_of(**fields: Any) -> DecoderConfig:
    return DecoderConfig(**{**SHAPE, **fields})


def runner_of(model: Decoder) -> TargetRunner:
    return target_runner(load_plan("plans/small-decode.yaml"), model, graphs=False)


def logits_of(model: Decoder, tokens: list[int]) -> torch.Tensor:
    blocks = tuple(range(1, 2 + len(tokens) // 8))
    output = runner_of(model).step(ScheduledBatch((tuple(tokens),), (0,), (blocks,)))
    with torch.no_grad():
        return model.compute_logits(output.hidden_states)


def rope_parameters(config: DecoderConfig) -> dict[str, Any]:
    scaling = config.rope_scaling
    if scaling is None:
        return {"rope_type": "default", "rope_theta": config.rope_theta}
    named = {
        "rope_type": scaling.kind,
        "rope_theta": config.rope_theta,
        "factor": scaling.factor,
    }
    if scaling.kind == "linear":
        return named
    return {
        **named,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_position,
    }


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("Qwen3", config_of(rope_theta=1_000_000.0)),
        ("Qwen3", config_of(tie_word_embeddings=True, attention_bias=True)),
        ("Llama", config_of(qk_norm=False, rope_scaling=LLAMA3)),
        ("Llama", config_of(qk_norm=False, rope_scaling=RopeScaling(kind="linear", factor=4))),
    ],
)
def test_logits_equal_those_of_transformers(kind: str, config: DecoderConfig) -> None:
    transformers = pytest.importorskip("transformers", reason="an extra of the tests")
    named = {
        **SHAPE,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.attention_bias,
        "rope_parameters": rope_parameters(config),
        "initializer_range": 0.1,
    }
    torch.manual_seed(0)
    theirs = getattr(transformers, f"{kind}ForCausalLM")(
        getattr(transformers, f"{kind}Config")(**named)
    ).eval()
    for name, weight in theirs.named_parameters():
        if name.endswith(("norm.weight", "bias")):
            torch.nn.init.normal_(weight, 1.0, 0.2)
    model = build_decoder(config)
    model.load_from_transformers(theirs)
    tokens = tokens_of(0, 40, 64)
    with torch.no_grad():
        expected = theirs(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(logits_of(model, tokens), expected, rtol=0, atol=1e-5)


def test_weights_of_another_shape_are_refused() -> None:
    transformers = pytest.importorskip("transformers", reason="an extra of the tests")
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE))
    with pytest.raises(ModelError, match="LlamaForCausalLM do not fit"):
        build_decoder(config_of()).load_from_transformers(theirs)


def test_the_same_seed_gives_the_same_weights() -> None:
    config = config_of()
    one, two, other = (build_decoder(config, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(one.lm_head.weight, two.lm_head.weight)
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)
    assert not any(weight.requires_grad for weight in one.parameters())


def test_tied_embeddings_are_one_tensor() -> None:
    model = build_decoder(config_of(tie_word_embeddings=True), dtype=torch.bfloat16)
    assert model.lm_head.weight is model.embed_tokens.weight
    assert model.dtype is torch.bfloat16
    assert model.rotary.inv_freq.dtype is torch.float32


def test_auxiliary_hidden_states_are_the_outputs_of_the_chosen_layers() -> None:
    model = build_decoder(config_of(), aux_layer_ids=(2, 0), std=0.1)
    output = runner_of(model).step(ScheduledBatch(((1, 2, 3),), (0,), ((1,),)))
    last, first = output.aux_hidden_states
    torch.testing.assert_close(model.norm(last), output.hidden_states)
    assert first.shape == (3, 48)
    assert not torch.equal(first, last)


def test_layers_that_the_model_lacks_cannot_be_read() -> None:
    with pytest.raises(ModelError, match="layer 3"):
        build_decoder(config_of(), aux_layer_ids=(0, 3))


def test_slow_frequencies_are_stretched_and_fast_ones_kept() -> None:
    plain = inverse_frequencies(config_of())
    scaled = inverse_frequencies(config_of(rope_scaling=LLAMA3))
    assert scaled[0] == plain[0]
    torch.testing.assert_close(scaled[-1], plain[-1] / 8)
