"""Classes that nobody here wrote: a decode step on a static cache is found clean."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from executor.check import check_forward

SLOTS = 32
BATCH = 2
SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}


def decode_step(family: str, config_class: str, experts: str | None = None, **more: Any) -> Callable[[], Any]:
    config = getattr(transformers, config_class)(**SHAPE, **more)
    if experts is not None:
        config._experts_implementation = experts
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    cache = transformers.StaticCache(config=config, max_cache_len=SLOTS)
    token = torch.ones(BATCH, 1, dtype=torch.long)
    position = torch.full((BATCH, 1), 5)
    mask = torch.zeros(BATCH, 1, 1, SLOTS)
    mask[..., 6:] = float("-inf")

    def forward() -> torch.Tensor:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            logits: torch.Tensor = model(
                input_ids=token,
                position_ids=position,
                cache_position=position[0],
                past_key_values=cache,
                attention_mask=mask,
            ).logits
        return logits

    return forward


@pytest.mark.parametrize(
    "forward",
    [
        pytest.param(lambda: decode_step("Qwen3", "Qwen3Config"), id="Qwen3"),
        pytest.param(lambda: decode_step("Llama", "LlamaConfig"), id="Llama"),
        pytest.param(lambda: decode_step("Mixtral", "MixtralConfig", "grouped_mm", **EXPERTS), id="Mixtral"),
        pytest.param(
            lambda: decode_step("Mixtral", "MixtralConfig", "batched_mm", **EXPERTS), id="Mixtral-batched"
        ),
        pytest.param(lambda: decode_step("Gemma", "GemmaConfig"), id="Gemma"),
        pytest.param(lambda: decode_step("Gemma3", "Gemma3TextConfig", sliding_window=SLOTS), id="Gemma3"),
    ],
)
def test_a_decode_step_of_a_hugging_face_model_gives_no_finding(forward: Any) -> None:
    report = check_forward(forward())
    assert report.findings == ()
    assert report.num_operations > 50


def test_the_loop_over_experts_is_found_in_the_library_that_has_it() -> None:
    report = check_forward(decode_step("Mixtral", "MixtralConfig", "eager", **EXPERTS))
    assert {found.code for found in report.findings} == {"host-sync", "data-dependent-shape"}
    assert {Path(found.file).name for found in report.findings} == {"modeling_mixtral.py"}
    assert {found.function for found in report.findings} == {"MixtralExperts.forward"}
