"""The program as a whole: help, errors, exit codes, pipes, and what it imports."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from planner import DocumentError, MachineError
from tests.planner.cli.conftest import PROJECT, Program, Run, as_program, one_line

COMMANDS = ("compile", "check", "explain", "dispatch", "diff", "schema")


def test_without_arguments_the_help_lists_every_command(run: Run) -> None:
    result = run()
    assert result.exit_code == 0
    assert result.stdout == run("--help").stdout
    for command in COMMANDS:
        assert f"\n  {command} " in result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself_with_examples(run: Run, command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert f"planner {command} " in result.stdout.partition("Examples:")[2]


def test_the_version_is_one_line(run: Run) -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert one_line(result.stdout).startswith("planner ")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--bogus"], "planner: error: No such option '--bogus'; see `planner --help`"),
        (["comple"], "planner: error: No such command 'comple'; see `planner --help`"),
        (["compile"], "planner: error: Missing argument 'DEPLOYMENT|COMMAND'; see `planner compile --help`"),
        (["schema", "x"], "planner: error: Invalid value for '{deployment|plan}'"),
        (["compile", "-"], "planner: error: standard input: is empty; did the command before it fail?"),
        (["compile", "no-such-file"], "planner: error: no-such-file: no such file"),
        (["diff", "-", "-"], "planner: error: standard input (-) can be given once only"),
    ],
)
def test_bad_usage_and_bad_input_are_one_line_and_exit_with_2(
    run: Run, args: list[str], message: str
) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert one_line(result.stderr).startswith(message)
    assert result.stdout == ""


@pytest.mark.parametrize("error", [DocumentError("broken", path="a"), MachineError("broken")])
def test_an_error_on_purpose_exits_with_its_code(
    run: Run, deployment: Path, monkeypatch: pytest.MonkeyPatch, error: DocumentError | MachineError
) -> None:
    monkeypatch.setattr("planner.cli.compile.compile_plan", raising(error))
    result = run("compile", deployment)
    assert result.exit_code == error.exit_code
    assert one_line(result.stderr) == f"planner: error: {error}"


def raising(error: BaseException) -> object:
    def call(*_: object) -> None:
        raise error

    return call


def test_an_unexpected_error_asks_for_a_report_and_shows_no_traceback(
    run: Run, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.cli.compile.compile_plan", raising(KeyError("one\ntwo")))
    result = run("compile", deployment)
    assert result.exit_code == 70
    assert one_line(result.stderr).startswith("planner: error: internal error: KeyError: ")
    assert "--debug" in result.stderr


def test_debug_shows_the_traceback_and_keeps_the_exit_code(
    run: Run, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.cli.compile.compile_plan", raising(KeyError("odd")))
    result = run("--debug", "compile", deployment)
    assert result.exit_code == 70
    assert "Traceback" in result.stderr
    assert "planner: error: " in result.stderr


def test_an_interrupt_ends_quietly(run: Run, deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.cli.compile.compile_plan", raising(KeyboardInterrupt()))
    result = run("compile", deployment)
    assert result.exit_code == 130
    assert result.stderr.strip() == ""


WRITING = [
    "",
    "--help",
    "--version",
    "compile --help",
    "cache list --help",
    "schema plan",
    "compile plans/deployments/qwen3-8b-dflash.yaml -q",
    "explain plans/small-decode.yaml --num-reqs 1 --num-tokens 1",
]
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")


@pytest.mark.parametrize("args", WRITING)
def test_a_reader_that_goes_away_is_no_error(args: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "planner.cli.main", *args.split()],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait() == 141


@needs_full
@pytest.mark.parametrize("args", WRITING)
def test_a_full_disk_is_one_line(args: str) -> None:
    with FULL.open("wb") as full:
        process = subprocess.run(
            [sys.executable, "-m", "planner.cli.main", *args.split()],
            cwd=PROJECT,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert process.returncode == 3
    assert one_line(process.stderr.decode()).startswith("planner: error: standard output: cannot be written")


@pytest.mark.parametrize("args", WRITING)
@pytest.mark.parametrize("errors", ["", "2>&-"])
def test_a_closed_output_is_one_line(args: str, errors: str) -> None:
    process = subprocess.run(
        f"exec {shlex.quote(sys.executable)} -m planner.cli.main {args} >&- {errors}",
        shell=True,
        cwd=PROJECT,
        stderr=subprocess.PIPE,
        check=False,
    )
    assert process.returncode == 2
    said = "" if errors else "planner: error: standard output is closed; write to a file\n"
    assert process.stderr.decode() == said


@needs_full
@pytest.mark.parametrize(
    ("args", "code"),
    [
        ("compile no-such-file", 2),
        ("check no-such-file", 2),
        ("comple", 2),
        ("compile plans/deployments/qwen3-8b-dflash.yaml", 0),
        ("check plans/compiled/qwen3-8b-dflash.yaml --strict", 1),
        ("--help", 0),
        ("--version", 0),
    ],
)
def test_where_nothing_can_be_said_the_exit_code_still_tells(args: str, code: int) -> None:
    with FULL.open("wb") as full:
        process = subprocess.run(
            [sys.executable, "-m", "planner.cli.main", *args.split()],
            cwd=PROJECT,
            stdout=subprocess.DEVNULL,
            stderr=full,
            check=False,
        )
    assert process.returncode == code


HEAVY = ("rich", "torch", "numpy", "jsonschema", "hypothesis", "sqlitedict")
NOT_FOR_COMPILE = ("planner.documents.schema", "planner.explain", "planner.diff", "planner.cli.rich_render")


def test_compiling_imports_nothing_that_it_does_not_need(deployment: Path) -> None:
    script = (
        "import sys\n"
        "from planner.cli.main import main\n"
        "try:\n"
        f"    main(['compile', {str(deployment)!r}])\n"
        "finally:\n"
        "    print('\\n'.join(sys.modules), file=sys.stderr)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    loaded = set(process.stderr.splitlines())
    assert "planner.cli.compile" in loaded
    assert loaded.isdisjoint({*HEAVY, *NOT_FOR_COMPILE})


def on_a_terminal(*args: object, **env: str) -> str:
    """What a terminal gets as standard output."""
    pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "planner.cli.main", *map(str, args)],
        cwd=PROJECT,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", **env},
    )
    os.close(theirs)
    chunks = []
    # Linux reports the other end's hang-up as an error.
    try:
        while chunk := os.read(ours, 4096):
            chunks.append(chunk)
    except OSError:
        pass
    os.close(ours)
    process.wait()
    return b"".join(chunks).decode()


COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7]m")


def test_a_terminal_gets_colour_unless_it_is_unwanted(by_hand: Path) -> None:
    args = ("explain", by_hand, "--num-reqs", 1, "--num-tokens", 1)
    assert COLOUR.search(on_a_terminal(*args))
    assert not COLOUR.search(on_a_terminal(*args, NO_COLOR="1"))
    assert "\x1b" not in on_a_terminal(*args, TERM="dumb")


def test_a_terminal_and_a_pipe_say_the_same(by_hand: Path, program: Program) -> None:
    args = ("explain", by_hand, "--num-reqs", 1, "--num-tokens", 1)
    on_terminal = on_a_terminal(*args, NO_COLOR="1")
    in_pipe = program(*args).stdout.decode()
    assert re.sub(r"\x1b\[[0-9;]*m", "", on_terminal).split() == in_pipe.split()


SHIPPED = PROJECT / "plans" / "compiled" / "qwen3-8b-dflash.yaml"
ON_SHIPPED: tuple[tuple[object, ...], ...] = (
    ("check", SHIPPED),
    ("explain", SHIPPED, "--num-reqs", 3, "--num-tokens", 9),
    ("diff", PROJECT / "plans" / "small-decode.yaml", SHIPPED),
)


@cache
def words_in_pipe(args: tuple[object, ...]) -> list[str]:
    """What a command writes into a pipe, which has no width."""
    return sorted(as_program(*args).stdout.decode().split())


@pytest.mark.parametrize("columns", [20, 30, 40, 70])
def test_a_narrow_terminal_loses_no_word(columns: int) -> None:
    for args in ON_SHIPPED:
        shown = on_a_terminal(*args, NO_COLOR="1", COLUMNS=str(columns))
        words = re.sub(r"\x1b\[[0-9;]*m", "", shown).split()
        assert sorted(words) == words_in_pipe(args)
