"""``planner compile``: the plan, the summary, and files that are whole or untouched."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from attrs import evolve

from planner import Finding, compile_plan, dump_plan, load_deployment, load_plan
from planner.documents.writer import plan_to_json
from planner.modes import Runner
from tests.planner.cli.conftest import DEPLOYMENT, PLAN_BY_HAND, PROJECT, Run, one_line


def test_the_plan_goes_to_standard_output_and_the_summary_to_standard_error(
    run: Run, deployment: Path
) -> None:
    result = run("compile", deployment)
    assert result.exit_code == 0
    assert result.stdout == dump_plan(compile_plan(load_deployment(deployment)))
    assert (
        result.stderr
        == (
            "small: vllm 0.33, runner v2\n"
            "\n"
            "mode       FULL (asked for)\n"
            "           -> FULL_AND_PIECEWISE (attention replays uniform batches only (UNIFORM_BATCH))\n"
            "sizes      1, 2, 4, 8..64/8 tokens (11 sizes)\n"
            "decode     up to 8 requests of 4 tokens\n"
            "step       up to 2048 tokens\n"
            "attention  UNIFORM_BATCH\n"
        )
        + result.stderr.partition("UNIFORM_BATCH\n")[2]
    )


def test_the_summary_counts_graphs_by_family_and_mode(run: Run, deployment: Path) -> None:
    lines = run("compile", deployment).stderr.splitlines()
    start = lines.index("graphs")
    plan = compile_plan(load_deployment(deployment))
    counts = {
        family: [sum(str(entry.mode) == mode for entry in entries) for mode in ("PIECEWISE", "FULL")]
        for family, entries in plan.graphs.items()
    }
    assert lines[start + 1].split() == ["PIECEWISE", "FULL"]
    assert lines[start + 2].split() == ["target", *map(str, counts["target"])]
    assert lines[start + 3].split() == [
        "draft",
        "-",
        str(counts["draft"][1]),
        *["each", "after", "dflash_context_kv"],
    ]


def test_the_summary_fits_a_narrow_screen(run: Run, deployment: Path) -> None:
    assert max(map(len, run("compile", deployment).stderr.splitlines())) <= 100


def test_quiet_leaves_the_summary_out(run: Run, deployment: Path) -> None:
    result = run("compile", deployment, "--quiet")
    assert result.stderr == ""
    assert result.stdout == run("compile", deployment).stdout


def test_json_is_the_same_plan(run: Run, deployment: Path) -> None:
    result = run("compile", deployment, "-q", "--format", "json")
    assert result.stdout == plan_to_json(compile_plan(load_deployment(deployment)))
    assert json.loads(result.stdout)["kind"] == "Plan"


def test_standard_input_is_read_and_named(run: Run) -> None:
    result = run("compile", "-", input=DEPLOYMENT.replace("name: small\n", ""))
    assert result.exit_code == 0
    assert result.stderr.startswith("standard input: vllm")
    broken = run("compile", "-", input=DEPLOYMENT + "kine: x\n")
    assert broken.exit_code == 2
    assert one_line(broken.stderr).startswith("planner: error: standard input:8:1: kine: unknown key")


def test_a_refused_deployment_writes_nothing(run: Run, deployment: Path, tmp_path: Path) -> None:
    deployment.write_text(DEPLOYMENT.replace("cudagraph_mode: FULL", "cudagraph_capture_sizes: []"))
    output = tmp_path / "plan.yaml"
    output.write_text("kind: Plan  # precious")
    result = run("compile", deployment, "-o", output)
    assert result.exit_code == 2
    assert one_line(result.stderr).startswith(
        f"planner: error: {deployment}: compilation.cudagraph_capture_sizes"
    )
    assert result.stdout == ""
    assert output.read_text() == "kind: Plan  # precious"


def test_the_output_file_is_replaced_whole(run: Run, deployment: Path, tmp_path: Path) -> None:
    output = tmp_path / "out" / "plan.yaml"
    output.parent.mkdir()
    output.write_text("kind: Plan\n" + "x" * 10**6)
    output.chmod(0o640)
    result = run("compile", deployment, "-o", output)
    assert result.exit_code == 0
    assert result.stdout == ""
    assert load_plan(output) == load_plan(dump_plan(compile_plan(load_deployment(deployment))))
    assert stat.S_IMODE(output.stat().st_mode) == 0o640
    assert os.listdir(output.parent) == ["plan.yaml"]


def test_a_new_output_file_has_ordinary_permissions(run: Run, deployment: Path, tmp_path: Path) -> None:
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    run("compile", deployment, "-o", tmp_path / "plan.yaml")
    assert (tmp_path / "plan.yaml").stat().st_mode == ordinary.stat().st_mode


def test_a_link_stays_a_link_to_the_new_plan(run: Run, deployment: Path, tmp_path: Path) -> None:
    (tmp_path / "real.yaml").write_text("kind: Plan  # old")
    (tmp_path / "link.yaml").symlink_to("real.yaml")
    assert run("compile", deployment, "-o", tmp_path / "link.yaml").exit_code == 0
    assert (tmp_path / "link.yaml").is_symlink()
    assert load_plan(tmp_path / "real.yaml").name == "small"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "is a folder; give the name of a file"),
        ("missing/plan.yaml", "cannot be written: there is no folder "),
        ("deployment.yaml/plan.yaml", "cannot be written: Not a directory"),
    ],
)
def test_an_output_that_cannot_be_written_is_one_line(
    run: Run, deployment: Path, tmp_path: Path, name: str, reason: str
) -> None:
    result = run("compile", deployment, "-o", tmp_path / name, "-q")
    assert result.exit_code == 2
    assert reason in one_line(result.stderr)
    assert deployment.read_text() == DEPLOYMENT


def test_a_name_that_is_empty_is_told_as_such(run: Run, deployment: Path) -> None:
    result = run("compile", deployment, "-o", "", "-q")
    assert result.exit_code == 2
    assert one_line(result.stderr) == (
        "planner: error: the name of the output is empty; give the name of a file, or - for standard output"
    )
    for args in (("compile", ""), ("check", ""), ("explain", "", "--num-reqs", 1, "--num-tokens", 1)):
        result = run(*args)
        assert result.exit_code == 2
        assert "the name of the file is empty; give a file" in one_line(result.stderr)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that takes no files")
def test_a_folder_that_takes_no_files_is_not_said_to_be_missing(run: Run, deployment: Path) -> None:
    result = run("compile", deployment, "-o", "/proc/plan.yaml", "-q")
    assert result.exit_code == 2
    assert one_line(result.stderr) == (
        "planner: error: /proc/plan.yaml: cannot be written: no file can be made in /proc"
    )


def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    run: Run, deployment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "plan.yaml"
    output.write_text("kind: Plan  # precious")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    result = run("compile", deployment, "-o", output, "-q")
    assert result.exit_code == 3
    assert "No space left on device" in one_line(result.stderr)
    assert output.read_text() == "kind: Plan  # precious"
    assert sorted(os.listdir(tmp_path)) == ["deployment.yaml", "plan.yaml"]


def test_the_deployment_is_never_overwritten(run: Run, deployment: Path, tmp_path: Path) -> None:
    (tmp_path / "link.yaml").symlink_to("deployment.yaml")
    for output in (deployment, tmp_path / "link.yaml"):
        result = run("compile", deployment, "-o", output)
        assert result.exit_code == 2
        assert "would overwrite the deployment" in one_line(result.stderr)
    assert deployment.read_text() == DEPLOYMENT


def test_a_plan_is_compiled_anew_in_place(run: Run, plan: Path) -> None:
    fresh = plan.read_text()
    plan.write_text(fresh.replace("num_tokens: 64}", "num_tokens: 63}"))
    assert run("compile", plan, "-o", plan, "-q").exit_code == 0
    assert plan.read_text() == fresh


def test_a_plan_without_a_deployment_has_nothing_to_compile(run: Run, by_hand: Path) -> None:
    result = run("compile", by_hand, "-o", by_hand)
    assert result.exit_code == 2
    assert "no deployment to compile" in one_line(result.stderr)
    assert by_hand.read_text() == PLAN_BY_HAND


@pytest.mark.parametrize(("severity", "exit_code"), [("error", 1), ("warning", 0), ("info", 0)])
def test_only_errors_among_the_findings_fail_and_the_plan_is_written_all_the_same(
    run: Run,
    deployment: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    severity: str,
    exit_code: int,
) -> None:
    finding = Finding(severity=severity, code="odd-thing", message="something is odd", fix="name: even")
    found = evolve(compile_plan(load_deployment(deployment)), findings=(finding,))
    monkeypatch.setattr("planner.cli.compile.compile_plan", lambda _: found)
    result = run("compile", deployment, "-o", tmp_path / "plan.yaml")
    assert result.exit_code == exit_code
    assert load_plan(tmp_path / "plan.yaml").findings == (finding,)
    assert f"  {severity}  odd-thing  something is odd\n" in result.stderr
    assert "  fix: name: even\n" in result.stderr


def test_a_name_cannot_break_the_summary(run: Run, deployment: Path) -> None:
    deployment.write_text(DEPLOYMENT.replace("name: small", r'name: "a\e[31m\nb"'))
    result = run("compile", deployment)
    assert result.exit_code == 0
    assert result.stderr.startswith(r"'a\x1b[31m\nb: vllm")


@pytest.mark.parametrize("content", ["{}", "apiVersion: graphplan/v1\nkind: Deployment\n", "notes"])
def test_a_file_that_is_no_plan_is_never_replaced(run: Run, deployment: Path, content: str) -> None:
    other = deployment.parent / "config.json"
    other.write_text(content, encoding="utf-8")
    result = run("compile", "-q", deployment, "-o", other)
    assert result.exit_code == 2
    assert "holds something else, which is kept" in result.stderr
    assert other.read_text(encoding="utf-8") == content


def test_an_older_plan_and_an_empty_file_are_replaced(run: Run, deployment: Path) -> None:
    output = deployment.parent / "p.yaml"
    output.touch()
    for form in ("yaml", "json", "yaml"):
        assert run("compile", "-q", deployment, "-o", output, "--format", form).exit_code == 0


def test_quiet_still_tells_errors(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "d.yaml"
    source.write_text(
        "apiVersion: graphplan/v1\nkind: Deployment\n"
        "speculative: {method: custom_class, num_speculative_tokens: 2}\n"
    )
    result = run("compile", "-q", source)
    assert result.exit_code == 1
    assert result.stderr.startswith("planner: unplanned-family: ")


SERVE = "vllm serve Qwen/Qwen3-8B --max-num-seqs 6 --port 8000"


def test_a_pasted_command_line_is_compiled(run: Run) -> None:
    result = run("compile", "--device", "H200", SERVE)
    assert result.exit_code == 0
    plan = load_plan(result.stdout)
    assert plan.deployment.scheduler.max_num_seqs == 6
    assert plan.resolved["target"].max_cudagraph_capture_size == 8
    assert "facts shipped for Qwen/Qwen3-8B" in result.stderr
    assert "without effect on planning: --port" in result.stderr


def test_a_command_may_follow_unquoted_with_flags_of_its_own(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "plan.yaml"
    words = ("VLLM_USE_V2_MODEL_RUNNER=0", *SERVE.split(), "-q", "fp8")
    result = run("compile", "-o", output, "--device", "H200", *words)
    assert result.exit_code == 0
    assert load_plan(output).resolved["target"].runner is Runner.V1
    assert run("compile", "--device", "H200", "--", *words).stdout == output.read_text()


def test_a_command_in_a_file_or_on_standard_input_gives_the_same_plan(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text(f"#!/bin/sh\n{SERVE} \\\n  --device-ids 0\n")
    plans = {run("compile", "-q", source, input=script.read_bytes()).stdout for source in (script, "-")}
    assert plans == {run("compile", "-q", SERVE).stdout}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.yaml", "b.yaml"], "one deployment at a time; b.yaml is a second"),
        (["--device", "H200", "FILE"], "--device completes a command line; a document says it itself"),
        (["--model-config", "x", "FILE"], "--model-config completes a command line"),
        (["vllm serve m --max-num-sqs 1"], "vllm serve:1:14: --max-num-sqs: is no flag of vllm serve 0.33"),
        (["--model-config", "nowhere.json", "vllm serve m"], "nowhere.json"),
        (["vllm serve m --max-num-seqs 0"], "vllm serve:1:14: --max-num-seqs: 0 is too small"),
        (["vllm", "serve", "a", "b"], "vllm serve: b stands where only one model may be named"),
    ],
)
def test_a_wrong_source_is_one_line(run: Run, deployment: Path, arguments: list[str], message: str) -> None:
    result = run("compile", *[str(deployment) if each == "FILE" else each for each in arguments])
    assert result.exit_code == 2
    assert message in one_line(result.stderr)


def test_a_runner_that_something_chose_is_no_default(run: Run) -> None:
    chosen = run("compile", "--device", "H200", "VLLM_USE_V2_MODEL_RUNNER=0 vllm serve Qwen/Qwen3-8B")
    assert "engine.runner" in chosen.stderr
    assert "VLLM_USE_V2_MODEL_RUNNER is 0" in chosen.stderr
    assert "defaults   runner" not in chosen.stderr
    assert "defaults   runner v2" in run("compile", "--device", "H200", "vllm serve Qwen/Qwen3-8B").stderr


COMPOSE = "services:\n  v:\n    image: vllm/vllm-openai:v0.33.0\n    command: --model Qwen/Qwen3-8B\n"
POD = 'apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - command: ["vllm", "serve", "m"]\n'


@pytest.mark.parametrize("text", [COMPOSE, POD])
def test_a_manifest_is_compiled_as_the_server_that_it_starts(run: Run, tmp_path: Path, text: str) -> None:
    source = tmp_path / "x.yaml"
    source.write_text(text)
    result = run("compile", source)
    assert result.exit_code == 0
    assert "kind: Plan" in result.stdout


def test_an_unknown_model_is_recorded_in_the_plan(run: Run) -> None:
    result = run("compile", "--device", "H200", "vllm serve some/thing")
    assert result.exit_code == 0
    assert "unknown-model" in [finding.code for finding in load_plan(result.stdout).findings]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"echo hello", "no vllm serve command and no document is found"),
        (b"", "no vllm serve command and no document is found"),
        (b"\xff\xfe\xfa", "UTF-8"),
        (None, "folder"),
    ],
)
def test_with_options_a_source_that_is_nothing_is_told_as_such(
    run: Run, tmp_path: Path, content: bytes | None, message: str
) -> None:
    source = tmp_path / "source"
    if content is None:
        source.mkdir()
    else:
        source.write_bytes(content)
    result = run("compile", "--device", "H200", source)
    assert result.exit_code == 2
    assert message in one_line(result.stderr)
    assert "completes" not in result.stderr


@pytest.mark.parametrize(
    "words", [["vllm"], ["vllm bench serve"], ["vllm", "bench", "serve", "--model", "m"]]
)
def test_only_serving_is_planned(run: Run, words: list[str]) -> None:
    result = run("compile", *words)
    assert result.exit_code == 2
    assert "only a command that starts a server can be planned" in one_line(result.stderr)


def test_an_empty_device_is_refused(run: Run) -> None:
    result = run("compile", "--device", " ", "vllm serve m")
    assert result.exit_code == 2
    assert "--device is empty" in one_line(result.stderr)


def test_a_script_with_a_byte_order_mark_is_read(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "s.sh"
    script.write_text(f"\ufeff{SERVE}", encoding="utf-8")
    assert run("compile", "-q", script).stdout == run("compile", "-q", SERVE).stdout


@pytest.mark.parametrize("name", sorted(path.name for path in (PROJECT / "plans/deployments").glob("*.yaml")))
def test_a_plan_that_a_cache_has_is_found_and_is_the_same(run: Run, tmp_path: Path, name: str) -> None:
    deployment = f"plans/deployments/{name}"
    plain = run("compile", deployment).stdout
    first = run("compile", deployment, "--cache", tmp_path / "cache")
    second = run("compile", deployment, "--cache", tmp_path / "cache")
    assert first.stdout == second.stdout == plain
    assert "found, not compiled" not in first.stderr
    assert "found, not compiled" in second.stderr


def test_a_cached_plan_is_not_found_for_other_settings(run: Run, tmp_path: Path) -> None:
    deployment = "plans/deployments/qwen3-8b-dflash.yaml"
    run("compile", deployment, "--cache", tmp_path / "cache")
    other = run("compile", deployment, "--policy", "covering", "--cache", tmp_path / "cache")
    assert "found, not compiled" not in other.stderr
    assert other.stdout == run("compile", deployment, "--policy", "covering").stdout


def test_a_cache_that_is_no_directory_is_told_and_the_plan_compiled(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no directory")
    found = run("compile", "plans/deployments/qwen3-8b-dflash.yaml", "--cache", tmp_path / "cache")
    assert found.exit_code == 0
    assert found.stderr.count("warning: cache:") == 1
    assert "kind: Plan" in found.stdout
