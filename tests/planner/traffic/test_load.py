"""Any file: what it is shows in its content, and nothing in it ends in anything but one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import ArgumentError, DocumentError, GraphplanError
from planner.traffic.batching import Batching, BatchingError, ReplayError
from planner.traffic.load import load_histogram
from tests.planner.traffic.reading import read
from tests.planner.traffic.texts import ALL, AZURE, HISTOGRAM, METRICS


@pytest.mark.parametrize(("kind", "text"), ALL.items(), ids=ALL)
def test_each_kind_is_known_by_its_content(kind: str, text: str) -> None:
    assert read(text).kind == kind


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "file:1:1: is empty|file: is empty"),
        ("\n \n# nothing\n", "file: is empty"),
        ("hello\n", "file: holds no trace, histogram or table that is known: give a CSV trace of Azure"),
        ("TIMESTAMP,ContextTokens\n", "file:1:1: column GeneratedTokens is missing, which Azure CSV has"),
        ("num_reqs,count\n1,1", "file:1:1: column num_tokens is missing, which histogram CSV has"),
        ('{"a": 1}\n', "file: holds no trace"),
        ('"a\n', "file: holds no trace"),
    ],
)
def test_anything_else_is_refused(text: str, what: str) -> None:
    with pytest.raises(DocumentError, match=what):
        read(text)


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    _read_or_refused(data)


@settings(max_examples=300)
@given(st.sampled_from(tuple(ALL.values())), st.data())
def test_any_change_of_a_good_file_is_read_or_refused(text: str, data: st.DataObject) -> None:
    good = text.encode()
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, len(good)))
    middle = data.draw(
        st.binary(max_size=6) | st.sampled_from([b"9" * 30, b"\n", b",", b"{", b"-1", b"|", b'"', b"1e9"])
    )
    _read_or_refused(good[:start] + middle + good[end:])


def _read_or_refused(data: bytes) -> None:
    server = Batching(chunk=1 << 20)
    for skip_malformed in (False, True):
        try:
            found = read(data, skip_malformed=skip_malformed).as_histogram(server)
        except GraphplanError as error:
            assert "\n" not in str(error)  # noqa: PT017 - one of several outcomes
        else:
            assert all(row.count > 0 for row in found.rows)


def test_a_histogram_comes_from_a_file_or_from_text(tmp_path: Path) -> None:
    path = tmp_path / "requests.txt"
    path.write_text(AZURE)
    server = Batching(rate=0.5)
    found = load_histogram(path, batching=server)
    assert found == load_histogram(str(path), batching=server)
    assert found.rows == load_histogram(AZURE, batching=server).rows
    assert found.rows == load_histogram(AZURE.encode(), batching=server).rows
    assert found.source == f"requests.txt (Azure CSV, 3 requests)\nreplayed at {server}"
    assert load_histogram(HISTOGRAM).source == "a server of ours"
    assert load_histogram(METRICS, path="log").source == "log"


def test_errors_name_the_source_as_they_are_told_to(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"none\.csv: no such file"):
        load_histogram(tmp_path / "none.csv")
    with pytest.raises(DocumentError, match=r"^capture\.traffic: has no request"):
        load_histogram(AZURE.splitlines()[0] + "\n", path="capture.traffic")
    with pytest.raises(ArgumentError, match="takes a path or text, found a value of type int"):
        load_histogram(3)


def test_a_replay_error_is_one_of_graphplan() -> None:
    assert issubclass(ReplayError, GraphplanError)


def test_a_server_that_cannot_be_is_refused_in_python_too() -> None:
    with pytest.raises(BatchingError, match="a decode of 1 token gains at most as many a step, not 3"):
        load_histogram(AZURE, batching=Batching(tokens_per_step=3))
