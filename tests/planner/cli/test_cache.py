"""``planner cache``: lines for people, JSON for programs, exit codes for scripts."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from cache.directory import DATABASE
from cache.store import PlanCache
from planner import dump_plan
from planner.cli.cache import age_text, size_text
from tests.cache import samples
from tests.planner.cli.conftest import PROJECT, Run, one_line


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with three records, where the environment says that the cache is."""
    monkeypatch.setenv("GRAPHPLAN_CACHE", str(tmp_path / "cache"))
    with PlanCache() as cache:
        cache.put_plan(samples.plan())
        cache.put_capture(samples.capture())
        cache.put_artifact(samples.capture(), "compiled", b"content")
    return tmp_path / "cache"


def keys(directory: Path) -> set[str]:
    with PlanCache(directory) as cache:
        return {str(summary.key) for summary in cache.list()}


def test_a_person_sees_what_is_stored(run: Run, directory: Path) -> None:
    result = run("cache", "list")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"{directory}: 3 records, ")
    assert lines[3].split() == ["kind", "key", "model", "gpu", "engine", "family", "size", "used"]
    assert [line.split()[0] for line in lines[4:]] == ["artifacts", "captures", "plans"]
    assert "small" in lines[6]


@pytest.mark.usefixtures("directory")
def test_a_program_sees_what_is_stored(run: Run) -> None:
    found = json.loads(run("cache", "list", "--format", "json", "--gpu", "h200").stdout)
    assert [(one["kind"], one["key"], one["uses"]) for one in found] == [
        ("captures", samples.capture().key.digest, 0)
    ]
    assert json.loads(run("cache", "list", "--format", "json", "--model", "nothing").stdout) == []
    assert len(json.loads(run("cache", "list", "--format", "json", "--digest", found[0]["key"]).stdout)) == 1


@pytest.mark.usefixtures("directory")
def test_a_plan_is_shown_as_the_document_that_it_is(run: Run) -> None:
    result = run("cache", "show", str(samples.plan().digest))
    assert (result.exit_code, result.stdout) == (0, dump_plan(samples.plan()))
    assert run("explain", "-", "--num-tokens", 3, "--num-reqs", 3, input=result.stdout).exit_code == 0
    shown = json.loads(run("cache", "show", samples.plan().digest, "--format", "json").stdout)
    assert shown["document"]["digest"] == samples.plan().digest


@pytest.mark.usefixtures("directory")
def test_a_capture_is_shown_as_json(run: Run) -> None:
    shown = json.loads(run("cache", "show", samples.capture().key).stdout)
    assert shown["entries"][1]["error"] == "out of memory"
    assert shown["environment"]["gpu"] == "NVIDIA H200"


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("plans/ffffffffffffffff", "no record's key begins with"),
        ("xyz", "give hexadecimal digits"),
        ("odd/ff", "the kinds are plans, captures, traffic, artifacts"),
        (samples.digest(0), "means 2 records: artifacts/"),
    ],
)
@pytest.mark.usefixtures("directory")
def test_a_key_that_means_no_one_record_is_told(run: Run, key: str, why: str) -> None:
    result = run("cache", "show", key)
    assert result.exit_code == 2
    assert why in one_line(result.stderr)


@pytest.mark.usefixtures("directory")
def test_a_sound_cache_is_clean(run: Run) -> None:
    result = run("cache", "check")
    assert (result.exit_code, result.stdout) == (0, "3 records read, all as they were put\n")


def test_a_damaged_artifact_is_found_and_removed(run: Run, directory: Path) -> None:
    for path in (directory / "blobs").iterdir():
        path.write_bytes(b"altered")
    result = run("cache", "check")
    assert result.exit_code == 1
    assert "3 records read, 1 problem\n" in result.stdout
    assert "SHA-256 differs" in " ".join(result.stdout.split())
    report = json.loads(run("cache", "check", "--fix", "--format", "json").stdout)
    assert (report["clean"], [one["fix"] for one in report["problems"]]) == (True, ["removed"])
    assert run("cache", "check").stdout == "2 records read, all as they were put\n"


def test_an_unreadable_database_is_set_aside_by_fixing(run: Run, directory: Path) -> None:
    (directory / DATABASE).write_bytes(b"no database" * 100)
    result = run("cache", "list")
    assert result.exit_code == 2
    assert one_line(result.stderr).endswith("is no SQLite database; planner cache check --fix sets it aside")
    assert run("cache", "check").exit_code == 1
    assert run("cache", "check", "--fix").exit_code == 0
    with PlanCache(directory):
        pass
    result = run("cache", "list")
    assert (result.exit_code, result.stderr) == (0, f"set aside: {DATABASE}.set-aside-1\n")


