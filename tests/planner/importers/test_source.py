"""Which servers a text starts, and that nothing in any text is ever run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import DocumentError
from planner.importers.imported import Completion, Imported
from planner.importers.launches import Launch
from planner.importers.source import (
    choose,
    import_config,
    import_launch,
    import_text,
    import_words,
    launches_in,
)

NOWHERE = Completion(env={"HF_HOME": "/nonexistent"})

POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: p}}
spec:
  containers:
  - name: c
    image: vllm/vllm-openai:v0.33.0
{rest}
"""


def launches(text: str, **values: str) -> list[Launch]:
    return launches_in(text, "source", values)


def names(text: str) -> list[str]:
    return [launch.name for launch in launches(text)]


def imported(text: str, values: Mapping[str, str] | None = None, name: str | None = None) -> Imported:
    completion = Completion(env={"HF_HOME": "/nonexistent"}, values=values or {})
    return import_text(text, completion, path="source", name=name)


def refusal(text: str) -> str:
    with pytest.raises(DocumentError) as error:
        imported(text)
    return str(error.value)


def pod(*rest: str) -> str:
    return POD.format(rest="\n".join(f"    {line}" for line in rest))


def test_servers_of_a_script_are_named_by_their_lines() -> None:
    assert names("vllm serve a\n\nsglang serve b\ntrtllm-serve c") == ["line 1", "line 3", "line 4"]


def test_servers_of_manifests_are_named_by_kind_owner_and_container() -> None:
    assert names(pod("args: [a]") + "---\n" + pod("args: [b]").replace("name: p", "name: q")) == [
        "pod/p/c",
        "pod/q/c",
    ]


def test_servers_of_one_container_have_lines_too() -> None:
    text = pod("command: [sh, -c]", "args:", "- |", "  vllm serve a &", "  vllm serve b")
    assert names(text) == ["pod/p/c/line 11", "pod/p/c/line 12"]


@pytest.mark.parametrize(
    "text",
    ["vllm bench serve --model m", "trtllm-serve disaggregated -c x.yaml", "echo vllm", "sglang version"],
)
def test_other_commands_start_no_server(text: str) -> None:
    assert launches(text) == []


@pytest.mark.parametrize(
    ("engine", "name", "found"),
    [("sglang", None, "line 2"), (None, "line 1", "line 1"), ("vllm", None, "line 1")],
)
def test_engine_and_name_choose_among_servers(engine: str | None, name: str | None, found: str) -> None:
    assert choose(launches("vllm serve a\nsglang serve b"), engine, name, None).name == found


@pytest.mark.parametrize(
    ("engine", "name", "message"),
    [
        (None, None, "source: 2 servers are found: pod/a/c, pod/b/c; give one with --name"),
        (None, "c", "2 servers are found: pod/a/c, pod/b/c"),
        (None, "d", "no server is named d; pod/a/c, pod/b/c"),
        ("sglang", None, "no command that starts a sglang server is found; it starts one of vllm"),
    ],
)
def test_what_is_not_one_server_is_refused(engine: str | None, name: str | None, message: str) -> None:
    two = [
        *launches(pod("args: [a]").replace(": p", ": a")),
        *launches(pod("args: [a]").replace(": p", ": b")),
    ]
    with pytest.raises(DocumentError) as error:
        choose(two, engine, name, "source")
    assert message in str(error.value)


def test_a_part_of_a_name_is_enough_where_it_is_one_servers_alone() -> None:
    two = [
        *launches(pod("args: [a]").replace(": p", ": a")),
        *launches(pod("args: [a]").replace(": p", ": b")),
    ]
    assert choose(two, None, "b", None).name == "pod/b/c"


def test_words_of_a_script_in_a_manifest_stand_at_lines_of_the_manifest() -> None:
    literal = pod("command: [sh, -c]", "args:", "- |", "  set -e", "  vllm serve a \\", "    --max-num-sqs 1")
    assert "source:13:9: --max-num-sqs: is no flag" in refusal(literal)
    folded = pod("command: [sh, -c]", "args:", "- >-", "  vllm serve a", "  --max-num-sqs 1")
    assert "source:12:7: --max-num-sqs: is no flag" in refusal(folded)
    quoted = pod("command: [sh, -c, 'vllm serve a --max-num-sqs 1']")
    assert "source:8:37: --max-num-sqs: is no flag" in refusal(quoted)


def test_words_of_a_compose_string_stand_where_the_file_has_them() -> None:
    head = "services:\n  a:\n    image: vllm/vllm-openai\n    command: >\n"
    text = f"{head}      --model a\n      --max-num-sqs 1\n"
    assert "source:6:7: --max-num-sqs: is no flag" in refusal(text)


def test_a_torn_script_of_a_manifest_is_placed_at_the_script() -> None:
    assert "source:8:23: the quote ' is never closed" in refusal(pod('command: [sh, -c, "vllm serve \'a"]'))


def test_an_unclosed_quote_in_a_compose_command_is_placed() -> None:
    text = 'services:\n  a:\n    image: vllm/vllm-openai\n    command: --model "a\n'
    assert "source:4:14: a quote in the command is never closed" in refusal(text)


