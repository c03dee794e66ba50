"""What follows from a whole deployment: refusals with their fields, assumptions, odd corners."""

import gzip
import json
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from planner.backends.environment import Environment
from planner.backends.request import BackendRequest
from planner.backends.selection import select_backends
from planner.backends.traits import SELECTABLE
from planner.errors import PlanError
from planner.models.facts import model_facts
from planner.modes import AttentionSupport, Runner

DATA = Path(__file__).parents[2] / "data"
MODELS = json.loads(gzip.decompress((DATA / "backend-models.json.gz").read_bytes()))
FACTS = {name: model_facts(config) for name, config in MODELS.items()}


def request(model, device=(9, 0), draft=None, **settings):
    """A request for a model; settings of the environment are told from the others by name."""
    facts = FACTS[model]
    names = {
        field
        for field in Environment.__slots__
        if field in settings and field not in BackendRequest.__slots__
    }
    surroundings = {name: settings.pop(name) for name in names}
    ranks = settings.get("tensor_parallel_size", 1)
    return BackendRequest(
        target=facts,
        draft=None if draft is None else FACTS[draft],
        environment=Environment(
            capability=device, num_heads=(facts.num_attention_heads or 0) // ranks, **surroundings
        ),
        **settings,
    )


def backends(selection):
    return [group.backend for group in selection.groups]


def outcome(made):
    """The selection or the error, and None in the other's place."""
    try:
        return select_backends(made), None
    except PlanError as error:
        return None, error


def refusal(made):
    with pytest.raises(PlanError) as caught:
        select_backends(made)
    return caught.value


def test_a_refused_backend_is_answered_with_the_ones_that_serve():
    error = refusal(request("gpt-oss-120b", (8, 0), attention_backend="FLASH_ATTN"))
    assert error.fields == ("model.attention_backend", "model.config")
    assert "FLASH_ATTN cannot serve the sliding_window layers on compute capability 8.0" in error.message
    assert "attention sinks" in error.message
    assert error.message.endswith("choose one of: TRITON_ATTN")


def test_a_refused_draft_backend_names_the_drafts_setting():
    made = request(
        "qwen3-8b",
        (8, 0),
        draft="eagle3-qwen3-8b",
        speculative_method="eagle3",
        draft_attention_backend="TRITON_FLASH_ATTN",
    )
    assert refusal(made).fields[0] == "speculative.attention_backend"


def test_a_typo_in_a_backend_is_answered_with_the_names_there_are():
    error = refusal(request("qwen3-8b", attention_backend="FLASHATTN"))
    assert error.fields == ("model.attention_backend",)
    assert "FLASHINFER" in error.message


@pytest.mark.parametrize("asked", ["auto", "flash_attn", None])
def test_backend_names_are_read_whatever_their_case(asked):
    assert backends(select_backends(request("qwen3-8b", attention_backend=asked))) == ["FLASH_ATTN"]


def test_without_any_valid_backend_every_candidate_says_why():
    error = refusal(request("deepseek-v3.2", (8, 0)))
    assert "device.compute_capability" in error.fields
    for name in ("FLASH_ATTN_MLA_SPARSE", "FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM90"):
        assert name in error.message


def test_an_fp8_cache_that_triton_refuses_late_names_the_cache_not_the_backend():
    error = refusal(request("gemma-3-27b", (8, 0), kv_cache_dtype="fp8"))
    assert error.fields == ("model.kv_cache_dtype",)


@pytest.mark.parametrize(
    ("model", "asked", "fields"),
    [
        ("gemma-3-27b", "float16", ("model.dtype", "model.config")),
        ("gemma-2-9b", "half", ("model.dtype", "model.config")),
        ("qwen3-8b", "int8", ("model.dtype",)),
    ],
)
def test_a_type_that_the_model_cannot_run_in_is_refused(model, asked, fields):
    assert refusal(request(model, dtype=asked)).fields == fields


