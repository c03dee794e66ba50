"""What a backend's name alone tells, where a deployment gives no model."""

import pytest

from planner.backends.environment import Environment
from planner.backends.named import support_of_backend_name
from planner.backends.support import BACKEND_NAMES
from planner.errors import PlanError
from planner.modes import AttentionSupport


def named(name, device=(9, 0), **settings):
    return support_of_backend_name(name, Environment(capability=device, **settings))


@pytest.mark.parametrize(
    ("name", "device", "settings", "support"),
    [
        ("FLASH_ATTN", (9, 0), {}, "ALWAYS"),
        ("FLASH_ATTN", (8, 0), {}, "UNIFORM_BATCH"),
        ("flash_attn", (12, 0), {}, "UNIFORM_BATCH"),
        ("FLASH_ATTN", (10, 0), {"batch_invariant": True}, "UNIFORM_BATCH"),
        ("FLASHINFER", (9, 0), {}, "UNIFORM_BATCH"),
        ("FLASHINFER", (10, 0), {"decode_context_parallel_size": 2}, "UNIFORM_SINGLE_TOKEN_DECODE"),
        ("FLASHINFER", (10, 0), {"cubins": False}, "UNIFORM_SINGLE_TOKEN_DECODE"),
        ("HPC_ATTN", (9, 0), {"num_speculative_tokens": 2}, "UNIFORM_BATCH"),
        ("DEEPSEEK_V32_INDEXER", (9, 0), {"num_speculative_tokens": 2}, "ALWAYS"),
        ("GDN_ATTN", (9, 0), {}, "UNIFORM_BATCH"),
        ("TRITON_FLASH_ATTN", (9, 0), {}, "NEVER"),
    ],
)
def test_level_by_name_and_device(name, device, settings, support):
    assert named(name, device, **settings).support is AttentionSupport[support]


@pytest.mark.parametrize(
    ("name", "device", "word"),
    [
        ("FLASHINFER", (10, 0), "KV heads"),
        ("TRITON_FLASHINFER", (10, 0), "window"),
        ("ROCM_ATTN", (9, 0), "not modelled"),
    ],
)
def test_what_the_name_does_not_tell_is_recorded(name, device, word):
    (assumption,) = named(name, device).assumptions
    assert assumption.startswith(name)
    assert word in assumption


@pytest.mark.parametrize(("name", "device"), [("FLASH_ATTN", (9, 0)), ("FLASHINFER", (8, 0))])
def test_nothing_is_assumed_where_the_name_tells_all(name, device):
    assert named(name, device).assumptions == ()


def test_a_typo_is_answered_with_the_nearest_name():
    with pytest.raises(PlanError, match="did you mean FLASHINFER") as caught:
        support_of_backend_name(
            "FLASHINFR", Environment(capability=(9, 0)), field="speculative.attention_backend"
        )
    assert caught.value.fields == ("speculative.attention_backend",)


def test_a_backend_that_the_device_does_not_run_is_refused():
    with pytest.raises(PlanError, match=r"FLASHMLA runs on compute capability 9\.x, not 10\.0") as caught:
        named("FLASHMLA", (10, 0))
    assert caught.value.fields == ("model.attention_backend", "device.compute_capability")


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("FLASH_ATTN", "8.0 and above"),
        ("FLASHMLA_SPARSE", "9.x to 10.x"),
        ("HPC_ATTN", "9.0"),
        ("B12X", "12.0 to 12.1"),
    ],
)
def test_messages_say_which_devices_run_a_backend(name, devices):
    with pytest.raises(PlanError) as caught:
        named(name, (7, 5))
    assert f"runs on compute capability {devices}, not 7.5" in caught.value.message


@pytest.mark.parametrize("name", BACKEND_NAMES)
def test_every_known_name_has_a_level_on_some_device(name):
    levels = set()
    for device in ((9, 0), (10, 0), (12, 0)):
        try:
            levels.add(named(name, device).support)
        except PlanError:
            continue
    assert levels
