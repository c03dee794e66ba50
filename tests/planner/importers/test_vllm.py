from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.documents.deployment import Deployment
from planner.errors import DocumentError
from planner.importers.imported import Completion, Imported
from planner.importers.source import import_text, import_words
from planner.modes import CUDAGraphMode

NOWHERE = Completion(env={"HF_HOME": "/nonexistent"})


def imported(line: str, completion: Completion = NOWHERE) -> Imported:
    return import_text(f"vllm serve {line}", completion, path="line")


def deployment(line: str) -> Deployment:
    return imported(line).deployment


def refusal(text: str) -> str:
    with pytest.raises(DocumentError) as error:
        import_text(text, NOWHERE, path="line")
    return str(error.value)


def test_each_flag_stands_under_the_key_of_its_config() -> None:
    found = deployment(
        "m -tp 2 -dp 4 --enable-expert-parallel --all2all-backend deepep_low_latency --max-num-seqs 64 "
        "--max-num-batched-tokens 4k --max-model-len 32K --dtype bfloat16 --kv-cache-dtype fp8 "
        "--block-size 32 --attention-backend FLASHINFER --enforce-eager -O1 --async-scheduling "
        "--performance-mode interactivity "
        "--enable-lora --max-loras 4 --specialize-active-lora --max-lora-rank 64 "
        "--cudagraph-capture-sizes 1 2 4 -cc.cudagraph_mode=FULL --runner pooling"
    )
    assert found.parallel.tensor_parallel_size == 2
    assert found.parallel.data_parallel_size == 4
    assert found.parallel.enable_expert_parallel is True
    assert found.parallel.all2all_backend == "deepep_low_latency"
    assert found.scheduler.max_num_seqs == 64
    assert found.scheduler.max_num_batched_tokens == 4000
    assert found.scheduler.async_scheduling is True
    assert found.scheduler.runner_type == "pooling"
    assert found.model.max_model_len == 32768
    assert found.model.dtype == "bfloat16"
    assert found.model.kv_cache_dtype == "fp8"
    assert found.model.block_size == 32
    assert found.model.attention_backend == "FLASHINFER"
    assert found.model.enforce_eager is True
    assert found.engine.optimization_level == 1
    assert str(found.engine.performance_mode) == "interactivity"
    assert found.lora is not None
    assert found.lora.max_loras == 4
    assert found.lora.specialize_active_lora is True
    assert found.lora.ignored == {"max_lora_rank": 64}
    assert found.compilation.cudagraph_capture_sizes == (1, 2, 4)
    assert found.compilation.cudagraph_mode is CUDAGraphMode.FULL


def test_speculative_flags_and_json_make_one_section() -> None:
    found = deployment("m -sc '{\"num_speculative_tokens\": 3}' --spec-method ngram").speculative
    assert found is not None
    assert (found.method, found.num_speculative_tokens) == ("ngram", 3)


def test_a_hub_id_that_is_shipped_brings_its_config() -> None:
    found = imported('Qwen/Qwen3-8B -sc \'{"model": "z-lab/Qwen3-8B-DFlash-b16", "method": "dflash"}\'')
    model, draft = found.deployment.model.config, found.deployment.speculative
    assert model is not None
    assert model.facts["architectures"] == ["Qwen3ForCausalLM"]
    assert draft is not None
    assert draft.config is not None
    assert found.deployment.name == "qwen3-8b"


def test_a_local_folder_brings_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    config = deployment(str(tmp_path)).model.config
    assert config is not None
    assert config.facts == {"model_type": "llama"}


def test_a_local_folder_without_config_is_refused(tmp_path: Path) -> None:
    assert "has no config.json" in refusal(f"vllm serve {tmp_path}")


def test_the_hugging_face_cache_is_looked_at_last(tmp_path: Path) -> None:
    revision = "0123456789" * 4
    repository = tmp_path / "hub" / "models--a--b"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    folder = repository / "snapshots" / revision
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    found = imported("a/b", Completion(env={"HF_HOME": str(tmp_path)}))
    assert found.deployment.model.config is not None
    assert found.notes == ("a/b: Hugging Face cache, revision 012345678901",)


