"""FlashAttention's version for a layer, and its level for the process."""

import pytest

from planner.backends.environment import Environment
from planner.backends.flash_attn import flash_attn_support, flash_attn_version, uses_hd256_kernel
from planner.backends.question import Question
from planner.models.layers import LayerKind
from planner.modes import AttentionSupport

DEVICES = ((7, 5), (8, 0), (9, 0), (10, 0), (12, 0))


def question(head_size=128, v_head_size=None, **needs):
    return Question(
        kind=LayerKind.FULL_ATTENTION,
        head_size=head_size,
        v_head_size=v_head_size or head_size,
        num_heads=0,
        dtype="bfloat16",
        **needs,
    )


VERSIONS = [
    ("default", None, {}, (None, 2, 3, 4, 2)),
    ("head 64", question(64), {}, (None, 2, 3, 4, 2)),
    ("head 96", question(96), {}, (None, 2, 3, 4, 2)),
    ("head 128", question(128), {}, (None, 2, 3, 4, 2)),
    ("head 192", question(192), {}, (None, 2, 3, 2, 2)),
    ("head 192 with values of 128", question(192, 128), {}, (None, 2, 3, 4, 2)),
    ("head 256, block size open", question(256), {}, (None, 2, 3, 4, 2)),
    ("head 256, block 128", question(256, block_size=128), {}, (None, 2, 3, 4, 2)),
    ("head 256, block 16", question(256, block_size=16), {}, (None, 2, 3, 2, 2)),
    ("head 256 with softcap", question(256, softcap=True), {}, (None, 2, 3, 2, 2)),
    ("head 256 with sinks", question(256, sinks=True), {}, (None, 2, 3, 2, 2)),
    ("head 320", question(320), {}, (None, 2, 4, 2, 2)),
    ("head 512", question(512), {}, (None, 2, 4, 2, 2)),
    ("sinks, narrower values", question(192, 128, sinks=True), {}, (None, 2, 4, 4, 2)),
    ("forced 2", question(128), {"flash_attn_version": 2}, (None, 2, 2, 2, 2)),
    ("forced 3", question(128), {"flash_attn_version": 3}, (None, None, 3, 4, 2)),
    ("forced 4", question(128), {"flash_attn_version": 4}, (None, None, 4, 4, None)),
    ("batch invariance", question(128), {"batch_invariant": True}, (None, 2, 3, 2, 2)),
]


@pytest.mark.parametrize(
    ("layer", "settings", "versions"), [row[1:] for row in VERSIONS], ids=[row[0] for row in VERSIONS]
)
def test_version_on_each_family(layer, settings, versions):
    got = tuple(flash_attn_version(Environment(capability=device, **settings), layer) for device in DEVICES)
    assert got == versions


@pytest.mark.parametrize(
    ("device", "settings", "always"),
    [
        ((8, 9), {}, False),
        ((9, 0), {}, True),
        ((9, 0), {"batch_invariant": True}, True),
        ((9, 0), {"flash_attn_version": 2}, False),
        ((9, 0), {"flash_attn_version": 3}, True),
        ((10, 0), {}, True),
        ((10, 0), {"batch_invariant": True}, False),
        ((10, 0), {"flash_attn_version": 3}, True),
        ((10, 0), {"flash_attn_version": 2}, False),
        ((12, 0), {}, False),
        ((12, 0), {"flash_attn_version": 3}, False),
        ((12, 0), {"flash_attn_version": 4}, False),
    ],
)
def test_level_of_the_process_ignores_the_heads_of_layers(device, settings, always):
    level = flash_attn_support(Environment(capability=device, **settings))
    assert level is (AttentionSupport.ALWAYS if always else AttentionSupport.UNIFORM_BATCH)


@pytest.mark.parametrize(
    ("device", "settings", "needs", "used"),
    [
        ((10, 0), {}, {}, True),
        ((10, 0), {}, {"kv_cache_dtype": "fp8"}, False),
        ((10, 0), {}, {"mm_prefix": True}, False),
        ((10, 0), {"decode_context_parallel_size": 2}, {}, False),
        ((10, 0), {"flash_attn_version": 2}, {}, False),
        ((9, 0), {}, {}, False),
    ],
)
def test_the_kernel_for_heads_of_256_serves_plain_layers_of_blackwell_only(device, settings, needs, used):
    assert uses_hd256_kernel(Environment(capability=device, **settings), question(256, **needs)) is used
