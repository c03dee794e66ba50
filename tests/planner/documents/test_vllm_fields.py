"""The table of vLLM's settings covers the document classes, and fits their names."""

import pytest
from attrs import fields

from planner.documents.data import UNWRITTEN
from planner.documents.deployment import (
    AttentionSection,
    CompilationSection,
    KvTransferSection,
    LoraSection,
    ParallelSection,
    SchedulerSection,
    SpeculativeSection,
)
from planner.documents.reader import read_yaml
from planner.documents.vllm_fields import VllmField, vllm_fields, vllm_value

SECTIONS = (
    AttentionSection,
    CompilationSection,
    KvTransferSection,
    LoraSection,
    ParallelSection,
    SchedulerSection,
    SpeculativeSection,
)
OWN = {"config", "attention_support", "enable_dp_attention"}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_of_a_section_is_a_setting_of_vllm_or_the_projects_own(section):
    names = {field.name for field in fields(section)} - UNWRITTEN - OWN
    assert names <= set(vllm_fields(section.vllm_config))


def test_derived_and_private_fields_of_vllm_are_no_settings():
    parallel = vllm_fields("ParallelConfig")
    assert "world_size" not in parallel
    assert not any(name.startswith("_") for name in parallel)


def test_types_are_those_of_vllm():
    parallel, compilation = vllm_fields("ParallelConfig"), vllm_fields("CompilationConfig")
    assert parallel["node_rank"] == VllmField(type="int", bounds={"ge": 0})
    assert parallel["numa_bind_cpus"] == VllmField(type="list", items="str", nullable=True)
    assert parallel["eplb_config"] == VllmField(type="dict")
    assert compilation["compile_sizes"] == VllmField(type="list", items="int|str", nullable=True)
    assert vllm_fields("LoRAConfig")["max_lora_rank"].choices[:3] == (1, 8, 16)
    assert vllm_fields("SpeculativeConfig")["quantization"] == VllmField(type="str", nullable=True)
    assert vllm_fields("AttentionConfig")["mla_prefill_backend"] == VllmField(type="str", nullable=True)
    assert "kv_ip" not in vllm_fields("KVTransferConfig")


@pytest.mark.parametrize(
    ("text", "known", "value"),
    [
        ("0.30", VllmField(type="str"), "0.30"),
        ("1", VllmField(type="float"), 1.0),
        ("null", VllmField(type="int", nullable=True), None),
        ("[1, null]", VllmField(type="any"), [1, None]),
        ("[no]", VllmField(type="list", items="str"), ["no"]),
        ("{a: no}", VllmField(type="dict", items="str"), {"a": "no"}),
        ("[8, x]", VllmField(type="list", items="int|str"), [8, "x"]),
    ],
)
def test_values_are_read_by_their_type(text, known, value):
    assert vllm_value(read_yaml(f"a: {text}").values["a"], known) == value