def test_templates_have_to_be_rendered() -> None:
    text = pod("args: {{- .Values.args }}").replace("image:", "image: {{ .x }} #")
    assert "a template has to be rendered first" in refusal(text)


def test_lines_of_settings_are_known() -> None:
    found = imported(pod("args:", "- --model=m", "- --max-num-seqs=4"))
    assert found.lines == {"scheduler.max_num_seqs": 10}
    assert found.line == 6


def test_sources_of_environment_that_are_not_read_are_told() -> None:
    found = imported(
        pod("args: [--model=m]", "envFrom: [{configMapRef: {name: cm}}, {secretRef: {name: s}}]")
    )
    assert "envFrom configMapRef cm is not read; give what it sets with --set" in found.notes
    assert "envFrom secretRef s is not read; give what it sets with --set" in found.notes
    compose = "services:\n  a:\n    image: vllm/vllm-openai\n    command: --model m\n    env_file: [x.env]\n"
    assert "env_file x.env is not read; give what it sets with --set" in imported(compose).notes


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("[--model=m, --max-num-seqs=$(N)]", "--max-num-seqs: $N is not looked up or run here; give"),
        ("[--model=m, '--max-num-seqs 4']", "write the flag and its value as two words"),
        ("[--model=$(M)]", "$M is not looked up or run here; give its value with --set M=VALUE"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(args: str, message: str) -> None:
    assert message in refusal(pod(f"args: {args}"))


def test_unknown_values_of_flags_without_effect_are_no_matter() -> None:
    found = imported("vllm serve m --port $PORT --api-key `cat key` --master-port $P")
    assert found.unused == ("--port", "--api-key", "--master-port")


def test_paths_of_containers_are_not_looked_for_here(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    found = imported(pod(f"args: [--model={tmp_path}]"))
    assert found.deployment.model.config is None
    assert [finding.code for finding in found.findings] == ["unknown-model"]


def test_a_variable_that_starts_its_own_text_again_ends() -> None:
    text = pod("env: [{name: X, value: 'sh -c $X'}]", "command: [sh, -c, $X]")
    assert launches(text) == []


def test_words_that_a_shell_has_split_start_a_server_of_any_engine() -> None:
    assert import_words(["trtllm-serve", "m"], NOWHERE).deployment.engine.name == "tensorrt-llm"
    with pytest.raises(DocumentError, match="no command that starts a vllm server"):
        import_words(["sglang", "serve", "m"], NOWHERE, engine="vllm")


def test_a_file_of_settings_is_a_server_by_itself(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("model: m\nmax-num-seqs: 4\n")
    assert import_config(file, "vllm", NOWHERE).deployment.scheduler.max_num_seqs == 4


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{key}: &{key} [{', '.join(['*' + before] * 10)}]\n"
    for before, key in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m --max-num-seqs $(touch FILE)",
        "vllm serve `touch FILE`",
        'vllm serve "$(touch FILE)" m',
        "X=$(touch FILE)\nvllm serve $X",
        "eval touch FILE\nvllm serve m",
        "touch FILE; vllm serve m",
        "cat > x.yaml <<E\nmodel: $(touch FILE)\nE\nvllm serve --config x.yaml",
        "vllm serve m --api-key <(touch FILE)",
        "vllm serve m > FILE",
        "bash -c 'touch FILE; vllm serve m'",
        'python3 -c \'open("FILE", "w")\'; sglang serve m',
        "trtllm-serve m --config $(touch FILE)",
        pod("command: [sh, -c, 'touch FILE; vllm serve m']"),
        pod("args: ['$(touch FILE)', --model=m]"),
        pod("args: !!python/object/apply:os.system [touch FILE]"),
        pod("args: [--model, !!python/object/apply:os.system ['touch FILE']]"),
        pod("args: !!python/object/new:os.system {args: [touch FILE]}"),
        pod("env: [{name: X, value: !!python/name:os.system }]", "args: [--model=m]"),
        "services:\n  a:\n    image: vllm/vllm-openai\n    command: --model `touch FILE` $(touch FILE)\n",
    ],
)
def test_nothing_in_a_source_is_run(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    marker = tmp_path / "marker"
    text = text.replace("FILE", str(marker))
    with suppress(DocumentError):
        for launch in launches(text):
            import_launch(launch, NOWHERE, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB + "image: vllm/vllm-openai\n", "values, aliases written out"),
        ("image: vllm-openai\nargs: " + "[" * 10_000, "nesting depth"),
        ("image: vllm-openai\nargs: &a [*a]", "stands inside what it refers to"),
        ("%TAG ! x\n---\nimage: vllm-openai", "YAML directive"),
        ('image: vllm-openai\nargs: ["\\x01M\\x02"]', "no server"),
    ],
)
def test_yaml_that_would_exhaust_the_reader_is_refused(text: str, message: str) -> None:
    if message == "no server":
        assert launches(text)[0].words[0].unknown == ("M",)
    else:
        assert message in refusal(text)


@given(st.text(alphabet="vllm serve-$(){}[]'\"\\`\n<>|&;=:#abE*!", max_size=200))
def test_any_text_behind_a_command_is_read_or_refused(text: str) -> None:
    for source in (f"vllm serve {text}", pod("command: [sh, -c]", "args:", f"- {text!r}")):
        with suppress(DocumentError):
            imported(source)
