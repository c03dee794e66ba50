"""``planner import``: from what starts a server to a Deployment."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.documents.load import load_deployment
from tests.planner.cli.conftest import PROJECT, Run, one_line

CORPUS = PROJECT / "tests" / "data" / "corpus"
LINE = "vllm serve Qwen/Qwen3-8B --max-num-seqs 6 --port 8000"


def test_a_line_becomes_a_deployment_and_notes(run: Run) -> None:
    result = run("import", LINE)
    assert result.exit_code == 0
    assert load_deployment(result.stdout).scheduler.max_num_seqs == 6
    assert "without effect on planning: --port" in result.stderr
    assert "facts shipped for Qwen/Qwen3-8B" in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        LINE.split(),
        ["vllm", LINE],
        ["vllm", *LINE.split()],
        ["-q", "--device", "H200", *LINE.split()],
        ["vllm", "--device", "H200", *LINE.split()],
    ],
)
def test_a_line_may_be_given_in_every_way(run: Run, args: list[str]) -> None:
    result = run("import", *args)
    assert result.exit_code == 0
    found = load_deployment(result.stdout)
    assert found.scheduler.max_num_seqs == 6
    assert found.device.name == ("H200" if "--device" in args else None)


def test_standard_input_and_files_are_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(LINE)
    assert run("import", "-", input=LINE).stdout == run("import", tmp_path / "run.sh").stdout
    assert run("import", "-q", tmp_path / "run.sh").stderr == ""


def test_a_file_of_settings_needs_its_engine(run: Run) -> None:
    settings = CORPUS / "tensorrt-llm" / "03-config-file.settings.yaml"
    found = run("import", "tensorrt-llm", settings)
    assert load_deployment(found.stdout).parallel.enable_dp_attention is True
    refused = run("import", settings)
    assert refused.exit_code == 2
    assert "no command that starts a server is found" in one_line(refused.stderr)


def test_one_server_of_several_is_named(run: Run) -> None:
    manifest = CORPUS / "vllm" / "30-two-servers.yaml"
    refused = run("import", manifest)
    assert refused.exit_code == 2
    assert "2 servers are found: deployment/prefill/vllm, deployment/decode/vllm" in one_line(refused.stderr)
    assert load_deployment(run("import", manifest, "--name", "decode").stdout).name == "decode"


def test_values_are_given_beside_the_source(run: Run) -> None:
    script = CORPUS / "vllm" / "15-values-from-outside.sh"
    values = ("MODEL=Qwen/Qwen3-8B", "$(nvidia-smi -L | wc -l)=4", "$((BATCH * 2))=64")
    options = [word for value in values for word in ("--set", value)]
    assert load_deployment(run("import", script, *options).stdout).parallel.tensor_parallel_size == 4
    refused = run("import", script)
    assert "$MODEL is not looked up or run here; give its value with --set MODEL=VALUE" in refused.stderr


def test_files_beside_a_script_are_found_from_anywhere(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("import", CORPUS / "vllm" / "17-config-file.sh")
    assert load_deployment(result.stdout).scheduler.max_num_seqs == 96


def test_the_output_replaces_deployments_only(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "d.yaml"
    assert run("import", "-o", target, LINE).exit_code == 0
    assert run("import", "-o", target, LINE).exit_code == 0
    target.write_text("replicas: 1")
    assert "holds something else" in one_line(run("import", "-o", target, LINE).stderr)


def test_what_is_not_known_of_the_model_is_said(run: Run) -> None:
    result = run("import", "vllm serve acme/new-model")
    assert result.exit_code == 0
    assert "no config.json is known for acme/new-model" in result.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["vllm"], "name what to import behind vllm"),
        (["sglang", LINE], "no command that starts a sglang server is found; it starts one of vllm"),
        (["a.sh", "b.sh"], "one source at a time; b.sh is a second"),
        (["nowhere.sh"], "nowhere.sh: no such file"),
        (["--set", "A", LINE], "--set A: write NAME=VALUE"),
        (["--set", "=A", LINE], "--set =A: write NAME=VALUE"),
        (["--device", " ", LINE], "--device is empty"),
        (["vllm bench serve"], "only a command that starts a server"),
        (["vllm serve m --max-num-sqs 1"], "did you mean --max-num-seqs?"),
        ([str(PROJECT / "plans" / "deployments" / "llama-3.1-8b-24gb.yaml")], "is a document already"),
        (["vllm serve m $(a)"], "$(a) is not looked up or run here; give its value with --set '$(a)=VALUE'"),
    ],
)
def test_a_wrong_call_is_one_line(run: Run, args: list[str], message: str) -> None:
    result = run("import", *args)
    assert result.exit_code == 2
    assert message in one_line(result.stderr)


@pytest.mark.parametrize(
    "options",
    [
        ["--set", "A=1"],
        ["-q", "--set", "A=1", "--set", "B=2"],
        ["--name", "A=1"],
        ["--device", "A=1"],
        ["--device=A=1"],
        ["-qo", "-"],
        ["vllm", "--set", "A=1"],
        ["--set", "A=1", "B=2"],
    ],
)
def test_an_option_with_a_value_may_stand_before_the_command(run: Run, options: list[str]) -> None:
    result = run("import", *options, "vllm", "serve", "m", "--max-num-seqs", "6")
    assert result.exit_code == 0
    assert load_deployment(result.stdout).scheduler.max_num_seqs == 6


def test_an_output_may_have_any_name(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("import", "-o", "A=1", *LINE.split()).exit_code == 0
    assert load_deployment(Path("A=1")).scheduler.max_num_seqs == 6


def test_words_behind_the_command_are_its_own(run: Run) -> None:
    result = run("import", "vllm", "serve", "m", "--max-num-seqs", "6", "--", "n")
    assert "n stands where only one model may be named" in one_line(result.stderr)


@pytest.mark.parametrize(
    "args", [["--set", "UNUSED=3", *LINE.split()], ["--set", "UNUSED=3", LINE], ["--set", "UNUSED=3", "-"]]
)
def test_a_value_that_nothing_asks_for_is_told(run: Run, args: list[str]) -> None:
    note = "--set UNUSED has no effect: nothing asks for its value"
    result = run("import", *args, input=LINE)
    assert result.exit_code == 0
    assert note in result.stderr
    assert run("import", "-q", *args, input=LINE).stderr == ""
    assert note in run("compile", *args, input=LINE).stderr


def test_a_value_that_something_asks_for_is_not_told(run: Run) -> None:
    result = run("import", "--set", "M=8", "vllm serve m --max-num-seqs $M")
    assert load_deployment(result.stdout).scheduler.max_num_seqs == 8
    assert "--set" not in result.stderr


def test_a_value_for_a_file_of_settings_is_told(run: Run) -> None:
    settings = CORPUS / "tensorrt-llm" / "03-config-file.settings.yaml"
    assert "--set A has no effect" in run("import", "--set", "A=1", "tensorrt-llm", settings).stderr


WANTED = "give a command line, a script, a Kubernetes manifest or a Docker Compose file, or the engine's name"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x00\x01\x02abc", f"is a binary file, not UTF-8 text; {WANTED}"),
        (b"a,b\xff\n", "is not UTF-8 text"),
        (b" \n", "is empty"),
        (b"a,b\n1,2\n3,4\n", f"no command that starts a server is found in this CSV file; {WANTED}"),
        (b"a\tb\n1\t2\n", "in this table;"),
        (b'{"a": 1}\n{"a": 2}\n', f"in this file of JSON lines; {WANTED}"),
        (b'{\n "a": 1\n}\n', f"in this JSON file; {WANTED}"),
        ((b'{"a":' * 3000 + b"1" + b"}" * 3000 + b"\n") * 2, "in this file of JSON lines"),
        (b"hello", "no command that starts a server is found, such as vllm serve"),
    ],
)
def test_a_file_that_is_something_else_is_called_what_it_is(
    run: Run, content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / "x").write_bytes(content)
    result = run("import", tmp_path / "x")
    assert result.exit_code == 2
    assert message in one_line(result.stderr)


@pytest.mark.parametrize("name", ["x.yaml", "x.json"])
def test_a_file_of_settings_asks_for_its_engine(run: Run, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('{"model": "m", "max-num-seqs": 4}')
    result = run("import", tmp_path / name)
    assert result.exit_code == 2
    assert "a file of settings needs the name of its engine in front of it" in one_line(result.stderr)
    assert load_deployment(run("import", "vllm", tmp_path / name).stdout).scheduler.max_num_seqs == 4


@pytest.mark.parametrize("source", ["", " ", "\n"])
def test_an_empty_source_is_a_wrong_call(run: Run, source: str) -> None:
    result = run("import", "--", source)
    assert result.exit_code == 2
    assert "the source is empty; give a command line or a file" in one_line(result.stderr)


def test_bytes_that_are_no_text_are_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff\xfe vllm serve \xff")
    result = run("import", tmp_path / "x")
    assert result.exit_code == 2
    assert "is not UTF-8 text" in one_line(result.stderr)


@pytest.mark.parametrize(
    ("script", "settings", "sizes"),
    [
        ("--max-num-seqs $1", ["$1=6"], 6),
        ('--max-num-seqs "$1"', ["${1}=6"], 6),
        ("--max-num-seqs ${2:-64}", ["$2=6"], 6),
        ("--max-num-seqs ${2:-64}", ["2="], 64),
        ('"$@"', ["$@=--max-num-seqs 5"], 5),
        ("${EXTRA:---max-num-seqs 7}", ["EXTRA="], 7),
        ("--max-num-seqs 8 ${EXTRA}", ["${EXTRA}="], 8),
    ],
)
def test_any_parameter_is_given_as_a_message_asks_for_it(
    run: Run, script: str, settings: list[str], sizes: int
) -> None:
    source = f"vllm serve Qwen/Qwen3-8B {script}"
    assert run("import", "-", input=source).exit_code == 2
    options = [word for setting in settings for word in ("--set", setting)]
    found = run("import", *options, "-", input=source)
    assert load_deployment(found.stdout).scheduler.max_num_seqs == sizes
    assert "has no effect" not in found.stderr
