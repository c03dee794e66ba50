"""What each backend serves on CUDA: one property varied at a time from a layer that it takes."""

import pytest
from attrs import evolve

from planner.backends.environment import Environment
from planner.backends.question import Question
from planner.backends.traits import SELECTABLE
from planner.backends.validity import reasons_against, refused_when_built
from planner.models.facts import MlaDims
from planner.models.layers import LayerKind

PLAIN = Question(
    kind=LayerKind.FULL_ATTENTION, head_size=128, v_head_size=128, num_heads=32, dtype="bfloat16"
)
DENSE_MLA = evolve(
    PLAIN,
    kind=LayerKind.MLA_ATTENTION,
    head_size=576,
    v_head_size=576,
    mla=MlaDims(kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, index_topk=None),
)
SPARSE_MLA = evolve(DENSE_MLA, sparse=True, mla=evolve(DENSE_MLA.mla, index_topk=2048))
WIDE = evolve(PLAIN, head_size=256, v_head_size=256)

# Backend, a layer that it takes, and its devices out of the eight.
DEVICES = ((7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1))
BACKENDS = [
    ("FLASH_ATTN", PLAIN, DEVICES[1:]),
    ("FLASHINFER", PLAIN, DEVICES[1:]),
    ("TRITON_ATTN", PLAIN, DEVICES),
    ("FLEX_ATTENTION", PLAIN, DEVICES),
    ("TURBOQUANT", evolve(PLAIN, kv_cache_dtype="turboquant_k8v4"), DEVICES),
    ("TRITON_FLASH_ATTN", WIDE, ((9, 0),)),
    ("TRITON_FLASHINFER", WIDE, ((10, 0), (10, 3))),
    ("HPC_ATTN", PLAIN, ((9, 0),)),
    ("B12X", PLAIN, ((12, 0), (12, 1))),
    ("FLASH_ATTN_MLA", DENSE_MLA, ((9, 0),)),
    ("FLASHMLA", DENSE_MLA, ((9, 0),)),
    ("FLASHINFER_MLA", DENSE_MLA, ((10, 0), (10, 3))),
    ("TOKENSPEED_MLA", evolve(DENSE_MLA, kv_cache_dtype="fp8"), ((10, 0), (10, 3))),
    ("CUTLASS_MLA", DENSE_MLA, ((10, 0), (10, 3))),
    ("TRITON_MLA", DENSE_MLA, DEVICES),
    ("FLASH_ATTN_MLA_SPARSE", SPARSE_MLA, ((9, 0),)),
    ("FLASHMLA_SPARSE", SPARSE_MLA, ((9, 0), (10, 0), (10, 3))),
    ("FLASHINFER_MLA_SPARSE", SPARSE_MLA, ((10, 0), (10, 3))),
    ("FLASH_ATTN_MLA_SPARSE_FA4", SPARSE_MLA, ((10, 0), (10, 3))),
    ("FLASHINFER_MLA_SPARSE_SM90", SPARSE_MLA, ((9, 0),)),
    ("FLASHINFER_MLA_SPARSE_SM120", SPARSE_MLA, ((12, 0), (12, 1))),
]
LAYERS = {name: layer for name, layer, _ in BACKENDS}


def fields(name, question, device, **settings):
    reasons = reasons_against(name, question, Environment(capability=device, num_heads=32, **settings))
    return [reason.field for reason in reasons]


def test_every_selectable_backend_has_a_row():
    assert sorted(LAYERS) == sorted(SELECTABLE)


@pytest.mark.parametrize(("name", "layer", "served"), BACKENDS, ids=[row[0] for row in BACKENDS])
def test_devices_of_each_backend(name, layer, served):
    assert tuple(device for device in DEVICES if not fields(name, layer, device)) == served


