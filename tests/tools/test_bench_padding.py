"""The benchmark of padding, on the committed histograms of two real traces and on small files."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.traffic.histogram import HistogramRow, dump_histogram, histogram_of
from planner.traffic.lines import SKIPPING
from tests.planner.traffic.texts import AZURE, METRICS
from tools.bench_padding import main

PROJECT = Path(__file__).resolve().parents[2]
TRAFFIC = PROJECT / "plans" / "traffic"


def bench(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "tools/bench_padding.py", *map(str, args)]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120, check=False)


def fault_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *args: object
) -> tuple[object, str]:
    """Exit code and error of the tool, in this process; what else it raises fails the test."""
    monkeypatch.chdir(PROJECT)
    monkeypatch.setattr(sys, "argv", ["bench_padding.py", *map(str, args)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr().err


def report_of(*args: object) -> dict[str, Any]:
    done = bench(*args, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def reports() -> dict[str, dict[str, Any]]:
    return {name: report_of(TRAFFIC / f"{name}-conversation.csv") for name in ("azure-2023", "mooncake")}


@pytest.mark.parametrize(
    ("name", "vllm", "plain", "target"),
    [("azure-2023", 0.083, 0.040, 0.035), ("mooncake", 0.171, 0.068, 0.050)],
)
def test_traffic_with_24_graphs_keeps_its_target_on_the_days_to_come(
    reports: dict[str, dict[str, Any]], name: str, vllm: float, plain: float, target: float
) -> None:
    report = reports[name]
    assert report["held_out"]
    assert report["engines"]["vllm"]["graphs"] == 51
    assert report["engines"]["vllm"]["held_out_padding"] == pytest.approx(vllm, abs=0.0005)
    assert report["policies"]["plain_fit"]["held_out_padding"] == pytest.approx(plain, abs=0.0005)
    traffic = report["policies"]["traffic"]
    assert traffic["graphs"] == len(traffic["decode_sizes"]) == 24
    assert traffic["held_out_padding"] <= target
    assert traffic["uncovered"] == 0
    assert report["held_out_padding"] == traffic["held_out_padding"]


@pytest.mark.parametrize("name", ["azure-2023", "mooncake"])
def test_16_graphs_for_traffic_beat_36_of_sglang(reports: dict[str, dict[str, Any]], name: str) -> None:
    sglang, traffic = reports[name]["engines"]["sglang"], reports[name]["policies"]["traffic_16"]
    assert (sglang["graphs"], traffic["graphs"]) == (36, 16)
    assert traffic["held_out_padding"] < sglang["held_out_padding"]
    assert traffic["uncovered"] == 0


def test_policy_engine_is_what_the_engine_does(reports: dict[str, dict[str, Any]]) -> None:
    for report in reports.values():
        assert report["policies"]["engine"] == report["engines"]["vllm"]


def test_sizes_are_scored_on_what_they_were_not_fitted_to(tmp_path: Path) -> None:
    def steps(num_reqs: int) -> list[HistogramRow]:
        return [HistogramRow(num_tokens=num_reqs, num_reqs=num_reqs, count=10)]

    path = tmp_path / "histogram.csv"
    path.write_text(dump_histogram(histogram_of([steps(3), steps(5)])))
    report = report_of(path, "--graphs", 2, "--max-num-seqs", 20)
    assert (report["fitted_steps"], report["scored_steps"]) == (10, 10)
    assert report["policies"]["plain_fit"]["decode_sizes"] == [3, 20]
    assert report["policies"]["plain_fit"]["held_out_padding"] == 0.75
    assert report["engines"]["vllm"]["held_out_padding"] == 1 - 5 / 8
    unpadded = report["engines"]["tensorrt_llm"]
    assert (unpadded["held_out_padding"], unpadded["uncovered"]) == (0, 0)


def test_without_time_spans_nothing_is_held_out_and_it_says_so(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(METRICS)
    report = report_of(path)
    assert not report["held_out"]
    assert report["held_out_padding"] is None
    assert report["policies"]["traffic"]["padding"] == pytest.approx(0, abs=0.05)
    assert "fitted and scored on all (31 decode steps)" in bench(path).stdout


def test_people_get_a_table(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(AZURE)
    lines = bench(path, "--rate", 0.5, "--graphs", 4).stdout.splitlines()
    assert lines[0] == "trace (Azure CSV): fitted to the first half, scored on the second (108 decode steps)"
    assert [line[:6] for line in lines[3:]] == [
        "vLLM  ",
        "SGLang",
        *["Tensor"] * 3,
        "fit wi",
        *["policy"] * 3,
    ]


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (("none.csv",), "none.csv: no such file"),
        (("README.md",), "README.md: holds no trace"),
        (("README.md", "--rate", "0"), "argument --rate: '0' is not a number above 0, up to 1048576"),
        (("README.md", "--rate", "nan"), "argument --rate: 'nan' is not a number above 0, up to 1048576"),
        (("README.md", "--rate", "fast"), "argument --rate: 'fast' is not a number\n"),
        (
            ("README.md", "--graphs", "9999999"),
            "argument --graphs: '9999999' is not a whole number above 0, up to 512",
        ),
        (("README.md", "--max-num-seqs", "1048576"), "argument --max-num-seqs: '1048576' is not a whole"),
        (("README.md", "--chunk", "1.5"), "argument --chunk: '1.5' is not a whole number\n"),
    ],
)
def test_faults_are_told_without_a_traceback(
    args: tuple[str, ...], what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = fault_of(monkeypatch, capsys, *args)
    assert code == 2
    assert what in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (gzip.compress(AZURE.encode()), "is gzip-compressed; unpack it\n"),
        (AZURE.encode("utf-16"), "is UTF-16; convert it to UTF-8\n"),
        (f"{AZURE}yesterday,1,2\n".encode(), f"; {SKIPPING}\n"),
    ],
    ids=["gzip", "utf-16", "malformed row"],
)
def test_what_is_advised_can_be_done(
    tmp_path: Path,
    content: bytes,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    code, told = fault_of(monkeypatch, capsys, path)
    assert code == 2
    assert told.endswith(what)


def test_counts_without_decode_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "histogram.csv"
    path.write_text("num_tokens,count\n700,3\n")
    done = bench(path)  # as a program of its own, for all faults
    assert done.returncode == 2
    assert "has no decode batches; sizes for decode are what is compared" in done.stderr