@pytest.mark.parametrize(
    ("model", "device", "asked", "dtype"),
    [
        ("qwen3-8b", (9, 0), None, "bfloat16"),
        ("qwen3-8b", (7, 5), "auto", "float16"),
        ("gemma-3-27b", (7, 5), None, "float32"),
        ("mamba-2.8b", (9, 0), None, "bfloat16"),
        ("bge-base-en-v1.5", (9, 0), None, "float16"),
        ("gpt-oss-120b", (9, 0), None, "bfloat16"),
        ("whisper-large-v3", (9, 0), None, "float16"),
        ("qwen3-8b", (9, 0), "float", "float32"),
    ],
)
def test_the_type_that_a_model_runs_in(model, device, asked, dtype):
    if dtype == "float32" and asked == "float":
        # No attention but Triton's serves it.
        assert backends(select_backends(request(model, device, dtype=asked))) == ["TRITON_ATTN"]
    assert select_backends(request(model, device, dtype=asked)).dtype == dtype


def test_a_16_bit_cache_must_be_of_the_models_own_type():
    error = refusal(request("qwen3-8b", dtype="float16", kv_cache_dtype="bfloat16"))
    assert error.fields == ("model.kv_cache_dtype", "model.dtype")
    assert "bfloat16" in error.message
    assert "float16" in error.message


def test_heads_that_do_not_divide_over_the_ranks_are_refused():
    error = refusal(request("qwen3-8b", tensor_parallel_size=3))
    assert error.fields == ("parallel.tensor_parallel_size", "model.config")
    assert "32" in error.message


def test_layers_that_share_no_cache_layout_are_refused():
    made = request(
        "llama-3.1-8b",
        (10, 0),
        draft="eagle3-llama-3.1-8b",
        speculative_method="eagle3",
        draft_attention_backend="FLEX_ATTENTION",
    )
    error = refusal(made)
    assert "speculative.attention_backend" in error.fields
    assert "FLASHINFER and FLEX_ATTENTION" in error.message


def test_a_model_with_backends_of_its_own_asks_for_its_support():
    config = {**MODELS["deepseek-v3"], "architectures": ["DeepseekV4ForCausalLM"]}
    made = evolve(request("deepseek-v3"), target=model_facts(config))
    assert refusal(made).fields == ("model.config", "model.attention_support")


def test_a_mixer_that_is_not_derived_asks_for_the_models_support():
    config = {**MODELS["qwen3-8b"], "layer_types": ["full_attention"] * 35 + ["hyena"]}
    made = evolve(request("qwen3-8b"), target=model_facts(config))
    assert refusal(made).fields == ("model.config", "model.attention_support")


def test_a_model_type_that_the_engine_does_not_implement_is_refused():
    config = {**MODELS["qwen3-8b"], "architectures": ["BambaForCausalLM"], "model_type": "bamba"}
    error = refusal(evolve(request("qwen3-8b"), target=model_facts(config)))
    assert error.fields == ("model.config",)


def test_mtp_layers_that_no_class_can_run_are_refused():
    error = refusal(request("minimax-m2", speculative_method="mtp", num_speculative_tokens=3))
    assert error.fields == ("speculative.method", "model.config")


@pytest.mark.parametrize("method", ["mtp", "deepseek_mtp"])
def test_mtp_brings_the_targets_own_kind_of_layers(method):
    selection = select_backends(request("deepseek-v3", speculative_method=method, num_speculative_tokens=1))
    assert [(group.label, group.layers) for group in selection.groups] == [
        ("mla_attention:FLASH_ATTN_MLA", 61),
        ("mla_attention:FLASH_ATTN_MLA:draft", 1),
    ]


@pytest.mark.parametrize("method", ["ngram", "suffix", "medusa", None])
def test_methods_without_attention_layers_add_no_group(method):
    selection = select_backends(request("qwen3-8b", speculative_method=method))
    assert [group.draft for group in selection.groups] == [False]
    assert selection.draft_support is None


@pytest.mark.parametrize(
    ("method", "draft", "backend"),
    [("eagle3", "eagle3-qwen3-8b", "TRITON_ATTN"), ("dflash", "qwen3-8b-dflash-b16", "FLASH_ATTN")],
)
def test_only_drafts_outside_the_dflash_family_inherit_the_targets_backend(method, draft, backend):
    made = request("qwen3-8b", draft=draft, speculative_method=method, attention_backend="TRITON_ATTN")
    assert backends(select_backends(made)) == ["TRITON_ATTN", backend]