def test_limits_are_written_as_people_write_them(run: Run, directory: Path) -> None:
    assert run("cache", "prune").stdout == "removed 0 records, 0 B\n"
    assert (
        run("cache", "prune", "--max-size", "1GiB", "--max-age", "30d").stdout == "removed 0 records, 0 B\n"
    )
    assert run("cache", "prune", "--max-records", "2").stdout.startswith("removed 1 record, ")
    assert run("cache", "prune", "--max-size", "0B").stdout.startswith("removed 2 records, ")
    assert keys(directory) == set()


@pytest.mark.parametrize(
    "limit",
    [
        ("--max-size", "much"),
        ("--max-size", "1i"),
        ("--max-age", "30"),
        ("--max-age", "-1d"),
        ("--max-records", "x"),
    ],
)
def test_a_limit_that_is_none_is_told(run: Run, directory: Path, limit: tuple[str, str]) -> None:
    result = run("cache", "prune", *limit)
    assert result.exit_code == 2
    assert limit[0] in one_line(result.stderr)
    assert len(keys(directory)) == 3


def test_a_cache_is_carried_elsewhere(run: Run, directory: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "cache.zip", tmp_path / "other"
    assert run("cache", "export", file).stdout == "exported 3 records\n"
    assert run("cache", "import", file, "--cache", other).stdout == "imported 3 records\n"
    assert keys(other) == keys(directory)
    assert run("cache", "import", file, "--cache", other).stdout == "imported 0 records, 3 there already\n"
    assert run("cache", "export", file, samples.capture().key).stdout == "exported 1 record\n"
    assert run("cache", "clear", "--cache", other).stdout.startswith("removed 3 records, ")
    assert keys(other) == set()


def test_a_cache_is_carried_elsewhere_by_url(run: Run, directory: Path, tmp_path: Path) -> None:
    url, other = f"file://{tmp_path}/folder", tmp_path / "other"
    assert run("cache", "export", url).stdout.startswith("exported 3 records; ")
    assert run("cache", "import", url, "--cache", other).stdout.startswith("imported 3 records; ")
    assert keys(other) == keys(directory)
    again = run("cache", "export", url, samples.capture().key).stdout
    assert re.fullmatch(
        r"exported 0 records, 1 there already; 0 B moved \([0-9.]+ KiB there already\)\n", again
    )
    assert run("cache", "import", url, "--cache", other).stdout == (
        "imported 0 records, 3 there already; 0 B moved\n"
    )


def test_a_cache_is_carried_over_the_standard_streams(
    run: Run, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    exported = run("cache", "export", "-")
    assert (exported.exit_code, exported.stderr) == (0, "exported 3 records\n")
    run("cache", "export", tmp_path / "cache.zip")
    assert exported.stdout_bytes == (tmp_path / "cache.zip").read_bytes()
    other = tmp_path / "other"
    imported = run("cache", "import", "-", "--cache", other, input=exported.stdout_bytes)
    assert (imported.exit_code, imported.stdout) == (0, "imported 3 records\n")
    assert keys(other) == keys(directory)
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.usefixtures("directory")
def test_an_export_is_kept_off_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    result = run("cache", "export", "-")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "an export is no text for a terminal" in one_line(result.stderr)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (b"", "standard input: is empty; did the command before it fail?"),
        (b"no export", "standard input: is damaged, or no export of a cache"),
        (b"PK\3\4" + bytes(1020), "standard input: is larger than 0 GiB; import it as a file"),
    ],
    ids=["nothing", "text", "much"],
)
def test_standard_input_that_is_no_export_is_refused_and_makes_no_cache(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: bytes, why: str
) -> None:
    monkeypatch.setattr("planner.cli.cache_streams.MAX_STDIN_BYTES", 1000)
    result = run("cache", "import", "-", "--cache", tmp_path / "new", input=given)
    assert result.exit_code == 2
    assert why in one_line(result.stderr)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["none", "folder", "file/below", "secret", "notes", "pipe", "long" * 100])
def test_a_source_that_cannot_be_imported_makes_no_cache(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "secret").touch(mode=0)
    os.mkfifo(tmp_path / "pipe")
    result = run("cache", "import", tmp_path / name, "--cache", tmp_path / "new")
    assert result.exit_code == 2
    assert one_line(result.stderr).startswith(f"planner: error: {tmp_path / name}: ")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_url_that_cannot_be_imported_makes_no_cache(run: Run, tmp_path: Path, kind: str) -> None:
    result = run("cache", "import", f"{kind}://{tmp_path}/none", "--cache", tmp_path / "new")
    assert result.exit_code == 2
    assert "is not there" in one_line(result.stderr)
    assert list(tmp_path.iterdir()) == []


def test_a_record_that_is_not_there_leaves_one_cause_to_the_next_command(run: Run, directory: Path) -> None:
    shown = run("cache", "show", "plans/3ffe8162", "--cache", directory)
    result = run("explain", "-", "--num-reqs", 4, "--num-tokens", 64, input=shown.stdout)
    message = "planner: error: standard input: is empty; did the command before it fail?"
    assert (result.exit_code, one_line(result.stderr)) == (2, message)