# What is varied, and the backends that still take the layer on a device of theirs.
VARIED = [
    ({"sinks": True}, {"FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "B12X"}),
    (
        {"sliding_window": True},
        {
            "FLASH_ATTN",
            "FLASHINFER",
            "TRITON_ATTN",
            "FLEX_ATTENTION",
            "TRITON_FLASH_ATTN",
            "TRITON_FLASHINFER",
            "B12X",
        },
    ),
    (
        {"non_causal": True},
        {
            "FLASH_ATTN",
            "FLASHINFER",
            "TRITON_ATTN",
            "FLEX_ATTENTION",
            "FLASHINFER_MLA",
            "TOKENSPEED_MLA",
            "TRITON_MLA",
        },
    ),
    (
        {"kind": LayerKind.ENCODER_ONLY_ATTENTION},
        {"FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION"},
    ),
    ({"kind": LayerKind.CROSS_ATTENTION}, {"FLASH_ATTN", "TRITON_ATTN"}),
    ({"dtype": "float32"}, {"TRITON_ATTN", "FLEX_ATTENTION"}),
    (
        {"dtype": "float16"},
        set(LAYERS)
        - {
            "B12X",
            "FLASHMLA_SPARSE",
            "FLASH_ATTN_MLA_SPARSE_FA4",
            "FLASHINFER_MLA_SPARSE_SM90",
            "FLASHINFER_MLA_SPARSE_SM120",
        },
    ),
    (
        {"mm_prefix": True},
        {"FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION", "TRITON_FLASH_ATTN", "TRITON_FLASHINFER"},
    ),
    (
        {"block_size": 16},
        {
            "FLASH_ATTN",
            "FLASHINFER",
            "TRITON_ATTN",
            "FLEX_ATTENTION",
            "TURBOQUANT",
            "TRITON_FLASH_ATTN",
            "B12X",
            "FLASH_ATTN_MLA",
            "TRITON_MLA",
        },
    ),
    ({"block_size": 128}, set(LAYERS)),
    ({"block_size": 24}, {"B12X"}),
]


@pytest.mark.parametrize(("change", "takers"), VARIED, ids=[str(*row[0].items()) for row in VARIED])
def test_which_backends_take_a_layer_with_one_property_changed(change, takers):
    took = {
        name
        for name, layer, devices in BACKENDS
        if any(not fields(name, evolve(layer, **change), device) for device in devices)
    }
    assert took == takers


KV_DTYPES = [
    ("bfloat16", set(LAYERS) - {"TURBOQUANT", "TOKENSPEED_MLA", "FLASHINFER_MLA_SPARSE_SM120"}),
    (
        "fp8",
        set(LAYERS)
        - {
            "FLEX_ATTENTION",
            "TURBOQUANT",
            "HPC_ATTN",
            "FLASH_ATTN_MLA",
            "FLASH_ATTN_MLA_SPARSE",
            "FLASH_ATTN_MLA_SPARSE_FA4",
        },
    ),
    (
        "fp8_e4m3",
        set(LAYERS)
        - {
            "FLEX_ATTENTION",
            "TURBOQUANT",
            "FLASH_ATTN_MLA",
            "FLASHMLA_SPARSE",
            "FLASH_ATTN_MLA_SPARSE",
            "FLASH_ATTN_MLA_SPARSE_FA4",
        },
    ),
    ("fp8_e5m2", {"FLASHINFER", "TRITON_ATTN", "TRITON_FLASHINFER"}),
    ("int8_per_token_head", {"TRITON_ATTN"}),
    ("nvfp4", {"FLASHINFER"}),
    ("nvfp4_4over6", {"FLASHINFER"}),
    ("fp8_ds_mla", {"FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM120"}),
    ("nvfp4_ds_mla", {"FLASHMLA_SPARSE"}),
    ("turboquant_k8v4", {"TURBOQUANT"}),
]


@pytest.mark.parametrize(("kv_cache_dtype", "takers"), KV_DTYPES, ids=[row[0] for row in KV_DTYPES])
def test_which_backends_take_a_cache_of_a_type(kv_cache_dtype, takers):
    took = {
        name
        for name, layer, devices in BACKENDS
        if any(not fields(name, evolve(layer, kv_cache_dtype=kv_cache_dtype), device) for device in devices)
    }
    assert took == takers


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("FLASH_ATTN", {8, 64, 80, 96, 128, 192, 256, 320, 512}),
        ("FLASHINFER", {64, 128, 256, 512}),
        ("TRITON_ATTN", {64, 80, 96, 100, 128, 192, 256, 320, 512, 576}),
        ("FLEX_ATTENTION", {8, 64, 80, 96, 100, 128, 192, 256, 320, 512, 576}),
        ("HPC_ATTN", {128}),
    ],
)
def test_head_sizes_on_hopper(name, sizes):
    tried = (8, 64, 80, 96, 100, 128, 192, 256, 320, 512, 576)
    took = {
        size for size in tried if not fields(name, evolve(PLAIN, head_size=size, v_head_size=size), (9, 0))
    }
    assert took == sizes