def test_a_non_causal_draft_on_flashinfer_lowers_itself_and_not_the_target():
    made = request(
        "qwen3-8b",
        (10, 0),
        draft="qwen3-8b-dflash-b16",
        speculative_method="dflash",
        draft_attention_backend="FLASHINFER",
        num_speculative_tokens=7,
    )
    selection = select_backends(made)
    assert selection.support is AttentionSupport.UNIFORM_BATCH
    assert selection.draft_support is AttentionSupport.UNIFORM_SINGLE_TOKEN_DECODE
    assert [group.support for group in selection.draft_groups] == [selection.draft_support]


@pytest.mark.parametrize(
    ("changes", "support"),
    [
        ({"is_causal": True}, AttentionSupport.UNIFORM_BATCH),
        ({"is_causal": False}, AttentionSupport.UNIFORM_SINGLE_TOKEN_DECODE),
        (
            {"dflash_config": {"causal": True}, "layer_types": ["full_attention"] * 5},
            AttentionSupport.UNIFORM_BATCH,
        ),
        (
            {"layer_types": ["sliding_attention"] * 5, "sliding_window": 1024, "use_sliding_window": True},
            AttentionSupport.UNIFORM_BATCH,
        ),
    ],
    ids=["is_causal", "not is_causal", "dflash_config.causal", "sliding layers"],
)
def test_causality_of_a_dflash_draft_decides_what_it_replays(changes, support):
    draft = model_facts({**MODELS["qwen3-8b-dflash-b16"], **changes})
    made = request(
        "qwen3-8b",
        (10, 0),
        draft="qwen3-8b-dflash-b16",
        speculative_method="dflash",
        draft_attention_backend="FLASHINFER",
    )
    assert select_backends(evolve(made, draft=draft)).draft_support is support


def test_a_draft_whose_config_is_unknown_is_taken_to_have_the_targets_heads():
    selection = select_backends(request("qwen3-8b", speculative_method="dflash"))
    assert backends(selection) == ["FLASH_ATTN", "FLASH_ATTN"]
    assert any("speculative.config" in text for text in selection.assumptions)


def test_the_v1_runner_has_no_second_evaluation_of_the_draft():
    made = request("qwen3-8b", draft="qwen3-8b-dflash-b16", speculative_method="dflash", runner=Runner.V1)
    selection = select_backends(made)
    assert selection.draft_support is None
    assert selection.draft_groups == ()


def test_facts_about_the_installation_are_recorded_as_assumptions():
    with_kernels = select_backends(request("qwen3-8b", (10, 0))).assumptions
    without = select_backends(request("qwen3-8b", (10, 0), cubins=False)).assumptions
    assert any("can be had" in text for text in with_kernels)
    assert any("without its TRT-LLM kernels" in text for text in without)


def test_a_backend_for_one_kind_of_layers_leaves_the_other_to_the_engine():
    made = request("gpt-oss-120b", (10, 0), backend_per_kind={"sliding_window": "TRITON_ATTN"})
    assert backends(select_backends(made)) == ["TRITON_ATTN", "FLASHINFER"]


def test_chunked_layers_go_by_the_backend_of_full_attention():
    made = request("llama-4-scout", backend_per_kind={"full_attention": "TRITON_ATTN"})
    assert backends(select_backends(made)) == ["TRITON_ATTN", "TRITON_ATTN"]


@pytest.mark.parametrize(("block_size", "backend"), [(16, "TRITON_MLA"), (64, "FLASHINFER_MLA")])
def test_a_block_size_can_change_the_backend(block_size, backend):
    assert backends(select_backends(request("deepseek-v3", (10, 0), block_size=block_size))) == [backend]


@pytest.mark.parametrize("device", [(9, 0), (10, 0), (12, 0)])
@pytest.mark.parametrize("block_size", [16, 32, 64, 128, 256])
def test_block_sizes_change_nothing_for_plain_attention(device, block_size):
    default = select_backends(request("qwen3-8b", device))
    assert backends(select_backends(request("qwen3-8b", device, block_size=block_size))) == backends(default)