def test_a_cache_that_points_out_of_itself_is_not_followed(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--a--b"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("../../../../etc")
    assert imported("a/b", Completion(env={"HF_HOME": str(tmp_path)})).deployment.model.config is None


def test_an_unknown_model_is_planned_without_its_config_and_that_is_said() -> None:
    found = imported("somebody/something")
    assert found.deployment.model.config is None
    assert found.notes == ("--model-config: no config.json is known for somebody/something; give one",)


def test_files_and_device_can_be_given_beside_the_line(tmp_path: Path) -> None:
    config = tmp_path / "c.json"
    config.write_text(json.dumps({"model_type": "llama"}))
    found = imported("x/y", Completion(model_config=str(config), device="H200", env={}))
    assert found.deployment.model.config is not None
    assert found.deployment.device.name == "H200"


def test_flags_without_effect_are_listed_and_secrets_stay_out() -> None:
    found = import_text(
        "HF_TOKEN=secret API_KEY=$K vllm serve m --port 80 --gpu-memory-utilization 0.9", NOWHERE, path=None
    )
    assert found.unused == ("HF_TOKEN", "API_KEY", "--port", "--gpu-memory-utilization")
    assert "secret" not in repr(found.deployment)


def test_environment_that_planning_reads_is_kept() -> None:
    text = "export VLLM_USE_BREAKABLE_CUDAGRAPH=1\nVLLM_USE_V2_MODEL_RUNNER=0 vllm serve m"
    found = import_text(text, NOWHERE, path=None).deployment
    assert found.engine.env == {"VLLM_USE_BREAKABLE_CUDAGRAPH": "1", "VLLM_USE_V2_MODEL_RUNNER": "0"}


def test_lora_flags_without_lora_are_told() -> None:
    found = imported("m --max-loras 4")
    assert found.deployment.lora is None
    assert "flags of LoRA have no effect without --enable-lora" in found.notes


def test_overrides_of_the_models_config_are_told() -> None:
    assert any("--hf-overrides" in note for note in imported("m --hf-overrides '{\"a\": 1}'").notes)


@pytest.mark.parametrize(
    "text",
    [
        "python3 -u -m vllm.entrypoints.openai.api_server --model m -tp 2",
        "exec /opt/venv/bin/vllm serve m -tp 2",
        "numactl -N 0 vllm serve m -tp 2 2>&1 | tee log",
        "docker run --gpus all -p 80:80 vllm/vllm-openai:v0.33.0 --model m -tp 2",
        "cd /srv\n# comment\nvllm serve \\\n  m \\\n  -tp 2 &\nwait",
    ],
)
def test_every_way_of_starting_the_server_is_found(text: str) -> None:
    found = import_text(text, NOWHERE, path=None).deployment
    assert (found.name, found.parallel.tensor_parallel_size) == ("m", 2)


def test_environment_of_a_container_counts() -> None:
    text = "docker run -e VLLM_USE_V2_MODEL_RUNNER=0 vllm/vllm-openai --model m"
    assert import_text(text, NOWHERE, path=None).deployment.engine.env == {"VLLM_USE_V2_MODEL_RUNNER": "0"}


def test_words_that_a_shell_has_split_are_the_same_line() -> None:
    found = import_words(["VLLM_USE_V2_MODEL_RUNNER=0", "vllm", "serve", "m", "-tp", "2"], NOWHERE)
    assert (
        found.deployment
        == import_text("VLLM_USE_V2_MODEL_RUNNER=0 vllm serve m -tp 2", NOWHERE, path=None).deployment
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ls", "line: no command that starts a server is found, such as vllm serve"),
        ("vllm serve a\nvllm serve b", "line: 2 servers are found: line 1, line 2; give one with --name"),
        ("vllm serve a b", "line:1:14: b stands where only one model may be named"),
        ("vllm serve a --model b", "b stands where only one model may be named"),
        ("vllm serve $M", "line:1:12: $M is not looked up or run here; give its value with --set M=VALUE"),
        ("VLLM_USE_V2_MODEL_RUNNER=$R vllm serve m", "VLLM_USE_V2_MODEL_RUNNER: $R is not looked up"),
        ("vllm serve m -tp 0", "line:1:14: -tp: 0 is too small"),
        ("vllm serve m -cc '{\"cudagraph_mod\": 1}'", "-cc: compilation.cudagraph_mod: unknown key"),
        ("vllm serve m -cc 3", "line:1:14: -cc: needs a mapping in JSON"),
        (
            "vllm serve m --max-cudagraph-capture-size 8 -cc.max_cudagraph_capture_size=8",
            "and --max-cudagraph-capture-size both give compilation.max_cudagraph_capture_size; drop one",
        ),
        (
            "vllm serve m --spec-tokens 3 -sc.num_speculative_tokens=3",
            "both give speculative.num_speculative",
        ),
    ],
)
def test_a_wrong_line_is_an_error_with_its_place(text: str, message: str) -> None:
    assert message in refusal(text)


def _sections(line: str) -> dict[str, Any]:
    found = deployment(line)
    return {"parallel": found.parallel.ignored, "scheduler": found.scheduler.ignored}


