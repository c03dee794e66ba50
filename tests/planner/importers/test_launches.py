"""Which commands of a script start a server, how often, and with which environment."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from planner.errors import DocumentError
from planner.importers.imported import Completion, Imported
from planner.importers.source import import_text, launches_in

V2 = "VLLM_USE_V2_MODEL_RUNNER"


def count(text: str) -> int:
    return len(launches_in(text, "run.sh", {}))


def imported(text: str, values: Mapping[str, str] | None = None) -> Imported:
    completion = Completion(env={"HF_HOME": "/nonexistent"}, values=values or {})
    return import_text(text, completion, path="run.sh")


def refusal(text: str) -> str:
    with pytest.raises(DocumentError) as error:
        imported(text)
    return str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "echo vllm serve m",
        "echo 'vllm serve m'",
        "printf '%s ' vllm serve m",
        "sudo /bin/echo vllm serve m",
        "if true; then echo vllm serve m; fi",
        "f() { echo sglang serve m; }",
        "echo python -m sglang.launch_server --model-path m",
        "echo docker run vllm/vllm-openai --model m",
        ": vllm serve m",
        "# vllm serve m",
        "cat <<E\nvllm serve m\nE",
        "cat vllm serve m",
        "command -v vllm serve",
        "which trtllm-serve m",
        "pgrep -f vllm serve m",
        "for x in vllm serve; do echo $x; done",
        "export A=1 vllm serve m",
        "[ $1 = vllm serve ]",
        "docker pull -q vllm/vllm-openai m",
        "docker build -t vllm/vllm-openai .",
        "docker tag vllm/vllm-openai mine",
    ],
)
def test_a_command_that_only_names_a_server_starts_none(text: str) -> None:
    assert count(text) == 0


@pytest.mark.parametrize(
    "text",
    [
        "echo starting; vllm serve m",
        "echo vllm serve a && vllm serve m",
        "command vllm serve m",
        "if x; then exec vllm serve m; fi",
        "sudo -E env A=1 nohup vllm serve m",
        "sudo docker run --name echoes vllm/vllm-openai m",
        "srun --container-image vllm/vllm-openai vllm serve m",
        "docker exec c vllm serve m",
        "time numactl -N 0 vllm serve m",
        "set -- vllm serve m",
    ],
)
def test_a_command_behind_others_starts_one(text: str) -> None:
    assert count(text) == 1


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (
            "for i in 1 2; do\n  vllm serve m --port $i &\ndone",
            "line 2: the server is started in the loop of line 1, which may start several; one is imported",
        ),
        (
            "while x; do vllm serve m; done",
            "line 1: the server is started in the loop of line 1, which may start several; one is imported",
        ),
        (
            "f() {\n  vllm serve m\n}\nf\nf",
            "line 2: the server is started in the function f, which is called 2 times; one is imported",
        ),
        (
            "f() {\n  vllm serve m\n}",
            "line 2: the server is started in the function f, which is never called here",
        ),
    ],
)
def test_a_server_that_may_be_started_again_is_told(text: str, note: str) -> None:
    assert note in imported(text).notes


@pytest.mark.parametrize("text", ["f() { vllm serve m; }\nf", "for i in 1; do x; done\nvllm serve m"])
def test_a_server_that_is_started_once_needs_no_note(text: str) -> None:
    assert not any("is started in" in note for note in imported(text).notes)


def test_the_variable_of_a_loop_is_not_looked_up() -> None:
    assert "--max-num-seqs: $i is not looked up" in refusal(
        "for i in 1 2; do vllm serve m --max-num-seqs $i; done"
    )


@pytest.mark.parametrize(
    "text",
    [
        f"export {V2}=0\nvllm serve m",
        f"{V2}=0\nexport {V2}\nvllm serve m",
        f"export {V2}=1\n{V2}=0\nvllm serve m",
        f"cd x && export {V2}=0 && vllm serve m",
        f"if x; then export {V2}=0; vllm serve m; fi",
        f"f() {{\n  export {V2}=0\n  vllm serve m\n}}\nf",
        f"export {V2}=0\nf() {{ vllm serve m; }}\nf",
        f"(export {V2}=0; vllm serve m)",
        f"Environment=HF_HOME=/x {V2}=0\nExecStart=/bin/vllm serve m",
        f"Environment='{V2}=0'\nExecStart=/bin/vllm serve m",
        f"ENV {V2}=0\nCMD vllm serve m",
    ],
)
def test_an_exported_variable_that_is_certain_counts(text: str) -> None:
    assert imported(text).deployment.engine.env == {V2: "0"}


@pytest.mark.parametrize(
    "text",
    [
        f"if x; then export {V2}=0; fi\nvllm serve m",
        f"if x; then export {V2}=0; else vllm serve m; fi",
        f"case x in\na) export {V2}=0 ;;\nb) vllm serve m ;;\nesac",
        f"x && export {V2}=0\nvllm serve m",
        f"x || export {V2}=0\nvllm serve m",
        f"(export {V2}=0)\nvllm serve m",
        f"f() {{ vllm serve m; }}\nexport {V2}=0\nf",
        f"f() {{ vllm serve m; }}\n{V2}=0 f",
        f"export {V2}=1\nf() {{ vllm serve m; }}\nunset {V2}\nf",
        f"export {V2}\nvllm serve m",
    ],
)
def test_an_exported_variable_that_is_not_certain_is_asked_for(text: str) -> None:
    assert f"{V2}: ${V2} is not looked up or run here; give its value with --set" in refusal(text)
    assert imported(text, {V2: "1"}).deployment.engine.env == {V2: "1"}


def test_a_variable_that_is_taken_away_is_not_set() -> None:
    assert imported(f"export {V2}=0\nunset {V2}\nvllm serve m").deployment.engine.env == {}


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("source .env\nvllm serve m", "line 1: .env is not read"),
        ("set -a; . ./x.sh; set +a\nvllm serve m", "line 1: ./x.sh is not read"),
        ("env $(cat .env) vllm serve m", "$(cat .env) in front of the server is not read"),
        ("export $(cat .env | xargs)\nvllm serve m", "line 1: export $(cat .env | xargs) is not read"),
        (
            "EnvironmentFile=-/etc/v\nExecStart=/bin/vllm serve m",
            "line 1: EnvironmentFile /etc/v is not read",
        ),
        ("kubectl apply -f pod.yaml\nvllm serve m", "line 1: pod.yaml is not read; import it by itself"),
        (
            "kubectl apply -f - <<E\nspec:\n  containers:\n  - image: vllm/vllm-openai\nE\nvllm serve m",
            "line 1: the text that kubectl reads out of the script is not read",
        ),
        ("cat > s.sh <<E\nvllm serve a\nE\nvllm serve m", "s.sh, which the script writes, is not read"),
    ],
)
def test_what_a_script_takes_from_elsewhere_is_told(text: str, note: str) -> None:
    assert any(found.startswith(note) for found in imported(text).notes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bash <<E\nvllm serve m\nE", "line 1: the text that bash reads out of the script is not read"),
        (
            "cat <<E | kubectl apply -f -\nspec:\n  containers:\n  - image: vllm/vllm-openai\nE",
            "line 1: the text that kubectl reads out of the script is not read; save it as a file of its own",
        ),
        (
            "cat > p.yaml <<'E'\nspec:\n  containers:\n  - image: vllm/vllm-openai\nE\n",
            "p.yaml, which the script writes, is not read; save it as a file of its own and import that",
        ),
        ("# vllm serve\ndocker compose -f c.yaml up", "line 2: c.yaml is not read; import it by itself"),
        (
            "services:\n  a:\n    extends: {file: b.yaml, service: b}\n    command: --model m\n",
            "a: extends b of b.yaml is not followed; what that service sets is missing",
        ),
        (
            "include: [b.yaml]\nservices:\n  a: {image: x}\n",
            "include b.yaml is not read; import it by itself",
        ),
        ("include: [{path: b.yaml}]\nservices:\n  a: {image: x}\n", "include b.yaml is not read"),
    ],
)
def test_where_a_source_without_a_server_may_have_them_is_told(text: str, message: str) -> None:
    found = refusal(text)
    assert found.startswith("run.sh: no command that starts a server is found")
    assert message in found


def test_a_service_that_extends_another_is_told() -> None:
    text = "services:\n  a:\n    image: vllm/vllm-openai\n    extends: b\n    command: --model m\n"
    assert "extends b is not followed; what that service sets is missing" in imported(text).notes


def test_a_manifest_with_a_text_for_a_program_in_it_stays_a_manifest() -> None:
    text = (
        "spec:\n  containers:\n  - name: c\n    command: [sh, -c]\n    args:\n    - |\n"
        "      cat > x.yaml <<E\n      max-num-seqs: 4\n      E\n      vllm serve m --config x.yaml\n"
    )
    assert imported(text).deployment.scheduler.max_num_seqs == 4


def test_what_is_said_of_the_environment_wins_over_files_that_are_not_read() -> None:
    assert imported("source .env\nvllm serve m", {V2: "0"}).deployment.engine.env == {V2: "0"}


SERVER = "vllm serve Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        (
            f"if false; then {SERVER}; fi",
            "line 1: the server is started only if the condition of line 1 is met",
        ),
        (
            f"case $1 in\na) {SERVER} ;;\nesac",
            "line 2: the server is started only if the condition of line 1",
        ),
        (f"exit 0\n{SERVER}", "line 1: exit ends the script before the server of line 2 is started"),
        (f"exec x\n{SERVER}", "line 1: exec ends the script before the server of line 2 is started"),
        (f"vllm() {{ x; }}\n{SERVER}", "line 2 calls vllm, a function of the script, which is not followed"),
        (f"alias vllm='x y'\n{SERVER}", "line 1: alias vllm is not followed"),
        (f"echo 'vllm serve m' | bash\n{SERVER}", "line 1: what bash reads from the pipe is not read"),
        (f"eval 'vllm serve m'\n{SERVER}", "line 1: what eval runs is not read"),
        (f'eval "$X"\n{SERVER}', "line 1: what eval runs is not read"),
    ],
)
def test_what_may_keep_a_server_from_starting_as_it_stands_is_told(text: str, remark: str) -> None:
    assert any(note.startswith(remark) for note in imported(text).notes)


@pytest.mark.parametrize(
    "text",
    [
        f"if x; then exit 1; fi\n{SERVER}",
        f"cd x || exit 1\n{SERVER}",
        f"[ x ] && exit 1\n{SERVER}",
        f"f() {{ exit 1; }}\n{SERVER}",
        f"exec > log\n{SERVER}",
        f"{SERVER}\nexit 0",
        f"exec {SERVER}",
        f"if ! {SERVER}; then x; fi",
        f"if x; then y; fi; {SERVER}",
        f"run() {{ x; }}\n{SERVER}",
        f"alias ll='ls -l'\n{SERVER}",
        f"echo x | grep x\n{SERVER}",
        f"echo x | bash run.sh\n{SERVER}",
        f"eval set -- x\n{SERVER}",
    ],
)
def test_what_keeps_no_server_from_starting_is_not_told(text: str) -> None:
    assert imported(text).notes == imported(SERVER).notes


@pytest.mark.parametrize(
    ("text", "unread"),
    [
        ('CMD="vllm serve m"; eval "$CMD"', "line 1: what eval runs is not read"),
        ("echo 'vllm serve m' | bash", "line 1: what bash reads from the pipe is not read"),
        ("bash <<< 'vllm serve m'", "line 1: the text that bash reads out of the script is not read"),
        ("echo 'vllm serve m' | sudo bash -s", "line 1: what bash reads from the pipe is not read"),
    ],
)
def test_a_server_that_only_a_shell_will_read_is_named_as_not_read(text: str, unread: str) -> None:
    assert unread in refusal(text)


@pytest.mark.parametrize("line", ["((VLLM_USE_V2_MODEL_RUNNER++))", "declare -n R=VLLM_USE_V2_MODEL_RUNNER"])
def test_an_exported_variable_that_changes_without_an_assignment_is_not_stale(line: str) -> None:
    message = refusal(f"export {V2}=0\n{line}\n{SERVER}")
    assert f"${V2} is not looked up or run here" in message
