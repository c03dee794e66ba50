"""Exports of plans: what is written for whom, what is told beside it, and what is refused."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from planner import Plan, compile_plan, load_deployment, load_plan
from planner.documents.deployment import CaptureSection
from planner.documents.plan import TARGET
from planner.engines.shared import SGLANG, TENSORRT_LLM, VLLM, engine_name
from planner.errors import ExportError, PlanError
from planner.exporters.export import export
from planner.exporters.exported import ARGS, CONFIG, FORMATS, JSON
from planner.modes import AttentionSupport
from tests.planner.exporters.round_trip import assert_same_plan, of_the_same_model, started
from tests.planner.policies.documents import compiled, counted, deployed, sizes_of

PLANS = Path(__file__).resolve().parents[3] / "plans"
SHIPPED = sorted((PLANS / "deployments").glob("*.yaml"))


def plan_of(**sections: Any) -> Plan:
    return compile_plan(
        load_deployment({"apiVersion": "graphplan/v1", "kind": "Deployment", "name": "x", **sections})
    )


def by_hand(**graphs: list[dict[str, Any]]) -> Plan:
    return load_plan({"apiVersion": "graphplan/v1", "kind": "Plan", "graphs": graphs})


@pytest.mark.parametrize("source", SHIPPED, ids=lambda path: path.stem)
def test_shipped_deployments_go_around(source: Path, tmp_path: Path) -> None:
    plan = compile_plan(load_deployment(source))
    exported = export(plan, engine_name(plan.deployment), CONFIG)
    again = of_the_same_model(started(exported, CONFIG, tmp_path), plan.deployment)
    assert_same_plan(compile_plan(again), plan)


def test_defaults_stay_defaults_and_are_written_out_if_pinned() -> None:
    plan = plan_of(scheduler={"max_num_seqs": 6})
    assert dict(export(plan, VLLM, ARGS).settings) == {"max-num-seqs": 6}
    pinned = export(plan, VLLM, ARGS, pinned=True).settings["compilation-config"]
    assert pinned["cudagraph_capture_sizes"] == list(sizes_of(plan))
    assert pinned["cudagraph_mode"] == "FULL_AND_PIECEWISE"


def test_sizes_stay_those_of_the_rules_where_decode_is_rounded_up() -> None:
    plan = plan_of(
        speculative={"method": "eagle3", "num_speculative_tokens": 2},
        compilation={"cudagraph_capture_sizes": [4, 8, 32]},
    )
    assert {entry.num_tokens for entry in plan.entries()} > {4, 8, 32}
    exported = export(plan, VLLM, ARGS, pinned=True)
    assert exported.settings["compilation-config"]["cudagraph_capture_sizes"] == [4, 8, 32]


def test_the_three_forms_say_the_same() -> None:
    exported = export(plan_of(scheduler={"max_num_seqs": 6}, lora={"max_loras": 2}), VLLM, ARGS)
    assert exported.text(ARGS) == "--max-num-seqs 6 --enable-lora --max-loras 2\n"
    assert json.loads(exported.text(JSON)) == {"max-num-seqs": 6, "enable-lora": True, "max-loras": 2}
    assert exported.text(CONFIG) == "max-num-seqs: 6\nenable-lora: true\nmax-loras: 2\n"
    assert export(plan_of(), VLLM, CONFIG).text(CONFIG) == "{}\n"


def test_values_survive_the_shell() -> None:
    exported = export(plan_of(speculative={"method": "ngram", "num_speculative_tokens": 3}), VLLM, ARGS)
    flag, value = shlex.split(exported.text(ARGS))
    assert flag == "--speculative-config"
    assert json.loads(value) == {"method": "ngram", "num_speculative_tokens": 3}
    whole = plan_of(engine={"name": "sglang"}, scheduler={"max_num_batched_tokens": -1})
    assert export(whole, SGLANG, ARGS).text(ARGS) == "--chunked-prefill-size=-1\n"


def test_the_whole_command_line_has_the_environment_and_the_model() -> None:
    v1 = export(plan_of(engine={"runner": "v1"}), VLLM, ARGS)
    assert v1.command("a/b c") == "VLLM_USE_V2_MODEL_RUNNER=0 vllm serve 'a/b c'\n"
    sglang = export(plan_of(engine={"name": "sglang"}, sglang={"model_path": "old"}), SGLANG, ARGS)
    assert sglang.command("new") == "sglang serve --model-path new\n"
    trt = export(plan_of(engine={"name": "tensorrt-llm"}, scheduler={"max_num_seqs": 4}), TENSORRT_LLM, ARGS)
    assert trt.command("new") == "trtllm-serve new --max_batch_size 4\n"


def test_offline_defaults_are_written_out_for_a_server(tmp_path: Path) -> None:
    plan = plan_of(engine={"usage": "offline"}, device={"name": "H200"})
    exported = export(plan, VLLM, ARGS)
    resolved = plan.resolved[TARGET]
    assert exported.settings["max-num-seqs"] == resolved.max_num_seqs
    assert exported.settings["max-num-batched-tokens"] == resolved.max_num_batched_tokens
    assert "engine.usage: offline" in exported.notes[0]
    again = of_the_same_model(started(exported, ARGS, tmp_path), plan.deployment)
    assert_same_plan(compile_plan(again), plan)


def test_what_a_server_finds_out_itself_is_told() -> None:
    shipped = load_deployment(PLANS / "deployments" / "qwen3-8b-dflash.yaml")
    plan = compile_plan(
        evolve(
            shipped,
            model=evolve(shipped.model, attention_support=AttentionSupport.ALWAYS),
            capture=CaptureSection(max_graphs=4),
        )
    )
    notes = "\n".join(export(plan, VLLM, ARGS).notes)
    assert "model.attention_support: ALWAYS: vllm serve has no flag for it" in notes
    assert "speculative.model is not given" in notes
    assert "capture.max_graphs has no effect" in notes


@pytest.mark.parametrize("form", FORMATS)
def test_sizes_of_a_policy_are_written_out(form: str, tmp_path: Path) -> None:
    deployment = deployed(
        "covering",
        scheduler={"max_num_seqs": 40},
        speculative={"method": "eagle3", "num_speculative_tokens": 6},
        capture={"max_padding": 0.3},
    )
    plan = compile_plan(deployment)
    exported = export(plan, VLLM, form)
    assert exported.settings["compilation-config"]["cudagraph_capture_sizes"] == list(sizes_of(plan))
    assert "capture.policy: covering: its sizes are written out" in exported.notes
    again = of_the_same_model(started(exported, form, tmp_path), plan.deployment)
    assert dict(compile_plan(again).graphs) == dict(plan.graphs)


def test_sizes_for_traffic_are_written_out(tmp_path: Path) -> None:
    deployment = deployed(
        "traffic", scheduler={"max_num_seqs": 40}, capture={"max_graphs": 5}, model={"dtype": "bfloat16"}
    )
    plan = compile_plan(deployment, histogram=counted({3: 10, 9: 200, 21: 50, 40: 3}))
    exported = export(plan, VLLM, ARGS)
    again = of_the_same_model(started(exported, ARGS, tmp_path), plan.deployment)
    assert dict(compile_plan(again).graphs) == dict(plan.graphs)
    assert exported.settings["compilation-config"]["cudagraph_capture_sizes"] == list(sizes_of(plan))


def test_sizes_of_a_policy_on_the_v1_runner_are_written_out(tmp_path: Path) -> None:
    plan = compiled(
        "covering",
        engine={"runner": "v1"},
        scheduler={"max_num_seqs": 24},
        speculative={"method": "eagle3", "num_speculative_tokens": 2},
    )
    exported = export(plan, VLLM, CONFIG)
    again = of_the_same_model(started(exported, CONFIG, tmp_path), plan.deployment)
    assert dict(compile_plan(again).graphs) == dict(plan.graphs)


def test_a_plan_by_hand_is_covered_and_what_is_captured_beyond_it_is_listed(tmp_path: Path) -> None:
    plan = by_hand(
        target=[
            {"mode": "PIECEWISE", "num_tokens": 64},
            {"mode": "FULL", "num_tokens": 4, "num_reqs": 4, "uniform_token_count": 1},
        ]
    )
    exported = export(plan, VLLM, CONFIG)
    assert exported.settings["compilation-config"] == {
        "cudagraph_mode": "FULL_AND_PIECEWISE",
        "cudagraph_capture_sizes": [4, 64],
    }
    found = compile_plan(started(exported, CONFIG, tmp_path))
    assert set(found.entries()) > set(plan.entries())
    assert exported.notes == (
        "vllm captures 1 graph of target beyond the plan: FULL, requests of 1, 64 tokens",
        "vllm captures 1 graph of target beyond the plan: PIECEWISE, 4 tokens",
    )


def test_graphs_that_were_taken_out_of_a_compiled_plan_are_not_asked_for() -> None:
    plan = plan_of(scheduler={"max_num_seqs": 8})
    fewer = evolve(
        plan, graphs={TARGET: tuple(entry for entry in plan.entries() if entry.num_tokens in (2, 8))}
    )
    exported = export(fewer, VLLM, ARGS)
    assert exported.settings["compilation-config"]["cudagraph_capture_sizes"] == [2, 8]
    assert not [note for note in exported.notes if "beyond" in note]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (
            {"mode": "FULL", "num_tokens": 32, "num_reqs": 4, "uniform_token_count": 8},
            "FULL 32 tokens, 4 requests of 8 by the plan's settings; requests of several tokens follow from",
        ),
        ({"mode": "PIECEWISE", "num_tokens": 32, "num_active_loras": 2}, "cases of LoRA follow from lora"),
        (
            {"mode": "FULL", "num_tokens": 8, "num_reqs": 8, "uniform_token_count": 1, "num_ubatches": 2},
            "microbatches follow from parallel",
        ),
        ({"mode": "FULL", "num_tokens": 32, "num_reqs": 4}, "its graphs follow from sizes and a mode"),
    ],
)
def test_a_graph_that_no_setting_gives_is_refused(entry: dict[str, Any], reason: str) -> None:
    with pytest.raises(ExportError, match=reason):
        export(by_hand(target=[entry]), VLLM, ARGS)


def test_a_prologue_without_its_method_is_refused() -> None:
    entry = {"mode": "FULL", "num_tokens": 4, "num_reqs": 4, "uniform_token_count": 1}
    prologue = {"prologue": {"kind": "dflash_context_kv", "num_context_tokens": 4}}
    with pytest.raises(ExportError, match=r"with dflash_context_kv .*; a prologue follows from speculative"):
        export(by_hand(target=[entry], draft=[{**entry, **prologue}]), VLLM, ARGS)


def test_a_plan_without_a_target_is_refused() -> None:
    plan = by_hand(draft=[{"mode": "FULL", "num_tokens": 8, "num_reqs": 8, "uniform_token_count": 1}])
    for engine in (VLLM, SGLANG):
        with pytest.raises(ExportError, match="the plan has no family target"):
            export(plan, engine, ARGS)


def test_a_deployment_that_its_engine_refuses_is_refused_as_by_compile() -> None:
    deployment = load_deployment(
        {"apiVersion": "graphplan/v1", "kind": "Deployment", "compilation": {"max_cudagraph_capture_size": 0}}
    )
    with pytest.raises(PlanError) as refused:
        compile_plan(deployment)
    with pytest.raises(PlanError) as found:
        export(deployment, VLLM, ARGS)
    assert str(found.value) == str(refused.value)


DECODE_OF_VLLM = {"scheduler": {"max_num_seqs": 6}, "model": {"max_model_len": 4096}}


def test_decode_sizes_are_carried_over_to_sglang() -> None:
    exported = export(plan_of(**DECODE_OF_VLLM, parallel={"enable_eplb": True}), SGLANG, ARGS)
    assert exported.text(ARGS) == (
        "--context-length 4096 --max-running-requests 6 --cuda-graph-bs-decode 1 2 4 6\n"
    )
    assert exported.notes[0].startswith("not carried over from vllm to sglang: parallel.enable_eplb; set")
    assert "graphs of target that are not of decode" in exported.notes[1]
    assert "by its own rules" in exported.notes[-1]


def test_decode_sizes_are_carried_over_to_tensorrt_llm_with_padding() -> None:
    exported = export(plan_of(**DECODE_OF_VLLM), TENSORRT_LLM, CONFIG)
    assert exported.settings["cuda_graph_config"] == {"batch_sizes": [1, 2, 4, 6], "enable_padding": True}
    with pytest.raises(ExportError, match="has no flag for cuda_graph_config; take --format config"):
        export(plan_of(**DECODE_OF_VLLM), TENSORRT_LLM, ARGS)


def test_decode_sizes_are_carried_over_to_vllm() -> None:
    plan = plan_of(engine={"name": "sglang"}, sglang={"cuda_graph_bs_decode": [1, 3, 20]})
    exported = export(plan, VLLM, ARGS)
    assert exported.settings["compilation-config"] == {"cudagraph_capture_sizes": [1, 3, 20]}


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"speculative": {"method": "eagle3", "num_speculative_tokens": 2}}, "draft and verify in different"),
        ({"speculative": {"method": "dflash", "num_speculative_tokens": 3}}, "records no prologue"),
        ({"lora": {"max_loras": 2}}, "capture different cases of LoRA"),
        ({"compilation": {"cudagraph_mode": "PIECEWISE"}}, "only graphs of decode can be carried over"),
    ],
)
def test_what_has_no_counterpart_in_another_engine_is_refused(sections: dict[str, Any], reason: str) -> None:
    for engine in (SGLANG, TENSORRT_LLM):
        with pytest.raises(ExportError, match=reason):
            export(plan_of(**sections), engine, CONFIG)


def test_decode_that_another_engine_drops_is_refused() -> None:
    plan = by_hand(target=[{"mode": "FULL", "num_tokens": 9000, "num_reqs": 9000, "uniform_token_count": 1}])
    with pytest.raises(ExportError) as refused:
        export(plan, SGLANG, ARGS)
    assert refused.value.fields


def test_drafts_of_adapters_that_the_server_does_not_take_are_refused() -> None:
    plan = plan_of(
        lora={},
        scheduler={"max_num_seqs": 8, "max_num_batched_tokens": 23},
        speculative={"method": "ngram", "num_speculative_tokens": 2},
    )
    with pytest.raises(ExportError, match="8 x 3 = 24 tokens, and its budget is 23"):
        export(plan, VLLM, ARGS)
    roomier = evolve(plan.deployment, scheduler=evolve(plan.deployment.scheduler, max_num_batched_tokens=24))
    assert export(roomier, VLLM, ARGS).settings["max-num-batched-tokens"] == 24


def test_a_switch_that_is_off_is_written_as_such() -> None:
    assert export(plan_of(model={"enforce_eager": False}), VLLM, ARGS).text(ARGS) == "--no-enforce-eager\n"


def test_drafts_go_by_the_names_that_each_engine_has_for_them() -> None:
    drafts = {"method": "eagle", "num_speculative_tokens": 3}
    sglang = export(plan_of(engine={"name": "sglang"}, speculative=drafts), SGLANG, JSON)
    assert dict(sglang.settings) == {
        "speculative-algorithm": "EAGLE",
        "speculative-num-steps": 3,
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": 4,
    }
    drafts = {"method": "mtp", "num_speculative_tokens": 2}
    trt = export(plan_of(engine={"name": "tensorrt-llm"}, speculative=drafts), TENSORRT_LLM, CONFIG)
    assert trt.settings["speculative_config"] == {"decoding_type": "MTP", "num_nextn_predict_layers": 2}
