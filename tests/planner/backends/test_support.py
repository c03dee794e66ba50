"""The level of every backend that has one, and the conditions it depends on."""

import pytest

from planner import PlanError, compile_plan, load_deployment
from planner.backends.environment import Environment
from planner.backends.support import BACKEND_NAMES, GroupShape, backend_support, varlen_bound
from planner.modes import AttentionSupport

A, UB = AttentionSupport.ALWAYS, AttentionSupport.UNIFORM_BATCH
S, N = AttentionSupport.UNIFORM_SINGLE_TOKEN_DECODE, AttentionSupport.NEVER

# Backend, its level on 8.0, 9.0, 10.0 and 12.0 without speculation.
LEVELS = [
    ("FLASH_ATTN", UB, A, A, UB),
    ("FLASH_ATTN_DIFFKV", UB, A, A, UB),
    ("TRITON_ATTN", A, A, A, A),
    ("TRITON_ATTN_DIFFKV", A, A, A, A),
    ("FLEX_ATTENTION", A, A, A, A),
    ("ROCM_ATTN", A, A, A, A),
    ("ROCM_SEGMENTED_ATTN", A, A, A, A),
    ("ROCM_AITER_UNIFIED_ATTN", A, A, A, A),
    ("ROCM_AITER_FA", UB, UB, UB, UB),
    ("ROCM_OCTAVE", UB, UB, UB, UB),
    ("FLASHINFER", UB, UB, UB, UB),
    ("B12X", UB, UB, UB, UB),
    ("TURBOQUANT", UB, UB, UB, UB),
    ("HPC_ATTN", S, S, S, S),
    ("CPU_ATTN", N, N, N, N),
    ("TRITON_FLASH_ATTN", S, S, S, S),
    ("TRITON_FLASHINFER", S, S, S, S),
    ("CACHE_ONLY_ATTN", N, N, N, N),
    ("LINEAR_ATTN", S, S, S, S),
    ("BAILING_LINEAR_ATTN", UB, UB, UB, UB),
    ("MAMBA1_ATTN", UB, UB, UB, UB),
    ("MAMBA2_ATTN", UB, UB, UB, UB),
    ("SHORT_CONV_ATTN", UB, UB, UB, UB),
    ("PLE_SHORT_CONV_ATTN", UB, UB, UB, UB),
    ("GDN_ATTN", UB, UB, UB, UB),
    ("AMX_MLA", N, N, N, N),
    ("TRITON_MLA", UB, UB, UB, UB),
    ("CUTLASS_MLA", S, S, S, S),
    ("FLASHMLA", UB, UB, UB, UB),
    ("FLASH_ATTN_MLA", UB, UB, UB, UB),
    ("FLASHINFER_MLA", A, A, A, A),
    ("TOKENSPEED_MLA", UB, UB, UB, UB),
    ("ROCM_AITER_MLA", UB, UB, UB, UB),
    ("ROCM_AITER_MLA_SPARSE", UB, UB, UB, UB),
    ("FLASHMLA_SPARSE", UB, UB, UB, UB),
    ("FLASH_ATTN_MLA_SPARSE", UB, UB, UB, UB),
    ("FLASH_ATTN_MLA_SPARSE_FA4", UB, UB, UB, UB),
    ("FLASHINFER_MLA_SPARSE", UB, UB, UB, UB),
    ("FLASHINFER_MLA_SPARSE_SM90", UB, UB, UB, UB),
    ("FLASHINFER_MLA_SPARSE_SM120", UB, UB, UB, UB),
    ("XPU_MLA_SPARSE", N, N, N, N),
    ("DEEPSEEK_V32_INDEXER", UB, UB, A, UB),
    ("DEEPSEEK_V4_INDEXER", UB, UB, A, UB),
    ("DEEPSEEK_V41_INDEXER", UB, UB, A, UB),
    ("DEEPSEEK_V41_SPARSE_INDEXER", UB, UB, A, UB),
    ("KPOOL_TAIL", A, A, A, A),
    ("DEEPSEEK_SPARSE_SWA", A, A, A, A),
    ("FLASHMLA_SPARSE_DSV4", A, A, A, A),
    ("FLASHMLA_SPARSE_DSV41", A, A, A, A),
    ("FLASHINFER_MLA_SPARSE_DSV4", A, A, A, A),
    ("FLASHINFER_MLA_SPARSE_DSV41", A, A, A, A),
    ("ROCM_FLASHMLA_SPARSE_DSV4", UB, UB, UB, UB),
    ("ROCM_FLASHMLA_SPARSE_DSV41", UB, UB, UB, UB),
    ("KIMI_K3_KDA", A, A, A, A),
    ("KIMI_K3_KDA_ROCM", UB, UB, UB, UB),
    ("MINIMAX_M3_SPARSE", UB, UB, UB, UB),
    ("CUTLASS_MSA", UB, UB, UB, UB),
    ("TRITON_MSA", UB, UB, UB, UB),
    ("INKLING_SCONV_SWA", UB, UB, UB, UB),
    ("QWEN4_EXP_QSA_TRITON", UB, UB, UB, UB),
    ("STEP5_DSA", S, S, S, S),
    ("STEP5_CSA_SUMMARY", A, A, A, A),
    ("STEP5_CSA_TAIL_RING", A, A, A, A),
]
DEVICES = ((8, 0), (9, 0), (10, 0), (12, 0))