@pytest.mark.usefixtures("directory")
@pytest.mark.parametrize(
    ("command", "url", "exit_code", "why"),
    [
        ("import", "memory://nothing/here", 2, "is not there"),
        ("import", "odd://x", 2, "Protocol not known"),
        ("export", "https://127.0.0.1:9/x", 3, "can be read only"),
        ("import", "http://127.0.0.1:9/x", 3, "cannot be read"),
    ],
)
def test_a_url_that_does_not_work_is_told_in_one_line(
    run: Run, command: str, url: str, exit_code: int, why: str
) -> None:
    result = run("cache", command, url)
    assert result.exit_code == exit_code
    assert why in one_line(result.stderr)
    assert url in result.stderr


@pytest.mark.usefixtures("directory")
def test_a_file_that_is_no_export_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    for command in ("import", "export"):
        result = run("cache", command, tmp_path / "notes")
        assert result.exit_code == 2
        assert str(tmp_path / "notes") in one_line(result.stderr)
    assert (tmp_path / "notes").read_text() == "mine"


def test_clearing_an_unreadable_database_sets_it_aside(run: Run, directory: Path) -> None:
    (directory / DATABASE).write_bytes(b"no database" * 100)
    result = run("cache", "clear")
    assert result.exit_code == 0
    assert "set aside as" in " ".join(result.stdout.split())
    assert (directory / f"{DATABASE}.set-aside-1").exists()


@pytest.mark.parametrize("command", ["list", "check", "prune", "clear"])
def test_a_cache_that_is_not_there_is_told_and_not_made(run: Run, tmp_path: Path, command: str) -> None:
    result = run("cache", command, "--cache", tmp_path / "none")
    assert result.exit_code == 2
    assert one_line(result.stderr) == f"planner: error: {tmp_path / 'none'}: there is no cache here"
    assert not (tmp_path / "none").exists()


def test_a_directory_that_others_may_write_to_is_refused(run: Run, directory: Path) -> None:
    directory.chmod(0o777)
    result = run("cache", "list")
    assert result.exit_code == 2
    assert "everybody may write to it" in one_line(result.stderr)


def test_without_a_command_there_is_help(run: Run) -> None:
    result = run("cache")
    assert result.exit_code == 0
    assert "prune" in result.stdout


EMPTY = [
    *(("cache", command, "--cache", "") for command in ("list", "check", "prune", "clear")),
    ("cache", "show", "--cache", "", "3ffe"),
    ("cache", "export", "--cache", " ", "cache.zip"),
    ("cache", "import", "--cache", "", "cache.zip"),
    ("compile", "--cache", "", PROJECT / "plans" / "deployments" / "qwen3-8b-dflash.yaml"),
    ("capture", "--cache", "", PROJECT / "plans" / "small-decode.yaml"),
    *(("cache", "list", option, "") for option in ("--model", "--gpu", "--engine", "--digest")),
    ("cache", "export", ""),
    ("cache", "import", ""),
]


@pytest.mark.parametrize("arguments", EMPTY, ids=lambda arguments: " ".join(map(str, arguments[:3])))
def test_an_empty_name_is_told_and_nothing_is_made_in_the_current_directory(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2
    assert " is empty; give " in one_line(result.stderr)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_variable_is_as_good_as_none(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("GRAPHPLAN_CACHE", ""), ("XDG_CACHE_HOME", str(tmp_path / "home"))):
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    message = one_line(run("cache", "list").stderr)
    assert message == f"planner: error: {tmp_path / 'home' / 'graphplan'}: there is no cache here"


@pytest.mark.parametrize("place", ["/dev/null", "file", "file/below"])
def test_a_place_that_is_no_directory_is_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for command in ("list", "check", "prune", "clear"):
        result = run("cache", command, "--cache", place)
        assert result.exit_code in (2, 3)
        message = one_line(result.stderr)
        assert message.startswith(f"planner: error: {place}: ")
        assert "no directory" in message or "Not a directory" in message
        assert "internal" not in message


@pytest.mark.usefixtures("directory")
def test_a_word_of_bytes_that_are_no_text_is_one_line(run: Run) -> None:
    result = run("cache", "list", "--model", "\udcff")
    assert result.exit_code == 2
    assert one_line(result.stderr).endswith("stores no text that is no Unicode")


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 30, "5.0 GiB")]
)
def test_sizes_are_short(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-50.0, "now"), (0.5, "now"), (59.0, "59 s ago"), (7300.0, "2 h ago"), (9e5, "10 d ago")],
)
def test_ages_are_short(seconds: float, text: str) -> None:
    assert age_text(seconds) == text
