from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import DocumentError
from planner.importers.config_files import MAX_CONFIG_BYTES, expanded
from planner.importers.imported import Completion, Imported
from planner.importers.launches import Launch
from planner.importers.source import import_text
from planner.importers.words import Word


def words(settings: str, folder: Path, *line: str) -> list[str]:
    (folder / "s.yaml").write_text(settings)
    launch = Launch(engine="vllm", name="", words=(), where=Word(""))
    found, _ = expanded([Word(text) for text in line], launch, Completion(folder=folder), "line")
    return [word.text for word in found]


def imported(settings: str, folder: Path, line: str = "--config s.yaml") -> Imported:
    (folder / "s.yaml").write_text(settings)
    return import_text(f"vllm serve {line}", Completion(env={}, folder=folder), path="line")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("a: 1", ["--a=1"]),
        ("a: true\nb: false\nc: null\nd:", ["--a"]),
        ("a: 'true'", ["--a=true"]),
        ("a: yes\nb: Off\nc: 0\nd: 1e-3", ["--a", "--c=0", "--d=1e-3"]),
        ("a_b: x", ["--a-b=x"]),
        ("a: [1, x y]", ["--a", "1", "x y"]),
        ("a: []", []),
        ("a: {b: [1, true], c: x}", ['--a={"b": [1, true], "c": "x"}']),
        ("a: -1", ["--a=-1"]),
        ("x: &x {k: 1}\na: {<<: *x, l: 2}", ['--x={"k": 1}', '--a={"l": 2, "k": 1}']),
    ],
)
def test_keys_become_words(settings: str, expected: list[str], tmp_path: Path) -> None:
    assert words(settings, tmp_path, "--config", "s.yaml") == expected


def test_the_model_stays_in_front_and_the_line_behind(tmp_path: Path) -> None:
    assert words("a: [1]", tmp_path, "m", "--b", "--config=s.yaml", "c") == ["m", "--a", "1", "--b", "c"]


def test_the_line_wins_over_the_file_and_that_is_said(tmp_path: Path) -> None:
    found = imported("model: m\nmax-num-seqs: 4", tmp_path, "--config s.yaml --max-num-seqs 8")
    assert found.deployment.scheduler.max_num_seqs == 8
    assert "--max-num-seqs is given more than once; the last counts" in found.notes


def test_a_switch_that_the_file_cannot_turn_off_is_told(tmp_path: Path) -> None:
    notes = imported("model: m\nenable-chunked-prefill: false", tmp_path).notes
    assert any("enable-chunked-prefill: false is passed over" in note for note in notes)


@pytest.mark.parametrize(
    ("settings", "line", "message"),
    [
        ("model: m\nmax-num-sqs: 1", "--config s.yaml", "s.yaml:2:1: --max-num-sqs: is no flag"),
        ("model: m\nmax-num-seqs: 0", "--config s.yaml", "s.yaml:2:1: --max-num-seqs: 0 is too small"),
        ("a: [[1]]", "--config s.yaml", "s.yaml:1:5: expected a list of values, found a list in it"),
        ("a: 1", "--config s.yaml --config s.yaml", "--config: is given twice"),
        ("a: 1", "--config", "--config: needs a file"),
        ("a: 1", "--config $F", "--config: $F is not looked up"),
        ("a: 1", "--config /etc/passwd", "is no file of YAML by its name"),
        ("a: " + "x" * MAX_CONFIG_BYTES, "--config s.yaml", "larger than 1 MiB"),
        ("a: 1", "--config .", "is no file of YAML"),
        ("a: 1\na: 2", "--config s.yaml", "duplicate key a"),
        (
            "model: m\nmax-num-seqs: 1\nmax_num_seqs: 2",
            "--config s.yaml",
            "s.yaml:3:1: --max-num-seqs: is given twice, as '1' and as '2'; drop one",
        ),
        ("max-num-seqs: 4", "m --config s.yaml --max-num-seqs 1 --max-num-seqs 2", "as '1' and as '2'"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(
    settings: str, line: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DocumentError) as error:
        imported(settings, tmp_path, line)
    assert message in str(error.value)


def test_a_file_of_a_container_is_looked_for_beside_the_manifest(tmp_path: Path) -> None:
    text = "services:\n  a: {image: vllm/vllm-openai, command: --config /etc/s.yaml}\n"
    completion = Completion(env={}, folder=tmp_path)
    with pytest.raises(DocumentError, match=r"/etc/s\.yaml is a file of the container; lay a copy beside"):
        import_text(text, completion, path="c.yaml")
    (tmp_path / "s.yaml").write_text("model: m\nmax-num-seqs: 4")
    assert import_text(text, completion, path="c.yaml").deployment.scheduler.max_num_seqs == 4