def env(capability, **settings):
    tokens = settings.get("num_speculative_tokens", 0)
    return Environment(capability=capability, num_heads=32, max_decode_query_len=1 + tokens, **settings)


@pytest.mark.parametrize(("name", "eight", "nine", "ten", "twelve"), LEVELS, ids=[row[0] for row in LEVELS])
def test_level_of_each_backend_on_each_family(name, eight, nine, ten, twelve):
    shape = GroupShape(num_kv_heads=8)
    got = [backend_support(name, env(device), shape) for device in DEVICES]
    assert got == [eight, nine, ten, twelve]


def test_the_table_has_a_row_for_every_backend_with_a_level():
    assert sorted(row[0] for row in LEVELS) == list(BACKEND_NAMES)


DERIVED_NOWHERE = (
    *("DeepseekV4ForCausalLM", "DeepseekV41ForCausalLM", "Dots3NoteForCausalLM", "Glm5NextForCausalLM"),
    *("HYV4ForCausalLM", "InklingForCausalLM", "KimiK3ForCausalLM", "KimiLinearForCausalLM"),
    *("MiniMaxM3SparseForCausalLM", "Qwen4ExpForCausalLM", "Step5ForCausalLM", "VoxtralRealtimeGeneration"),
)


@pytest.mark.parametrize("architecture", DERIVED_NOWHERE)
def test_builders_without_a_name_belong_to_models_whose_support_has_to_be_written(architecture):
    """Compressors, state caches and the causal Whisper wrapper: no user names those backends."""
    model = {
        "architectures": [architecture],
        "hidden_size": 512,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
    }
    document = {"apiVersion": "graphplan/v1", "kind": "Deployment", "model": {"config": model}}
    with pytest.raises(PlanError, match="attention_support to what the engine's log says"):
        compile_plan(load_deployment(document))
    document["model"]["attention_support"] = "UNIFORM_BATCH"
    assert compile_plan(load_deployment(document)).resolved["target"].attention_support is UB


@pytest.mark.parametrize("device", ["8.0", "9.0", "10.0", "12.0"])
def test_a_chunked_local_layer_is_never_replayed_whatever_backend_it_wraps(device):
    model = {
        "architectures": ["Llama4ForCausalLM"],
        "model_type": "llama4_text",
        "hidden_size": 512,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "attention_chunk_size": 8192,
        "no_rope_layers": [1, 1, 1, 0],
    }
    document = {
        "apiVersion": "graphplan/v1",
        "kind": "Deployment",
        "model": {"config": model},
        "device": {"compute_capability": device},
    }
    groups = compile_plan(load_deployment(document)).resolved["target"].attention_groups
    assert [(group.kind, group.support is N) for group in groups] == [
        ("chunked_local_attention", True),
        ("full_attention", False),
    ]


@pytest.mark.parametrize("name", ["HPC_ATTN", "STEP5_DSA"])
def test_speculation_raises_a_backend_that_verifies_uniformly(name):
    assert backend_support(name, env((9, 0), num_speculative_tokens=3), GroupShape()) is UB


@pytest.mark.parametrize("name", ["ROCM_FLASHMLA_SPARSE_DSV4", "ROCM_FLASHMLA_SPARSE_DSV41"])
def test_adaptive_verification_raises_a_backend_to_any_batch(name):
    assert backend_support(name, env((9, 0), adaptive_verification=True), GroupShape()) is A


