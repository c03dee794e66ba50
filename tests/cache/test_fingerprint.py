"""Fingerprints: every field counts, nothing else does, and a difference is told."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve, fields

from cache.fingerprint import (
    UNKNOWN,
    EnvironmentFingerprint,
    Mismatch,
    ModelFingerprint,
    mismatches,
)
from planner import load_deployment
from tests.cache.samples import ENVIRONMENT, MODEL

Fingerprint = EnvironmentFingerprint | ModelFingerprint

TEXT_FIELDS = [
    pytest.param(sample, field.name, id=f"{type(sample).__name__}.{field.name}")
    for sample in (ENVIRONMENT, MODEL)
    for field in fields(type(sample))
    if isinstance(getattr(sample, field.name), str)
]
MAPPINGS = [(ENVIRONMENT, "switches"), (MODEL, "parallel"), (MODEL, "speculative")]


def test_no_field_is_left_out_of_these_tests() -> None:
    tested = {(type(param.values[0]), param.values[1]) for param in TEXT_FIELDS}
    tested |= {(type(sample), name) for sample, name in MAPPINGS}
    for cls in (EnvironmentFingerprint, ModelFingerprint):
        assert {field.name for field in fields(cls)} == {name for owner, name in tested if owner is cls}


@pytest.mark.parametrize(("sample", "name"), TEXT_FIELDS)
def test_every_field_counts(sample: Fingerprint, name: str) -> None:
    before = getattr(sample, name)
    changed = evolve(sample, **{name: "other"})
    assert changed.digest != sample.digest
    assert mismatches(sample, changed) == (Mismatch(name, before, "other"),)
    assert str(mismatches(sample, changed)[0]) == f"{name}: saved {before}, current other"
    assert mismatches(sample, changed)[0].is_hard


@pytest.mark.parametrize(("sample", "name"), TEXT_FIELDS)
def test_what_is_not_known_equals_nothing_and_is_soft(sample: Fingerprint, name: str) -> None:
    unknown = evolve(sample, **{name: UNKNOWN})
    for saved, current in ((sample, unknown), (unknown, sample), (unknown, unknown)):
        (found,) = mismatches(saved, current)
        assert (found.field, found.is_hard) == (name, False)


@pytest.mark.parametrize(("sample", "name"), MAPPINGS)
def test_every_setting_counts_by_its_name(sample: Fingerprint, name: str) -> None:
    settings = getattr(sample, name)
    key = next(iter(settings))
    changed = evolve(sample, **{name: {**settings, key: "other"}})
    gone = evolve(sample, **{name: {other: value for other, value in settings.items() if other != key}})
    added = evolve(sample, **{name: {**settings, "new": "1"}})
    assert len({one.digest for one in (sample, changed, gone, added)}) == 4
    assert mismatches(sample, changed) == (Mismatch(f"{name}.{key}", settings[key], "other"),)
    assert mismatches(sample, gone) == (Mismatch(f"{name}.{key}", settings[key], "none"),)
    assert mismatches(sample, added) == (Mismatch(f"{name}.new", "none", "1"),)
    assert all(one.is_hard for one in mismatches(sample, gone))


def test_the_same_circumstances_have_no_mismatch() -> None:
    assert mismatches(ENVIRONMENT, evolve(ENVIRONMENT)) == ()
    assert mismatches(MODEL, evolve(MODEL)) == ()


CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 2}
BASE: dict[str, Any] = {
    "model": {"config": CONFIG, "attention_support": "ALWAYS"},
    "parallel": {"tensor_parallel_size": 2},
    "speculative": {"method": "dflash", "num_speculative_tokens": 3},
}


def of(code: str = "c", **changed: dict[str, Any]) -> ModelFingerprint:
    sections = {name: {**BASE.get(name, {}), **changed.get(name, {})} for name in (*BASE, *changed)}
    document = {"apiVersion": "graphplan/v1", "kind": "Deployment", **sections}
    return ModelFingerprint.of(load_deployment(document), code=code)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"model": {"config": {**CONFIG, "num_hidden_layers": 3}}}, "config"),
        ({"model": {"dtype": "float16"}}, "dtype"),
        ({"model": {"kv_cache_dtype": "fp8"}}, "kv_cache_dtype"),
        ({"model": {"config": {**CONFIG, "quantization_config": {"quant_method": "fp8"}}}}, "quantization"),
        ({"engine": {"env": {"VLLM_PP_LAYER_PARTITION": "1,1"}}}, "pipeline_partition"),
        ({"parallel": {"tensor_parallel_size": 4}}, "parallel.tensor_parallel_size"),
        ({"parallel": {"pipeline_parallel_size": 2}}, "parallel.pipeline_parallel_size"),
        ({"parallel": {"decode_context_parallel_size": 2}}, "parallel.decode_context_parallel_size"),
        ({"parallel": {"enable_expert_parallel": True}}, "parallel.enable_expert_parallel"),
        ({"parallel": {"disable_custom_all_reduce": True}}, "parallel.disable_custom_all_reduce"),
        ({"speculative": {"method": "eagle3"}}, "speculative.method"),
        ({"speculative": {"num_speculative_tokens": 4}}, "speculative.num_speculative_tokens"),
        ({"speculative": {"quantization": "fp8"}}, "speculative.quantization"),
        ({"speculative": {"config": {**CONFIG, "num_hidden_layers": 1}}}, "speculative.config"),
        ({"speculative": {"model": "org/draft"}}, "speculative.model"),
    ],
    ids=str,
)
def test_what_a_deployment_says_of_its_model_counts(changed: dict[str, Any], field: str) -> None:
    found = mismatches(of(), of(**changed))
    assert field in [one.field for one in found]
    assert all(one.is_hard for one in found)


def test_the_code_of_the_forward_counts() -> None:
    assert [one.field for one in mismatches(of("a"), of("b"))] == ["code"]


def test_speculation_itself_counts() -> None:
    document = {"apiVersion": "graphplan/v1", "kind": "Deployment", "model": {"config": CONFIG}}
    without = ModelFingerprint.of(load_deployment(document), code="c")
    with_it = ModelFingerprint.of(load_deployment({**document, "speculative": {}}), code="c")
    assert mismatches(without, with_it) != ()


@pytest.mark.parametrize(
    "volatile",
    [
        {"parallel": {"master_addr": "host-7", "master_port": 29501, "node_rank": 3}},
        {"parallel": {"data_parallel_master_ip": "10.0.0.7", "data_parallel_master_port": 1}},
        {"parallel": {"numa_bind_nodes": [1], "data_parallel_rank": 1}},
        {"speculative": {"model": "/mnt/checkpoints/draft"}},
        {"speculative": {"draft_load_config": {"download_dir": "/tmp"}}},
        {"engine": {"env": {"VLLM_PORT": "8000", "VLLM_HOST_IP": "10.0.0.7"}}},
        {"scheduler": {"stream_interval": 4}},
    ],
    ids=str,
)
def test_ports_paths_and_host_names_do_not_count(volatile: dict[str, Any]) -> None:
    assert mismatches(of(), of(**volatile)) == ()
    assert of().digest == of(**volatile).digest


def test_a_deployment_without_a_model_is_never_taken_for_another() -> None:
    unknown = ModelFingerprint.of(
        load_deployment({"apiVersion": "graphplan/v1", "kind": "Deployment"}), code="c"
    )
    assert [(one.field, one.is_hard) for one in mismatches(unknown, unknown)] == [("config", False)]
    known = evolve(unknown, config="a" * 64)
    assert mismatches(known, known) == ()


def test_what_the_caller_knows_better_wins() -> None:
    document = {"apiVersion": "graphplan/v1", "kind": "Deployment"}
    fingerprint = ModelFingerprint.of(load_deployment(document), code="c", config="x", dtype="float32")
    assert (fingerprint.config, fingerprint.dtype) == ("x", "float32")