def test_flash_attention_takes_wide_heads_only_where_version_4_runs():
    wide = evolve(PLAIN, head_size=320, v_head_size=320)
    assert fields("FLASH_ATTN", wide, (8, 0)) == ["model.config"]
    assert fields("FLASH_ATTN", wide, (10, 0)) == []


@pytest.mark.parametrize(
    ("device", "head_size", "taken"),
    [
        ((8, 9), 128, False),
        ((9, 0), 128, True),
        ((9, 0), 512, True),
        ((9, 0), 320, False),
        ((10, 0), 128, True),
        ((10, 0), 256, False),
        ((12, 0), 128, False),
    ],
)
def test_where_flash_attention_reads_an_fp8_cache(device, head_size, taken):
    layer = evolve(PLAIN, head_size=head_size, v_head_size=head_size, kv_cache_dtype="fp8")
    assert (fields("FLASH_ATTN", layer, device) == []) is taken


@pytest.mark.parametrize(
    ("name", "device", "settings", "taken"),
    [
        ("FLASH_ATTN", (8, 0), {}, False),
        ("FLASH_ATTN", (9, 0), {}, True),
        ("FLASH_ATTN", (9, 0), {"flash_attn_version": 2}, False),
        ("FLASH_ATTN", (12, 0), {}, False),
        ("FLASHINFER", (8, 9), {}, False),
        ("FLASHINFER", (9, 0), {}, True),
        ("FLASHINFER", (12, 0), {}, True),
        ("FLASHINFER", (12, 0), {"cubins": False}, False),
        ("FLASHINFER", (10, 0), {"use_trtllm_attention": False}, False),
        ("TRITON_ATTN", (7, 5), {}, True),
    ],
)
def test_where_sinks_are_served(name, device, settings, taken):
    assert (fields(name, evolve(PLAIN, sinks=True), device, **settings) == []) is taken


@pytest.mark.parametrize(
    ("setting", "value", "field", "takers"),
    [
        (
            "batch_invariant",
            True,
            "engine.env",
            {"FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION", "FLASH_ATTN_MLA", "TRITON_MLA"},
        ),
        (
            "decode_context_parallel_size",
            2,
            "parallel.decode_context_parallel_size",
            set(LAYERS)
            - {
                "TRITON_ATTN",
                "FLEX_ATTENTION",
                "TRITON_FLASH_ATTN",
                "TRITON_FLASHINFER",
                "FLASH_ATTN_MLA_SPARSE",
                "FLASHINFER_MLA_SPARSE_SM90",
                "FLASHINFER_MLA_SPARSE_SM120",
            },
        ),
        (
            "prefill_context_parallel_size",
            2,
            "parallel.prefill_context_parallel_size",
            set(LAYERS) - {"FLASH_ATTN", "TRITON_ATTN", "TRITON_FLASH_ATTN", "TRITON_FLASHINFER"},
        ),
        (
            "adaptive_verification",
            True,
            "speculative.enable_adaptive_verification",
            set(LAYERS) - {"TRITON_FLASH_ATTN", "TRITON_FLASHINFER"},
        ),
    ],
)
def test_which_backends_stand_a_setting_of_the_whole_process(setting, value, field, takers):
    took = set()
    for name, layer, devices in BACKENDS:
        refused = [fields(name, layer, device, **{setting: value}) for device in devices]
        if [] in refused:
            took.add(name)
        else:
            assert all(field in reasons for reasons in refused), name
    assert took == takers


@pytest.mark.parametrize(
    ("name", "dims", "heads", "taken"),
    [
        ("FLASHINFER_MLA", {"qk_nope_head_dim": 192}, 32, True),
        ("FLASHINFER_MLA", {"qk_nope_head_dim": 256}, 32, False),
        ("TOKENSPEED_MLA", {"v_head_dim": 256}, 32, False),
        ("FLASHINFER_MLA_SPARSE", {"qk_nope_head_dim": 192}, 32, True),
        ("FLASHINFER_MLA_SPARSE", {"qk_nope_head_dim": 64}, 32, False),
        ("FLASH_ATTN_MLA_SPARSE_FA4", {}, 128, True),
        ("FLASH_ATTN_MLA_SPARSE_FA4", {}, 12, False),
        ("FLASH_ATTN_MLA_SPARSE_FA4", {"index_topk": 1000}, 16, False),
    ],
)
def test_which_latent_dimensions_blackwell_backends_take(name, dims, heads, taken):
    layer = LAYERS[name]
    layer = evolve(layer, mla=evolve(layer.mla, **dims), num_heads=heads)
    assert (fields(name, layer, (10, 0)) == []) is taken


