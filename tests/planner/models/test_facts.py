"""Facts of a model out of its config.json."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlanError
from planner.models.facts import model_facts

REPOSITORY = Path(__file__).parents[3]
SHIPPED = REPOSITORY / "plans" / "models"
MODELS = json.loads(gzip.decompress((REPOSITORY / "tests" / "data" / "backend-models.json.gz").read_bytes()))

SHAPES = [
    # model, layers, query heads, KV heads, head size, hidden size, vocabulary, experts
    ("qwen3-0.6b", 28, 16, 8, 128, 1024, 151936, 0),
    ("qwen3-8b", 36, 32, 8, 128, 4096, 151936, 0),
    ("qwen3-30b-a3b", 48, 32, 4, 128, 2048, 151936, 128),
    ("llama-3.1-8b", 32, 32, 8, 128, 4096, 128256, 0),
    ("llama-3.1-70b", 80, 64, 8, 128, 8192, 128256, 0),
    ("deepseek-v3", 61, 128, 1, 576, 7168, 129280, 256),
    ("gpt-oss-120b", 36, 64, 8, 64, 2880, 201088, 128),
    ("mixtral-8x7b", 32, 32, 8, 128, 4096, 32000, 8),
    ("gemma-3-27b", 62, 32, 16, 128, 5376, 262208, 0),
    ("nemotron-3-nano-30b-a3b", 52, 32, 2, 128, 2688, 131072, 128),
    ("whisper-large-v3", 32, 20, 20, 64, 1280, 51866, 0),
    ("qwen3-8b-dflash-b16", 5, 32, 8, 128, 4096, 151936, 0),
    ("qwen3-30b-a3b-dflash", 8, 32, 4, 128, 2048, 151936, 0),
]


@pytest.mark.parametrize("shape", SHAPES, ids=[shape[0] for shape in SHAPES])
def test_shapes_of_the_shipped_models(shape):
    facts = model_facts(json.loads((SHIPPED / shape[0] / "config.json").read_text()))
    assert (
        facts.num_hidden_layers,
        facts.num_attention_heads,
        facts.num_key_value_heads,
        facts.head_size,
        facts.hidden_size,
        facts.vocab_size,
        facts.num_experts,
    ) == shape[1:]
    assert facts.is_moe is (facts.num_experts > 0)


def test_every_shipped_model_has_its_row():
    assert sorted(folder.name for folder in SHIPPED.iterdir() if folder.is_dir()) == sorted(
        shape[0] for shape in SHAPES
    )


@pytest.mark.parametrize(
    ("model", "facts"),
    [
        ("deepseek-v3", {"text_model_type": "deepseek_v3", "num_mtp_layers": 1, "num_experts_per_token": 8}),
        ("kimi-k2", {"num_mtp_layers": 0, "num_experts": 384}),
        ("gpt-oss-120b", {"has_sinks": True, "sliding_window": 128, "dtype": None}),
        ("gemma-3-27b", {"max_position_embeddings": 131072}),
        ("gemma-3-27b", {"mm_prefix": True, "is_multimodal": True, "text_model_type": "gemma3_text"}),
        ("gemma-4-26b-a4b", {"mm_prefix": True, "num_experts": 128, "num_experts_per_token": 8}),
        ("gemma-2-9b", {"mm_prefix": False, "softcap": True}),
        (
            "qwen3-vl-8b",
            {"mm_prefix": False, "is_multimodal": True, "vocab_size": 151936, "dtype": "bfloat16"},
        ),
        ("qwen3-next-80b-a3b", {"is_hybrid": True, "is_moe": True, "is_attention_free": False}),
        ("nemotron-h-56b", {"is_hybrid": True, "head_size": 128}),
        ("mamba-2.8b", {"is_hybrid": False, "is_attention_free": True, "num_attention_heads": None}),
        (
            "whisper-large-v3",
            {"is_encoder_decoder": True, "is_pooling": False, "max_position_embeddings": 448},
        ),
        ("bge-base-en-v1.5", {"is_encoder_only": True, "is_pooling": True, "dtype": "float32"}),
        ("llama-3.1-8b", {"is_encoder_only": False, "max_position_embeddings": 131072, "quantization": None}),
        ("mixtral-8x7b", {"sliding_window": None}),
        ("phi-3-mini", {"sliding_window": 2047, "head_size": 96}),
    ],
)
def test_what_sets_a_model_apart(model, facts):
    got = model_facts(MODELS[model])
    assert {name: getattr(got, name) for name in facts} == facts


def test_widths_of_latent_attention():
    mla = model_facts(MODELS["deepseek-v3.2"]).mla
    assert (mla.head_size, mla.qk_nope_head_dim, mla.v_head_dim, mla.index_topk) == (576, 128, 128, 2048)
    assert model_facts(MODELS["deepseek-v3"]).mla.index_topk is None
    assert model_facts(MODELS["qwen3-8b"]).mla is None


def test_a_dflash_draft_names_its_block_and_the_targets_layers():
    dflash = model_facts(MODELS["qwen3-8b-dflash-b16"]).dflash
    assert (dflash.block_size, dflash.target_layer_ids) == (16, (1, 9, 17, 25, 33))
    inside = {**MODELS["qwen3-8b-dflash-b16"], "block_size": None, "dflash_config": {"block_size": 8}}
    assert model_facts(inside).dflash.block_size == 8
    assert model_facts(MODELS["qwen3-8b"]).dflash is None


def test_a_non_causal_dflash_draft_is_no_encoder():
    facts = model_facts({**MODELS["qwen3-8b-dflash-b16"], "is_causal": False})
    assert not facts.is_encoder_only
    assert not facts.is_pooling


@pytest.mark.parametrize(
    ("architecture", "pooling"),
    [
        ("Qwen3ForCausalLM", False),
        ("Qwen3ForSequenceClassification", True),
        ("Qwen3Model", True),
        ("LlamaForRewardModeling", True),
        ("DFlashDraftModel", False),
        ("InternVLChatModel", False),
        ("GPT2LMHeadModel", False),
        (None, False),
    ],
)
def test_architectures_that_return_vectors_or_scores(architecture, pooling):
    names = [] if architecture is None else [architecture]
    assert model_facts({**MODELS["qwen3-8b"], "architectures": names}).is_pooling is pooling


def test_a_bidirectional_decoder_is_an_encoder():
    facts = model_facts({**MODELS["llama-3.1-8b"], "is_causal": False})
    assert facts.is_encoder_only
    assert facts.is_pooling


@pytest.mark.parametrize(
    ("key", "value", "mm_prefix"),
    [("is_mm_prefix_lm", True, True), ("model_type", "paligemma", True), ("model_type", "llava", False)],
)
def test_models_whose_image_tokens_attend_both_ways(key, value, mm_prefix):
    assert model_facts({**MODELS["qwen3-8b"], key: value}).mm_prefix is mm_prefix


def test_a_null_counts_as_absent_and_dtype_may_carry_its_module():
    facts = model_facts({**MODELS["qwen3-8b"], "head_dim": None, "torch_dtype": "torch.float16"})
    assert facts.head_size == 128
    assert facts.dtype == "float16"


def test_widths_given_layer_by_layer_count_with_their_largest():
    assert model_facts({**MODELS["qwen3-8b"], "intermediate_size": [64, 256, 128]}).intermediate_size == 256


BROKEN = [
    ("num_hidden_layers", None, "is missing"),
    ("num_hidden_layers", "36", "whole number"),
    ("num_hidden_layers", 0, "at least 1"),
    ("num_hidden_layers", 10**9, "at most"),
    ("num_hidden_layers", True, "whole number"),
    ("num_attention_heads", None, "is missing"),
    ("num_attention_heads", 2.5, "whole number"),
    ("num_key_value_heads", -1, "whole number"),
    ("head_dim", {"x": 1}, "a mapping"),
    ("head_dim", 10**400, "beyond every real one"),
    ("sliding_window", "4096", "whole number"),
    ("use_sliding_window", "no", "true or false"),
    ("layer_types", "full_attention", "a list"),
    ("layer_types", [1, 2], "strings"),
    ("layer_types", ["full_attention"], "32"),
    ("architectures", "Qwen3ForCausalLM", "a list"),
    ("model_type", 3, "a string"),
    ("torch_dtype", "int3", "int3"),
    ("text_config", [], "a mapping"),
    ("quantization_config", "fp8", "a mapping"),
]


@pytest.mark.parametrize(
    ("key", "value", "words"), BROKEN, ids=[f"{row[0]} {row[1]!r:.20}" for row in BROKEN]
)
def test_a_broken_value_names_its_key(key, value, words):
    with pytest.raises(PlanError) as caught:
        model_facts({**MODELS["llama-3.1-8b"], key: value}, field="speculative.config")
    assert caught.value.fields == ("speculative.config",)
    assert key in caught.value.message
    assert words in caught.value.message


def test_a_broken_value_inside_the_text_config_is_named_with_its_place():
    config = {
        **MODELS["gemma-3-27b"],
        "text_config": {**MODELS["gemma-3-27b"]["text_config"], "head_dim": "x"},
    }
    with pytest.raises(PlanError, match=r"text_config\.head_dim"):
        model_facts(config)


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(model=st.sampled_from(sorted(MODELS)), data=st.data())
def test_no_value_under_any_key_gets_past_with_another_error(model, data):
    config = json.loads(json.dumps(MODELS[model]))
    place = config["text_config"] if "text_config" in config and data.draw(st.booleans()) else config
    for key in data.draw(st.lists(st.sampled_from(sorted(place)), min_size=1, max_size=3)):
        place[key] = data.draw(JSON)
    facts = None
    try:
        facts = model_facts(config)
    except PlanError as error:
        fields = error.fields
    assert fields == ("model.config",) if facts is None else facts.num_hidden_layers >= 1


@pytest.mark.parametrize("key", ["num_nextn_predict_layers", "num_mtp_modules"])
def test_no_model_brings_draft_layers_by_the_thousand_million(key):
    config = {"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 64}
    assert model_facts({**config, key: 4096}).num_mtp_layers == 4096
    with pytest.raises(PlanError, match=f"{key} is 1000000000; planning takes at most 4096"):
        model_facts({**config, key: 10**9})