@pytest.mark.parametrize(
    ("device", "by_tokens"),
    [
        ((9, 0), {0: UB, 1: UB, 2: A, 3: UB, 4: A}),
        ((10, 3), {0: A, 1: A, 2: A, 3: A}),
        ((12, 0), {0: UB, 1: UB, 2: A, 3: A}),
    ],
)
def test_the_sparse_indexer_flattens_query_lengths_that_its_kernel_does_not_take(device, by_tokens):
    for tokens, level in by_tokens.items():
        got = backend_support(
            "DEEPSEEK_V32_INDEXER", env(device, num_speculative_tokens=tokens), GroupShape()
        )
        assert got is level, tokens


@pytest.mark.parametrize(("name", "device"), [("TRITON_FLASH_ATTN", (9, 0)), ("TRITON_FLASHINFER", (10, 0))])
def test_windows_that_image_tokens_look_beyond_leave_a_composite_without_graphs(name, device):
    assert backend_support(name, env(device), GroupShape(num_kv_heads=8, unclamped_window=True)) is N


FLASHINFER = [
    ("8.x without cubins", (8, 0), {"cubins": False}, {}, UB),
    ("8.x non-causal", (8, 9), {}, {"non_causal": True}, S),
    ("9.0", (9, 0), {}, {}, UB),
    ("9.0 non-causal", (9, 0), {}, {"non_causal": True}, UB),
    ("9.0 without cubins", (9, 0), {"cubins": False}, {}, S),
    ("9.0 with nvfp4", (9, 0), {}, {"kv_cache_dtype": "nvfp4"}, S),
    ("9.0 with heads of 512", (9, 0), {}, {"head_size": 512}, S),
    ("9.0 with heads of 72", (9, 0), {}, {"head_size": 72}, S),
    ("9.1", (9, 1), {}, {}, S),
    ("10.0", (10, 0), {}, {"head_size": 512}, UB),
    ("10.0 with nvfp4", (10, 0), {}, {"kv_cache_dtype": "nvfp4"}, UB),
    ("10.0 non-causal", (10, 0), {}, {"non_causal": True}, S),
    ("10.0 TRT-LLM off", (10, 0), {"use_trtllm_attention": False}, {}, S),
    ("10.0 TRT-LLM forced changes nothing", (10, 0), {"use_trtllm_attention": True, "cubins": False}, {}, S),
    ("10.0 with KV heads that do not divide", (10, 0), {}, {"num_kv_heads": 5}, S),
    ("11.0", (11, 0), {}, {}, S),
    ("12.0 with nvfp4", (12, 0), {}, {"kv_cache_dtype": "nvfp4"}, UB),
    ("12.1 non-causal", (12, 1), {}, {"non_causal": True}, UB),
    ("decode context parallel", (9, 0), {"decode_context_parallel_size": 2}, {}, S),
    ("decode context parallel on 8.x", (8, 0), {"decode_context_parallel_size": 2}, {}, S),
]


@pytest.mark.parametrize(
    ("device", "settings", "shape", "level"),
    [row[1:] for row in FLASHINFER],
    ids=[row[0] for row in FLASHINFER],
)
def test_flashinfer_level(device, settings, shape, level):
    assert (
        backend_support("FLASHINFER", env(device, **settings), GroupShape(**{"num_kv_heads": 8, **shape}))
        is level
    )


@pytest.mark.parametrize(
    ("name", "device", "bound"),
    [
        ("MAMBA2_ATTN", (9, 0), 4),
        ("MAMBA1_ATTN", (9, 0), None),
        ("GDN_ATTN", (9, 0), None),
        ("FLASHINFER", (10, 0), 4),
        ("FLASHINFER", (9, 0), None),
        ("FLASHINFER", (8, 0), None),
        ("FLASHINFER_MLA_SPARSE", (10, 0), 4),
        ("FLASH_ATTN_MLA_SPARSE_FA4", (10, 0), 4),
        ("FLASHINFER_MLA_SPARSE_SM120", (12, 0), None),
        ("TRITON_ATTN", (9, 0), None),
    ],
)
def test_which_backends_replay_a_mix_of_short_queries(name, device, bound):
    surroundings = env(device, num_speculative_tokens=3)
    support = backend_support(name, surroundings, GroupShape(num_kv_heads=8))
    assert varlen_bound(name, surroundings, support) == bound
