"""Which layer of a model keeps what, by model type and pattern."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from planner.errors import PlanError
from planner.models.draft import mtp_layers
from planner.models.facts import model_facts
from planner.models.layers import LayerKind, Mixer

DATA = Path(__file__).parents[2] / "data"
MODELS = json.loads(gzip.decompress((DATA / "backend-models.json.gz").read_bytes()))

F, W, M = LayerKind.FULL_ATTENTION, LayerKind.SLIDING_WINDOW, LayerKind.MAMBA
SMALL = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 6,
}


def layers(**config):
    return model_facts({**SMALL, **config}).layers


def kinds(**config):
    return [layer.kind for layer in layers(**config)]


@pytest.mark.parametrize(
    ("model", "counts"),
    [
        ("qwen3-8b", {"full_attention": 36}),
        ("mistral-7b", {"sliding_window": 32}),
        ("gemma-2-9b", {"sliding_window": 21, "full_attention": 21}),
        ("gpt-oss-120b", {"sliding_window": 18, "full_attention": 18}),
        ("gemma-3-27b", {"sliding_window": 52, "full_attention": 10}),
        ("gemma-3-4b", {"sliding_window": 29, "full_attention": 5}),
        ("gemma-4-26b-a4b", {"sliding_window": 25, "full_attention": 5}),
        ("llama-4-scout", {"chunked_local_attention": 36, "full_attention": 12}),
        ("deepseek-v3", {"mla_attention": 61}),
        ("deepseek-v3.2", {"mla_attention": 122}),
        ("qwen3-next-80b-a3b", {"mamba": 36, "full_attention": 12}),
        ("qwen3.5-35b-a3b", {"mamba": 30, "full_attention": 10}),
        ("nemotron-h-56b", {"mamba": 54, "full_attention": 10}),
        ("nemotron-3-nano-30b-a3b", {"mamba": 23, "full_attention": 6}),
        ("mamba-2.8b", {"mamba": 64}),
        ("whisper-large-v3", {"full_attention": 32, "cross_attention": 32}),
        ("bge-base-en-v1.5", {"encoder_only_attention": 12}),
        ("gte-modernbert-base", {"encoder_only_attention": 22}),
        ("mimo-v2-flash", {"full_attention": 9, "sliding_window": 39}),
    ],
)
def test_kinds_of_layers_of_real_models(model, counts):
    assert Counter(layer.kind.value for layer in model_facts(MODELS[model]).layers) == counts


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, [F] * 6),
        ({"sliding_window": 128}, [W] * 6),
        ({"sliding_window": 0}, [F] * 6),
        ({"sliding_window": 128, "use_sliding_window": False}, [F] * 6),
        ({"sliding_window": 128, "use_sliding_window": True, "max_window_layers": 4}, [F, F, F, F, W, W]),
        ({"sliding_window": 128, "sliding_window_pattern": 3}, [W, W, F, W, W, F]),
        ({"sliding_window": 128, "_sliding_window_pattern": 2}, [W, F, W, F, W, F]),
        (
            {"sliding_window": 128, "layer_types": ["full_attention", "sliding_attention"] * 3},
            [F, W, F, W, F, W],
        ),
        ({"layer_types": ["sliding_attention"] * 6}, [F] * 6),
        ({"model_type": "gemma2", "sliding_window": 128}, [W, F, W, F, W, F]),
        ({"model_type": "gemma3_text", "sliding_window": 128}, [W, W, W, W, W, F]),
        ({"model_type": "cohere2", "sliding_window": 128}, [W, W, W, F, W, W]),
        (
            {"model_type": "gpt_oss", "sliding_window": 128, "layer_types": ["full_attention"] * 6},
            [W, F, W, F, W, F],
        ),
        ({"model_type": "qwen3_next", "full_attention_interval": 3}, [M, M, F, M, M, F]),
        ({"model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"] * 3}, [M, F] * 3),
        ({"model_type": "jamba", "attn_layer_period": 3, "attn_layer_offset": 1}, [M, F, M, M, F, M]),
        ({"model_type": "falcon_h1", "num_hidden_layers": 2}, [M, F, M, F]),
        ({"model_type": "minimax_text_01", "attn_type_list": [0, 1, 0, 1, 0, 1]}, [M, F] * 3),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-*EM*"}, [M, F, M, F]),
        ({"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"] * 3}, [M, F] * 3),
    ],
)
def test_patterns_of_layers(config, expected):
    assert kinds(**config) == expected


@pytest.mark.parametrize(
    ("config", "mixer"),
    [
        ({"model_type": "mamba", "num_attention_heads": None}, Mixer.MAMBA1),
        ({"model_type": "falcon_mamba", "num_attention_heads": None}, Mixer.MAMBA1),
        ({"model_type": "mamba2", "num_attention_heads": None}, Mixer.MAMBA2),
        ({"model_type": "granitemoehybrid", "layer_types": ["mamba"] * 6}, Mixer.MAMBA2),
        ({"model_type": "lfm2", "layer_types": ["conv"] * 6}, Mixer.SHORT_CONVOLUTION),
        ({"model_type": "minimax", "layer_types": ["linear_attention"] * 6}, Mixer.LINEAR_ATTENTION),
        ({"model_type": "qwen3_5_text", "layer_types": ["linear_attention"] * 6}, Mixer.GATED_DELTA_NET),
        ({"model_type": "kimi_linear"}, Mixer.OTHER),
        ({"layer_types": ["linear_attention"] * 6}, Mixer.OTHER),
        ({"layer_types": ["something new"] * 6}, Mixer.OTHER),
    ],
)
def test_mixers_of_layers_without_attention(config, mixer):
    assert {layer.mixer for layer in layers(**config)} == {mixer}


def test_llama4_lists_its_rotary_layers_or_goes_by_an_interval():
    chunked, full = LayerKind.CHUNKED_LOCAL_ATTENTION, F
    text = {"model_type": "llama4_text", "attention_chunk_size": 8}
    assert kinds(**text) == [chunked, chunked, chunked, full, chunked, chunked]
    assert kinds(**text, no_rope_layer_interval=2) == [chunked, full] * 3
    assert kinds(**text, no_rope_layers=[0, 1, 0, 1, 0, 1]) == [full, chunked] * 3
    assert kinds(model_type="llama4_text") == [full] * 6


def test_gemma4_layers_over_everything_have_heads_of_their_own():
    by_kind = {layer.kind: layer for layer in model_facts(MODELS["gemma-4-26b-a4b"]).layers}
    assert (by_kind[W].head_size, by_kind[W].num_kv_heads) == (256, 8)
    assert (by_kind[F].head_size, by_kind[F].num_kv_heads) == (512, 2)


def test_mimo_keys_are_wider_than_its_values_and_windows_have_sinks():
    by_kind = {layer.kind: layer for layer in model_facts(MODELS["mimo-v2-flash"]).layers}
    assert (by_kind[W].head_size, by_kind[W].v_head_size, by_kind[W].num_kv_heads) == (192, 128, 8)
    assert (by_kind[F].head_size, by_kind[F].v_head_size, by_kind[F].num_kv_heads) == (192, 128, 4)
    assert (by_kind[W].sinks, by_kind[F].sinks) == (True, False)


@pytest.mark.parametrize(
    ("changes", "indexers"),
    [
        ({}, 6),
        ({"index_topk_freq": 2}, 4),
        ({"index_topk_pattern": "FSFSSS"}, 2),
    ],
)
def test_layers_that_reuse_indices_cache_no_indexer(changes, indexers):
    config = {**MODELS["deepseek-v3.2"], "num_hidden_layers": 6, **changes}
    mixers = Counter(layer.mixer for layer in model_facts(config).layers)
    assert mixers == {Mixer.ATTENTION: 6, Mixer.SPARSE_INDEXER: indexers}


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"model_type": "nemotron_h"}, "hybrid_override_pattern"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M*"}, "hybrid_override_pattern"),
        ({"model_type": "mimo_v2_flash"}, "hybrid_layer_pattern"),
        ({"model_type": "mimo_v2_flash", "hybrid_layer_pattern": [0, 1]}, "hybrid_layer_pattern"),
        ({"model_type": "minimax_text_01", "attn_type_list": [1]}, "attn_type_list"),
        ({"sliding_window_pattern": 0, "sliding_window": 8}, "sliding_window_pattern"),
    ],
)
def test_a_pattern_that_does_not_cover_the_layers_names_its_key(config, key):
    with pytest.raises(PlanError, match=key):
        layers(**config)


@pytest.mark.parametrize(
    ("model", "mixers"),
    [
        ("qwen3-next-80b-a3b", [Mixer.ATTENTION]),
        ("deepseek-v3", [Mixer.ATTENTION]),
        ("deepseek-v3.2", [Mixer.SPARSE_INDEXER, Mixer.ATTENTION]),
        ("mamba-2.8b", []),
    ],
)
def test_an_mtp_module_has_the_caches_of_the_last_attention_layer(model, mixers):
    facts = model_facts(MODELS[model])
    assert [layer.mixer for layer in mtp_layers(facts.layers, facts.num_mtp_layers)] == mixers
    assert len(mtp_layers(facts.layers, 3)) == 3 * len(mixers)
