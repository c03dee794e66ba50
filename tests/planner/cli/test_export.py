"""``planner export``: from a plan to what starts a server with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attrs import evolve

from planner import dump_plan, load_plan
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


def test_an_environment_that_the_plan_needs_is_told_even_if_quiet(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "v1.yaml"
    source.write_text("{apiVersion: graphplan/v1, kind: Deployment, engine: {runner: v1}}")
    for form in ("args", "json", "config"):
        result = run("export", source, "--to", "vllm", "--format", form, "-q")
        assert "VLLM_USE_V2_MODEL_RUNNER=0" in result.stderr
        assert "nothing to set" not in result.stderr
    assert run("export", source, "--to", "vllm", "--model", "m", "-q").stderr == ""


def test_the_runner_of_a_plan_by_hand_stands_in_front_whatever_its_deployment(
    run: Run, tmp_path: Path
) -> None:
    source = tmp_path / "deployment.yaml"
    source.write_text(
        "{apiVersion: graphplan/v1, kind: Deployment, engine: {runner: v1}, scheduler: {max_num_seqs: 8}}"
    )
    plan = load_plan(run("compile", source, "-q").stdout)
    silent = evolve(plan.deployment, engine=evolve(plan.deployment.engine, runner=None))
    path = tmp_path / "plan.yaml"
    path.write_text(dump_plan(evolve(plan, deployment=silent, digest=None)))
    whole = run("export", path, "--to", "vllm", "--model", "m", "-q")
    assert whole.stdout.startswith("VLLM_USE_V2_MODEL_RUNNER=0 vllm serve m")


def test_an_edited_plan_is_told(run: Run, plan: Path) -> None:
    assert "edited" not in run("export", plan, "--to", "vllm").stderr
    loaded = load_plan(plan)
    plan.write_text(
        dump_plan(evolve(loaded, graphs={**loaded.graphs, "target": loaded.graphs["target"][1:]}))
    )
    result = run("export", plan, "--to", "vllm")
    assert "warning" in result.stderr
    assert "edited: the plan was changed after it was compiled" in result.stderr


def test_a_model_that_gives_another_plan_is_refused_and_one_that_does_not_is_told(run: Run) -> None:
    own = run("export", DFLASH, "--to", "vllm", "--model", "Qwen/Qwen3-8B")
    assert "another model" not in own.stderr
    other = run("export", DFLASH, "--to", "vllm", "--model", "meta-llama/Llama-3.1-8B")
    assert other.exit_code == 0
    assert "meta-llama/Llama-3.1-8B is another model than the plan's" in " ".join(other.stderr.split())
    unknown = run("export", DFLASH, "--to", "vllm", "--model", "/models/somewhere")
    assert (unknown.exit_code, "another model" in unknown.stderr) == (0, False)
    hybrid = PROJECT / "plans" / "deployments" / "nemotron-3-nano-30b-a3b.yaml"
    refused = run("export", hybrid, "--to", "vllm", "--model", "openai/whisper-large-v3")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--model openai/whisper-large-v3 is another model than the plan's" in one_line(refused.stderr)


def test_the_budget_of_a_step_is_carried_over_between_engines_that_have_one(run: Run) -> None:
    source = (
        "{apiVersion: graphplan/v1, kind: Deployment, engine: {name: tensorrt-llm}, model: {dtype: bfloat16},"
        " scheduler: {max_num_seqs: 64, max_num_batched_tokens: 4096}}"
    )
    result = run("export", "-", "--to", "vllm", input=source)
    assert "--max-num-batched-tokens 4096" in result.stdout
    assert "--dtype bfloat16" in result.stdout
    assert "max_num_batched_tokens" not in result.stderr
    back = run("export", "-", "--to", "tensorrt-llm", input=source.replace("tensorrt-llm", "vllm"))
    assert "max_num_tokens: 4096" in back.stdout
    # SGLang's own bounds chunks of prefill only.
    sglang = run("export", "-", "--to", "sglang", input=source)
    assert "4096" not in sglang.stdout
    assert "scheduler.max_num_batched_tokens" in " ".join(sglang.stderr.split())


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
