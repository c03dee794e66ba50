"""``planner traffic``: the histogram on standard output, what it says on standard error."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import pytest

from cache.records import EntryCount, TrafficRecord
from planner.descriptors import PlanEntry
from planner.modes import CUDAGraphMode
from planner.traffic.batching import Batching
from planner.traffic.histogram import dump_histogram
from planner.traffic.load import load_histogram
from tests.planner.cli.conftest import PROJECT, Program, Run, one_line
from tests.planner.traffic.texts import ALL, AZURE, BURSTGPT, HISTOGRAM, HISTOGRAMS, METRICS, TRACES, USAGE


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    return path


@pytest.mark.parametrize(("kind", "text"), ALL.items(), ids=ALL)
def test_every_kind_becomes_a_histogram_that_is_read_again(run: Run, kind: str, text: str) -> None:
    result = run("traffic", "-", input=text)
    assert result.exit_code == 0
    assert result.stderr.startswith(f"standard input: {kind}")
    assert result.stdout == dump_histogram(load_histogram(text, path="standard input"))
    again = run("traffic", "-", input=result.stdout)
    assert again.stdout == result.stdout


@pytest.mark.parametrize("text", TRACES.values(), ids=TRACES)
def test_a_trace_is_replayed_on_the_server_of_the_options(run: Run, text: str) -> None:
    server = {"max-num-seqs": 1, "step-time": 5, "prefill-rate": 100, "chunk": 64, "rate": 0.5}
    speculation = {"query-len": 3, "tokens-per-step": 2.5}
    options = [part for name, value in (server | speculation).items() for part in (f"--{name}", value)]
    result = run("traffic", "-", *options, input=text)
    batching = Batching(
        max_num_seqs=1, step_time=5, prefill_rate=100, chunk=64, rate=0.5, query_len=3, tokens_per_step=2.5
    )
    assert result.stdout == dump_histogram(load_histogram(text, path="standard input", batching=batching))


def test_the_summary_says_what_the_batches_are_like_and_what_the_default_pads(run: Run, azure: Path) -> None:
    result = run("traffic", azure, "--max-num-seqs", "2", "--chunk", "900")
    assert result.stderr == (
        "azure.csv: Azure CSV, 3 requests in 0:00:04\n"
        "\n"
        "replayed at                rate 1, step time 25 ms, prefill 20000 tokens/s, "
        "chunk 900, max_num_seqs\n"
        "                           2\n"
        "decode steps               151, of 1.4 requests on average\n"
        "requests in a step         p50 1, p90 2, p99 2, max 2\n"
        "at max_num_seqs            35.8% of the steps; other requests may wait\n"
        "padding of vLLM's default  0.0%, in 2 of its 2 decode graphs\n"
    )


def test_batches_beyond_the_default_and_those_with_prefill_are_told(run: Run) -> None:
    text = HISTOGRAM + "600,12,600\n"
    stderr = run("traffic", "-", input=text).stderr
    assert "of its 51 decode graphs; 10.3% of the steps have none\n" in stderr
    assert "other steps                3, of up to 700 tokens\n" in stderr


def test_requests_that_got_nothing_are_told(run: Run) -> None:
    assert "without output             1 request left out\n" in run("traffic", "-", input=BURSTGPT).stderr


def test_malformed_rows_are_an_error_with_their_line_or_counted(run: Run, azure: Path) -> None:
    azure.write_text(AZURE + "yesterday,1,2\n")
    result = run("traffic", azure)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert one_line(result.stderr).startswith(
        f"planner: error: {azure}:5:1: TIMESTAMP: expected a time such as 2023-11-16 18:15:46.68, "
        "found 'yesterday'; correct it"
    )
    skipped = run("traffic", azure, "--skip-malformed")
    assert skipped.exit_code == 0
    assert "1 malformed row left out   line 5: TIMESTAMP: expected a time" in skipped.stderr


def test_the_output_goes_to_a_file_that_only_a_histogram_is_replaced_in(run: Run, azure: Path) -> None:
    output = azure.with_name("out.csv")
    assert run("traffic", azure, "-o", output, "--quiet").output == ""
    first = output.read_text()
    assert run("traffic", azure, "-o", output, "--rate", "3", "-q").exit_code == 0
    assert output.read_text() != first
    result = run("traffic", azure, "-o", azure)
    assert result.exit_code == 2
    assert "holds something else, which is kept" in one_line(result.stderr)
    assert azure.read_text() == AZURE


def test_the_source_says_what_the_user_adds(run: Run, azure: Path) -> None:
    lines = run("traffic", azure, "--about", "a service, CC-BY").stdout.splitlines()
    assert lines[0] == "# source: azure.csv (Azure CSV, 3 requests)"
    assert lines[2:4] == ["# a service, CC-BY", "block,num_reqs,num_tokens,count"]


def test_decode_of_vllms_tables_is_in_requests_of_the_query_length(run: Run) -> None:
    assert "2,6,31\n" in run("traffic", "-", "--query-len", "3", input=METRICS).stdout


def test_the_cache_shows_counts_as_they_are_read(run: Run) -> None:
    counts = [
        EntryCount(entry=PlanEntry(CUDAGraphMode.FULL, 2, 2, 1), count=3),
        EntryCount(entry=PlanEntry(CUDAGraphMode.FULL, 4, 4, 1), count=8),
        EntryCount(entry=PlanEntry(CUDAGraphMode.PIECEWISE, 2), count=5),
    ]
    record = TrafficRecord(plan="sha256:ab", family="target", counts=tuple(counts), eager=2)
    text = json.dumps(record.as_json(), indent=1)
    assert run("traffic", "-", input=text).stdout == run("traffic", "-", input=USAGE).stdout


@pytest.mark.parametrize(
    ("option", "value", "what"),
    [
        ("--rate", "0", "'0' is not within 1e-06 and 1e+06"),
        ("--rate", "nan", "'nan' is not within"),
        ("--step-time", "fast", "'fast' is not a number"),
        ("--chunk", "0", "0 is too small"),
        ("--max-num-seqs", "1e3", "'1e3' is not a whole number"),
        ("--tokens-per-step", "0.5", "'0.5' is not within 1 and"),
    ],
)
def test_options_out_of_range_are_usage_errors(run: Run, option: str, value: str, what: str) -> None:
    result = run("traffic", "-", option, value, input=HISTOGRAM)
    assert result.exit_code == 2
    assert what in one_line(result.stderr)


@pytest.mark.parametrize("extreme", ["1000000000000", "1"])
def test_extreme_servers_are_no_surprise(run: Run, extreme: str) -> None:
    names = ("--max-num-seqs", "--prefill-rate", "--chunk", "--query-len")
    options = [part for name in names for part in (name, extreme)]
    result = run("traffic", "-", *options, input=AZURE)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("extreme", ["1000000000000", "1"])
@pytest.mark.parametrize("text", HISTOGRAMS.values(), ids=HISTOGRAMS)
def test_extreme_decodes_of_counts_are_no_surprise(run: Run, extreme: str, text: str) -> None:
    result = run("traffic", "-", "--query-len", extreme, input=text)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(("kind", "text"), HISTOGRAMS.items(), ids=HISTOGRAMS)
def test_options_of_a_replay_are_refused_where_nothing_is_replayed(run: Run, kind: str, text: str) -> None:
    result = run("traffic", "-", "--max-num-seqs", 4, "--rate", 0.5, "--chunk", 5, input=text)
    assert (result.exit_code, result.stdout) == (2, "")
    assert one_line(result.stderr).startswith(
        f"planner: error: --max-num-seqs, --rate, --chunk: standard input ({kind}) holds steps that are "
        "counted already, which cannot be replayed; give the trace of the requests"
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--max-num-seqs", "256"),
        ("--rate", "1"),
        ("--step-time", "25"),
        ("--prefill-rate", "20000"),
        ("--chunk", "8192"),
        ("--tokens-per-step", "1"),
    ],
)
def test_even_the_default_is_refused_for_counts_once_it_is_asked_for(
    run: Run, option: str, value: str
) -> None:
    result = run("traffic", "-", option, value, input=HISTOGRAM)
    assert result.exit_code == 2
    assert f"error: {option}: " in one_line(result.stderr)
    assert run("traffic", "-", option, value, input=AZURE).exit_code == 0


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--tokens-per-step", 3), "a decode of 1 token gains at most as many a step, not 3; "),
        (
            ("--query-len", 4, "--tokens-per-step", 5),
            "a decode of 4 tokens gains at most as many a step, not 5",
        ),
        (
            ("--chunk", 8, "--max-num-seqs", 16),
            "16 requests (max_num_seqs) do not fit into a step of 8 tokens",
        ),
        (("--chunk", 255), "256 requests (max_num_seqs) do not fit into a step of 255 tokens (chunk)"),
        (
            ("--chunk", 3, "--max-num-seqs", 2, "--query-len", 4),
            "a decode of 4 tokens does not fit into a step of 3 tokens (chunk)",
        ),
    ],
)
def test_a_server_that_cannot_be_is_refused(run: Run, options: tuple[object, ...], what: str) -> None:
    result = run("traffic", "-", *options, input=AZURE)
    assert (result.exit_code, result.stdout) == (2, "")
    assert what in one_line(result.stderr)


@pytest.mark.parametrize(
    "options", [("--query-len", 4, "--tokens-per-step", 4), ("--chunk", 16, "--max-num-seqs", 16)]
)
def test_the_last_server_that_can_be_is_replayed(run: Run, options: tuple[object, ...]) -> None:
    assert run("traffic", "-", *options, input=AZURE).exit_code == 0


@pytest.mark.parametrize("where", ["help", "README"])
def test_it_is_said_that_mixed_steps_appear_as_decode(run: Run, where: str) -> None:
    text = run("traffic", "--help").stdout if where == "help" else (PROJECT / "README.md").read_text()
    words = " ".join(text.split())
    assert "A step is counted by its running decodes alone" in words
    assert "mixed steps appear as decode" in words


def test_a_mixed_step_counts_as_the_decodes_in_it(run: Run) -> None:
    # The second prompt is done beside the first request's only decode.
    requests = "arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,2\n0.001,10,1\n"
    lines = run("traffic", "-", input=requests).stdout.splitlines()
    assert lines[2:] == ["block,num_reqs,num_tokens,count", "7,1,1,1"]


def test_help_has_examples(run: Run) -> None:
    result = run("traffic", "--help")
    assert "planner traffic requests.csv -o histogram.csv" in result.stdout
    assert "CONVERT" not in result.stdout


@pytest.mark.parametrize("path", sorted((PROJECT / "plans" / "traffic").glob("*.csv")), ids=lambda p: p.name)
def test_committed_histograms_name_their_source_and_are_in_their_final_form(run: Run, path: Path) -> None:
    result = run("traffic", path, "-q")
    assert result.stdout == path.read_text()
    assert "licensed" in load_histogram(path).source


def test_a_pipe_is_read_as_a_file_is(program: Program) -> None:
    done = program("traffic", "/dev/stdin", "-q", input=AZURE.encode())
    assert done.stdout.startswith(b"# source: stdin (Azure CSV, 3 requests)\n")


@pytest.mark.parametrize(
    ("name", "what"),
    [("none.csv", "none.csv: cannot be read: No such file"), ("/", "/: cannot be read: Is a directory")],
)
def test_a_file_that_cannot_be_read_is_told(run: Run, name: str, what: str) -> None:
    result = run("traffic", name)
    assert result.exit_code == 2
    assert what in one_line(result.stderr)


def test_endless_bytes_without_a_line_end_are_refused(run: Run) -> None:
    result = run("traffic", "/dev/zero")
    assert "/dev/zero: is binary; give text" in one_line(result.stderr)
    result = run("traffic", "-", input="1," * 600_000)
    assert "standard input:1:1: longer than 1048576 bytes" in one_line(result.stderr)


@pytest.mark.parametrize("skip", [(), ("--skip-malformed",)])
@pytest.mark.parametrize(
    ("content", "what"),
    [
        (gzip.compress(AZURE.encode()), "is gzip-compressed; unpack it"),
        (lzma.compress(AZURE.encode()), "is xz-compressed; unpack it"),
        (AZURE.encode("utf-16"), "is UTF-16; convert it to UTF-8"),
        (AZURE.encode("utf-16-le"), "is UTF-16; convert it to UTF-8"),
        (AZURE.encode("utf-16-be"), "is UTF-16; convert it to UTF-8"),
        (AZURE.encode("utf-32"), "is UTF-32; convert it to UTF-8"),
        (b"\x7fELF\2\1\1\0\0\0", "is binary; give text, such as CSV"),
        (b"\0", "is binary; give text, such as CSV"),
    ],
    ids=["gzip", "xz", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "program", "zero"],
)
def test_a_file_that_is_no_text_is_told_as_such_and_never_skipped(
    run: Run, content: bytes, what: str, skip: tuple[str, ...]
) -> None:
    result = run("traffic", "-", *skip, input=content)
    assert result.exit_code == 2
    assert one_line(result.stderr) == f"planner: error: standard input: {what}"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_the_machines_fault(run: Run, azure: Path) -> None:
    result = run("traffic", azure, "-o", "/dev/full")
    assert result.exit_code == 3
    assert one_line(result.stderr) == "planner: error: /dev/full: cannot be written: No space left on device"


def test_it_runs_as_a_program(program: Program) -> None:
    done = program("traffic", "-", "-q", input=AZURE.encode())
    assert done.returncode == 0
    assert done.stdout.startswith(b"# source: standard input (Azure CSV, 3 requests)\n")
    assert done.stderr == b""