def test_settings_that_planning_never_reads_are_kept_where_the_document_knows_them() -> None:
    assert _sections("m --scheduling-policy priority --master-port 3 --numa-bind-nodes 1 2") == {
        "parallel": {"master_port": 3},
        "scheduler": {"policy": "priority"},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vllm serve m --config c.yaml", "line:1:14: --config: c.yaml: no such file"),
        (
            "docker run --env-file e vllm/vllm-openai --model m",
            "--env-file: is not read; write -e NAME=VALUE",
        ),
        ("docker run --entrypoint=sh vllm/vllm-openai m", "--entrypoint: changes what the image starts"),
        ("docker pull vllm/vllm-openai", "no command that starts a server is found"),
        ("vllm serve ./nowhere-at-all", "there is no such folder here"),
        ("vllm serve /nowhere/at/all/", "there is no such folder here"),
        ("vllm serve '~/nowhere-at-all'", "there is no such folder here"),
    ],
)
def test_what_would_plan_something_else_is_refused(text: str, message: str) -> None:
    assert message in refusal(text)


@pytest.mark.parametrize(("line", "message"), [("a/b", "known for a/b"), ("", "names no model")])
def test_a_model_that_is_not_known_is_a_finding(line: str, message: str) -> None:
    (finding,) = imported(line).findings
    assert (finding.severity, finding.code) == ("warning", "unknown-model")
    assert message in finding.message
    assert finding.fix == "--model-config config.json"


def test_a_model_whose_config_is_given_or_shipped_is_no_finding(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    found = imported("./elsewhere", Completion(model_config=str(tmp_path), env={}))
    assert found.deployment.model.config is not None
    assert found.findings == ()
    assert imported("Qwen/Qwen3-8B/").findings == ()


def test_a_revision_is_looked_up_in_the_cache(tmp_path: Path) -> None:
    revision = "0123456789" * 4
    repository = tmp_path / "hub" / "models--a--b"
    (repository / "refs" / "pr").mkdir(parents=True)
    (repository / "refs" / "pr" / "1").write_text(revision)
    folder = repository / "snapshots" / revision
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    cache = Completion(env={"HF_HOME": str(tmp_path)})
    for known in ("pr/1", revision):
        found = imported(f"a/b --revision {known}", cache)
        assert found.deployment.model.config is not None
        assert found.unused == ()
    for unknown in ("main", "../refs/pr/1", "f" * 40):
        (finding,) = imported(f"a/b --revision {unknown}", cache).findings
        assert f"at revision {unknown}" in finding.message


def test_shipped_facts_are_said_to_be_of_no_revision() -> None:
    notes = imported("Qwen/Qwen3-8B --revision v2").notes
    assert notes == ("Qwen/Qwen3-8B: facts shipped for Qwen/Qwen3-8B, without regard to revision v2",)


@pytest.mark.parametrize(
    ("image", "count"), [("vllm-openai:v0.9.1", 1), ("vllm-openai:v0.33.0", 0), ("vllm-openai:latest", 0)]
)
def test_an_image_of_another_release_is_told(image: str, count: int) -> None:
    notes = import_text(f"docker run vllm/{image} --model m", NOWHERE, path=None).notes
    assert sum("the plan follows the rules of 0.33" in note for note in notes) == count


def test_only_names_in_capitals_are_environment() -> None:
    text = "ExecStart=/usr/bin/env HF_HOME=/x vllm serve m"
    assert import_text(text, NOWHERE, path=None).unused == ("HF_HOME",)


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("--cudagraph-capture-sizes 4 4 8 8", "--cudagraph-capture-sizes lists 4, 8 more than once"),
        ("-cc.cudagraph_capture_sizes=[4,4]", "-cc.cudagraph_capture_sizes lists 4 more than once"),
        ("-cc '{\"cudagraph_capture_sizes\": [4,4]}'", "-cc: cudagraph_capture_sizes lists 4 more than once"),
    ],
)
def test_a_size_that_a_list_has_twice_is_told(line: str, note: str) -> None:
    assert any(found.startswith(note) for found in imported(f"m {line}").notes)


def test_only_settings_that_planning_reads_contradict() -> None:
    assert "--port is given more than once; the last counts" in imported("m --port 1 --port 2").notes
    assert "--max-num-seqs: is given twice" in refusal("vllm serve m --max-num-seqs 1 --max-num-seqs 2")
    assert "--enable-lora is given twice" not in imported("m --enable-lora --enable-lora").notes


def test_flags_behind_the_end_of_the_command_are_told() -> None:
    found = import_text("vllm serve m \\\n  # why\n  --max-num-seqs 8", NOWHERE, path=None)
    assert found.deployment.scheduler.max_num_seqs is None
    assert "line 3 begins with --max-num-seqs and is not part of the command" in found.notes[0]
