"""``planner export``: from a plan to what starts a server with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.documents.load import load_deployment
from tests.planner.cli.conftest import PROJECT, Run, one_line

DFLASH = PROJECT / "plans" / "compiled" / "qwen3-8b-dflash.yaml"
SMALL = PROJECT / "plans" / "small-decode.yaml"


def test_arguments_go_to_standard_output_and_remarks_to_standard_error(run: Run) -> None:
    result = run("export", SMALL, "--to", "vllm")
    assert result.exit_code == 0
    assert one_line(result.stdout).startswith("--compilation-config '{")
    assert "export to vllm" in result.stderr
    assert "beyond the plan" in result.stderr
    assert run("export", SMALL, "--to", "vllm", "-q").stderr == ""


def test_json_and_the_config_file_are_written(run: Run, tmp_path: Path) -> None:
    as_json = json.loads(run("export", SMALL, "--to", "sglang", "--format", "json").stdout)
    assert as_json == {"cuda-graph-bs-decode": [1, 2, 4]}
    path = tmp_path / "sglang.yaml"
    for _ in range(2):
        result = run("export", SMALL, "--to", "sglang", "--format", "config", "-o", path)
        assert (result.exit_code, result.stdout) == (0, "")
    assert path.read_text() == "cuda-graph-bs-decode: [1, 2, 4]\n"


def test_tensorrt_llm_takes_a_file_unless_told_otherwise(run: Run) -> None:
    assert run("export", SMALL, "--to", "tensorrt-llm").stdout.startswith("cuda_graph_config:\n")
    refused = run("export", SMALL, "--to", "tensorrt-llm", "--format", "args")
    assert refused.exit_code == 2
    assert "has no flag for cuda_graph_config; take --format config" in one_line(refused.stderr)


@pytest.mark.parametrize("form", ["args", "config"])
def test_what_is_exported_can_be_imported(
    run: Run, deployment: Path, plan: Path, tmp_path: Path, form: str
) -> None:
    """The whole way on the command line: compile, export, start, compile again."""
    if form == "args":
        line = one_line(run("export", plan, "--to", "vllm", "--model", "a/model", "-q").stdout)
    else:
        run("export", plan, "--to", "vllm", "--format", "config", "-o", tmp_path / "settings.yaml")
        line = "vllm serve a/model --config settings.yaml"
    assert line.startswith("vllm serve a/model --")
    (tmp_path / "start.sh").write_text(line)
    imported = load_deployment(run("import", "-q", tmp_path / "start.sh").stdout)
    original = load_deployment(deployment)
    assert imported.scheduler == original.scheduler
    assert imported.compilation == original.compilation
    assert imported.speculative is not None
    assert original.speculative is not None
    assert imported.speculative.num_speculative_tokens == original.speculative.num_speculative_tokens


def test_the_environment_is_told_or_stands_in_front(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "v1.yaml"
    source.write_text("{apiVersion: graphplan/v1, kind: Deployment, engine: {runner: v1}}")
    assert "VLLM_USE_V2_MODEL_RUNNER=0" in run("export", source, "--to", "vllm").stderr
    whole = run("export", source, "--to", "vllm", "--model", "m")
    assert whole.stdout.startswith("VLLM_USE_V2_MODEL_RUNNER=0 vllm serve m")
    assert "VLLM_USE_V2_MODEL_RUNNER" not in whole.stderr


def test_that_there_is_nothing_to_set_is_said(run: Run) -> None:
    source = "{apiVersion: graphplan/v1, kind: Deployment, name: x}"
    result = run("export", "-", "--to", "vllm", input=source)
    assert result.stdout == "\n"
    assert "there is nothing to set" in result.stderr


def test_pinned_sizes_are_written_out(run: Run) -> None:
    assert "cudagraph_capture_sizes" not in run("export", DFLASH, "--to", "vllm").stdout
    assert "cudagraph_capture_sizes" in run("export", DFLASH, "--to", "vllm", "--pin").stdout


def test_what_an_engine_cannot_express_is_refused_in_one_line(run: Run) -> None:
    refused = run("export", DFLASH, "--to", "sglang")
    assert (refused.exit_code, refused.stdout) == (2, "")
    line = one_line(refused.stderr)
    assert line.startswith(f"planner: error: {DFLASH}: graphs.draft: sglang records no prologue")


def test_options_that_contradict_each_other_are_refused(run: Run, plan: Path) -> None:
    assert run("export", plan).exit_code == 2
    assert run("export", plan, "--to", "vllm", "--format", "config", "--model", "m").exit_code == 2
    assert run("export", plan, "--to", "vllm", "--model", "--port").exit_code == 2
    over = run("export", plan, "--to", "vllm", "-o", plan)
    assert over.exit_code == 2
    assert "would overwrite the source" in one_line(over.stderr)


def test_a_file_of_another_kind_is_kept(run: Run, plan: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("What I know\n")
    assert run("export", plan, "--to", "vllm", "-o", notes).exit_code == 2
    assert notes.read_text() == "What I know\n"


def test_the_example_is_what_is_exported(run: Run) -> None:
    plan = PROJECT / "plans" / "compiled" / "llama-3.1-8b-traffic.yaml"
    example = PROJECT / "plans" / "examples" / "vllm-serve.yaml"
    assert run("export", plan, "--to", "vllm", "--format", "config").stdout == example.read_text()
