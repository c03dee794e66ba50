"""Each engine takes its own settings and refuses those of another, with the place in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from planner import Deployment, DocumentError, PlanError, compile_plan, load_deployment, load_plan
from planner.documents.deployment import EngineSection, ModelSection, ParallelSection, SchedulerSection
from planner.documents.engine_sections import SglangSection
from tests.planner.engines.documents import deployment

HEADER = "apiVersion: graphplan/v1\nkind: Deployment\n"


@pytest.mark.parametrize(
    ("engine", "sections", "key", "message"),
    [
        ("vllm", {"sglang": {}}, "sglang", "has settings of sglang, but engine.name is vllm"),
        ("sglang", {"tensorrt_llm": {}}, "tensorrt_llm", "has settings of tensorrt-llm"),
        ("vllm", {"parallel": {"enable_dp_attention": True}}, "parallel.enable_dp_attention", "unknown key"),
        (
            "sglang",
            {"model": {"enforce_eager": True}},
            "model.enforce_eager",
            "write sglang.disable_cuda_graph",
        ),
        ("sglang", {"compilation": {"mode": 3}}, "compilation.mode", "sglang has no such setting; drop it"),
        ("sglang", {"compilation": {"backend": "inductor"}}, "compilation.backend", "no such setting"),
        ("sglang", {"engine": {"runner": "v2"}}, "engine.runner", "no such setting"),
        (
            "sglang",
            {"scheduler": {"async_scheduling": False}},
            "scheduler.async_scheduling",
            "no such setting",
        ),
        ("sglang", {"attention": {"backend": "fa3"}}, "attention.backend", "write model.attention_backend"),
        (
            "sglang",
            {"lora": {"specialize_active_lora": True}},
            "lora.specialize_active_lora",
            "no such setting",
        ),
        (
            "tensorrt-llm",
            {"parallel": {"data_parallel_size": 2}},
            "parallel.data_parallel_size",
            "write parallel.enable_dp_attention",
        ),
        (
            "tensorrt-llm",
            {"compilation": {"cudagraph_capture_sizes": [1]}},
            "compilation.cudagraph_capture_sizes",
            "write tensorrt_llm.cuda_graph_config.batch_sizes",
        ),
        ("vllm", {"scheduler": {"max_num_batched_tokens": -1}}, "scheduler.max_num_batched_tokens", "is 1"),
        (
            "tensorrt-llm",
            {"scheduler": {"max_num_batched_tokens": 0}},
            "scheduler.max_num_batched_tokens",
            "is 1",
        ),
        (
            "sglang",
            {"scheduler": {"max_num_batched_tokens": -2}},
            "scheduler.max_num_batched_tokens",
            "is -1",
        ),
    ],
)
def test_a_setting_of_another_engine_is_an_error(
    engine: str, sections: dict[str, Any], key: str, message: str
) -> None:
    with pytest.raises(DocumentError, match=message) as refusal:
        deployment(engine, **sections)
    assert refusal.value.key == key


def test_the_error_says_where(tmp_path: Path) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(f"{HEADER}engine: {{name: sglang}}\nmodel:\n  enforce_eager: true\n", encoding="utf-8")
    with pytest.raises(DocumentError) as refusal:
        load_deployment(file)
    assert (refusal.value.line, refusal.value.column) == (5, 3)


def test_a_plan_is_checked_as_its_deployment_is() -> None:
    plan = {"apiVersion": "graphplan/v1", "kind": "Plan", "graphs": {}, "deployment": {"sglang": {}}}
    with pytest.raises(DocumentError) as refusal:
        load_plan(plan)
    assert refusal.value.key == "deployment.sglang"


@pytest.mark.parametrize(
    "made",
    [
        Deployment(sglang=SglangSection()),
        Deployment(engine=EngineSection(name="sglang"), model=ModelSection(enforce_eager=True)),
        Deployment(parallel=ParallelSection(enable_dp_attention=False)),
        Deployment(scheduler=SchedulerSection(max_num_batched_tokens=0)),
    ],
)
def test_what_is_made_in_python_is_checked_at_compile_time(made: Deployment) -> None:
    with pytest.raises(PlanError) as refusal:
        compile_plan(made)
    assert refusal.value.fields


def test_settings_that_engines_share_are_taken() -> None:
    sections = {
        "model": {"max_model_len": 4096, "dtype": "bfloat16", "kv_cache_dtype": "fp8"},
        "parallel": {"tensor_parallel_size": 2},
        "scheduler": {"max_num_seqs": 8, "max_num_batched_tokens": 2048},
        "device": {"name": "H200"},
    }
    for engine in ("vllm", "sglang", "tensorrt-llm"):
        assert compile_plan(deployment(engine, **sections)).entries()


def test_the_newest_version_is_taken_where_none_is_named() -> None:
    plan = compile_plan(deployment("sglang"))
    (version,) = (one for one in plan.decisions if one.path == "engine.version")
    assert version.became == "0.5.23"
    named = evolve(plan.deployment, engine=EngineSection(name="sglang", version="0.5.23"))
    assert compile_plan(named).graphs == plan.graphs


def test_a_version_without_rules_is_refused_with_those_that_have_them() -> None:
    with pytest.raises(PlanError, match=r"supported versions: 0\.5\.23"):
        compile_plan(deployment("sglang", engine={"version": "0.4.0"}))
    with pytest.raises(PlanError, match="those are: vllm, sglang, tensorrt-llm"):
        compile_plan(deployment("lmdeploy"))