@pytest.mark.parametrize(("device", "same_as"), [((8, 6), (8, 0)), ((10, 3), (10, 0)), ((12, 1), (12, 0))])
@pytest.mark.parametrize(
    "model", sorted(name for name in FACTS if "eagle" not in name and "dflash" not in name)
)
def test_members_of_a_family_choose_alike(model, device, same_as):
    selected, refused = outcome(request(model, device))
    alike, alike_refused = outcome(request(model, same_as))
    assert (selected and selected.groups) == (alike and alike.groups)
    assert (refused and refused.fields) == (alike_refused and alike_refused.fields)


@pytest.mark.parametrize(
    ("model", "device", "method", "bound"),
    [
        ("qwen3-8b", (9, 0), "ngram", 4),
        ("qwen3-8b", (10, 0), "ngram", 4),
        ("qwen3-8b", (8, 0), "ngram", None),
        ("nemotron-h-56b", (10, 0), None, 4),
        ("qwen3-next-80b-a3b", (10, 0), None, None),
    ],
)
def test_bound_on_mixed_query_lengths_over_all_groups(model, device, method, bound):
    made = request(model, device, speculative_method=method, num_speculative_tokens=3, max_decode_query_len=4)
    assert select_backends(made).varlen_max_query_len == bound


def test_adaptive_verification_leaves_flashinfer_out_where_its_kernels_cannot_vary():
    made = request("llama-3.1-8b", (8, 9), kv_cache_dtype="fp8", adaptive_verification=True)
    assert backends(select_backends(made)) == ["TRITON_ATTN"]


@pytest.mark.parametrize(
    ("scheme", "kv_cache_dtype"),
    [
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, "fp8_e4m3"),
        ({"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "NVFP4"}}, "nvfp4"),
        ({"quant_method": "modelopt_fp4", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8_e4m3"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8}}, "fp8"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": None}, "auto"),
        ({"quant_method": "fp8"}, "auto"),
    ],
)
def test_a_quantised_checkpoint_decides_the_cache_unless_the_user_does(scheme, kv_cache_dtype):
    facts = model_facts({**MODELS["llama-3.1-8b"], "quantization_config": scheme})
    made = evolve(request("llama-3.1-8b"), target=facts)
    assert select_backends(made).kv_cache_dtype == kv_cache_dtype
    assert select_backends(evolve(made, kv_cache_dtype="fp8_e5m2")).kv_cache_dtype == "fp8_e5m2"


@given(
    model=st.sampled_from(sorted(FACTS)),
    device=st.sampled_from([(7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (11, 0), (12, 1)]),
    backend=st.none() | st.sampled_from(sorted(SELECTABLE)),
    kv_cache_dtype=st.sampled_from(
        ["auto", "fp8", "bfloat16", "nvfp4", "turboquant_k8v4", "int4_per_token_head"]
    ),
    block_size=st.none() | st.sampled_from([16, 48, 64, 128]),
    method=st.sampled_from([None, "ngram", "eagle3", "dflash", "mtp"]),
    tokens=st.integers(1, 7),
    runner=st.sampled_from(Runner),
    batch_invariant=st.booleans(),
)
def test_any_settings_are_either_resolved_or_refused_with_fields(
    model, device, backend, kv_cache_dtype, block_size, method, tokens, runner, batch_invariant
):
    made = request(
        model,
        device,
        attention_backend=backend,
        kv_cache_dtype=kv_cache_dtype,
        block_size=block_size,
        speculative_method=method,
        num_speculative_tokens=tokens if method else 0,
        runner=runner,
        batch_invariant=batch_invariant,
    )
    selection, error = outcome(made)
    if selection is None:
        assert error.fields
        assert "\n" not in str(error)
        return
    supports = [group.support for group in selection.groups]
    assert selection.support is min(supports, default=AttentionSupport.ALWAYS)
    assert (selection.deciding is None) == (selection.support is AttentionSupport.ALWAYS)
    if selection.deciding is not None:
        assert supports.index(selection.support) == selection.groups.index(selection.deciding)
    drafted = sum(group.layers for group in selection.groups if not group.draft)
    assert drafted == len(made.target.layers)