@pytest.mark.parametrize(
    ("name", "device", "dims", "settings", "taken"),
    [
        ("FLASHINFER_MLA_SPARSE_SM120", (12, 0), {"index_topk": 1024}, {}, False),
        ("FLASHINFER_MLA_SPARSE_SM90", (9, 0), {"kv_lora_rank": 448}, {}, False),
        ("FLASH_ATTN_MLA", (9, 0), {}, {"flash_attn_version": 2}, False),
        ("FLASH_ATTN_MLA_SPARSE_FA4", (10, 0), {}, {"decode_context_parallel_size": 2}, True),
    ],
)
def test_which_latent_dimensions_other_backends_take(name, device, dims, settings, taken):
    layer = LAYERS[name]
    layer = evolve(layer, mla=evolve(layer.mla, **dims))
    assert (fields(name, layer, device, **settings) == []) is taken


def test_a_rope_free_latent_cache_is_flash_mlas_on_hopper_in_bfloat16_only():
    rope_free = evolve(
        SPARSE_MLA, head_size=512, v_head_size=512, mla=evolve(SPARSE_MLA.mla, qk_rope_head_dim=0)
    )
    assert fields("FLASHMLA_SPARSE", rope_free, (9, 0)) == []
    assert fields("FLASHMLA_SPARSE", rope_free, (10, 0)) == ["model.config"]
    assert fields("FLASHMLA_SPARSE", evolve(rope_free, kv_cache_dtype="fp8"), (9, 0)) == ["model.config"]


@pytest.mark.parametrize(
    ("device", "kv_cache_dtype", "change", "taken"),
    [
        ((9, 0), "nvfp4_4over6", {}, False),
        ((10, 0), "nvfp4_4over6", {}, True),
        ((9, 0), "nvfp4", {"head_size": 64, "v_head_size": 64}, False),
        ((10, 0), "nvfp4", {"head_size": 64, "v_head_size": 64}, True),
        ((12, 0), "nvfp4", {"sinks": True}, False),
    ],
)
def test_where_flashinfer_reads_an_nvfp4_cache(device, kv_cache_dtype, change, taken):
    layer = evolve(PLAIN, kv_cache_dtype=kv_cache_dtype, **change)
    assert (fields("FLASHINFER", layer, device) == []) is taken


def test_flashinfer_reads_nvfp4_on_blackwell_with_its_kernels_only():
    layer = evolve(PLAIN, kv_cache_dtype="nvfp4")
    assert fields("FLASHINFER", layer, (10, 0), cubins=False) == ["model.kv_cache_dtype"]


def test_flash_attention_takes_two_way_image_tokens_in_version_4_only():
    images = evolve(PLAIN, mm_prefix=True)
    assert fields("FLASH_ATTN", images, (9, 0)) == ["model.config"]
    assert fields("FLASH_ATTN", images, (10, 0)) == []
    wide = evolve(WIDE, head_size=512, v_head_size=512, mm_prefix=True, kv_cache_dtype="fp8")
    assert fields("FLASH_ATTN", wide, (9, 0)) == ["model.kv_cache_dtype"]


@pytest.mark.parametrize("name", ["TRITON_ATTN", "TRITON_ATTN_DIFFKV", "TRITON_MLA"])
def test_triton_refuses_an_fp8_cache_only_when_the_layer_is_built(name):
    layer = evolve(PLAIN, kv_cache_dtype="fp8_e5m2")
    refused = refused_when_built(name, layer, Environment(capability=(8, 6)))
    assert refused.field == "model.kv_cache_dtype"
    assert "8.9" in refused.text
    assert refused_when_built(name, layer, Environment(capability=(8, 9))) is None


def test_flash_attention_for_wide_keys_refuses_fp8_where_its_version_falls_to_2():
    layer = evolve(PLAIN, head_size=192, kv_cache_dtype="fp8")
    assert refused_when_built("FLASH_ATTN_DIFFKV", layer, Environment(capability=(9, 0))) is None
    refused = refused_when_built("FLASH_ATTN_DIFFKV", layer, Environment(capability=(10, 0)))
    assert refused.field == "model.kv_cache_dtype"
