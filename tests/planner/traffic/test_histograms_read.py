"""Histograms that servers and people wrote: CSV, vLLM's tables, and the counts of a cache."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.descriptors import PlanEntry
from planner.errors import DocumentError
from planner.modes import CUDAGraphMode
from planner.traffic import histogram_csv, metrics_table
from planner.traffic.usage import UsageError, usage_histogram
from tests.planner.traffic.reading import histogram, read
from tests.planner.traffic.texts import HISTOGRAM, METRICS, USAGE


def test_a_csv_may_have_its_columns_in_any_order_and_says_its_source() -> None:
    found = histogram(HISTOGRAM)
    assert found.decode_steps() == {4: 5, 8: 100}
    assert found.token_steps() == {700: 3}
    assert found.source == "a server of ours"
    assert histogram("num_tokens,count\n3,4\n3,5\n").token_steps() == {3: 9}


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("0,1,", "num_tokens: 0 is too small; the smallest value is 1"),
        ("1,-1,", "count: -1 is too small; the smallest value is 0"),
        (f"1,{10**20},", f"count: {10**20} is too large; the largest value is {10**15}"),
        (f"1,{'9' * 5000},", "count: a number of more than 40 digits is too large; the largest value is"),
        ("1,1,0", "num_reqs: 0 is too small"),
        ("9,1,4", "9 tokens are no decode of 4 requests"),
        (f"9,{10**16},", "count: 10000000000000000 is too large"),
    ],
)
def test_malformed_rows_of_a_csv_are_told(row: str, what: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read(HISTOGRAM + row + "\n")
    assert str(caught.value).startswith(f"folder/file:6:1: {what}")


def test_a_histogram_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histogram_csv, "MAX_ROWS", 2)
    with pytest.raises(DocumentError, match="file:5:1: more than 2 rows; add up those of one size"):
        read(HISTOGRAM)
    with pytest.raises(DocumentError, match="block: 1000 is too large; the largest value is 999"):
        read("block,num_tokens,count\n1000,1,1\n")


def test_a_histogram_without_steps_is_refused() -> None:
    with pytest.raises(DocumentError, match="file: has no step that was counted"):
        read("num_tokens,count\n1,0\n")


# vLLM's tables.


def test_full_graphs_are_decode_and_other_batches_count_by_tokens() -> None:
    found = histogram(METRICS)
    assert found.decode_steps() == {6: 31}
    assert found.token_steps() == {7: 2, 415: 1}


def test_decode_with_speculation_is_of_whole_requests() -> None:
    found = histogram(METRICS + "| 7 | 8 | 1 | FULL | 5 |\n", query_len=3)
    assert found.decode_steps() == {2: 31}
    assert found.token_steps() == {7: 7, 415: 1}


def test_where_all_batches_run_in_full_graphs_none_is_known_to_be_decode() -> None:
    assert histogram(METRICS.replace("FULL_AND_PIECEWISE", "FULL")).token_steps() == {6: 31, 7: 2, 415: 1}


def prefixed(text: str) -> str:
    head = "(APIServer pid=3606348) INFO 12-02 16:51:04 [compilation/cuda_graph.py:108] "
    return "".join(f"\x1b[0;36m{head}\x1b[0m{line}\n" for line in text.splitlines())


def test_tables_in_a_log_add_up_and_tell_of_time() -> None:
    other = "INFO 12-02 16:51:04 [loggers.py:257] Engine 000: Avg prompt throughput: 1.0 | GPU: 3 | x\n"
    log = other + prefixed(METRICS) + other + prefixed(METRICS.replace("31 ", "40 "))
    found = histogram(log)
    assert found.decode_steps() == {6: 71}
    assert [sum(row.count for row in rows) for rows in found.blocks] == [34, 43]


def test_a_collectors_json_around_the_lines_does_not_matter() -> None:
    log = "".join(
        json.dumps({"log": line + "\n", "stream": "stderr"}) + "\n" for line in METRICS.splitlines()
    )
    assert histogram(log).rows == histogram(METRICS).rows
    assert histogram(json.dumps({"message": METRICS})).rows == histogram(METRICS).rows


def test_many_tables_are_few_time_spans() -> None:
    found = histogram(METRICS * 100)
    assert len(found.blocks) == 8
    assert found.decode_steps() == {6: 3100}


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("| 0 | 8 | 8 | FULL | 31 |", "Unpadded Tokens: 0 is too small"),
        ("| 6 | 8 | 2 | HALF | 31 |", "Runtime Mode: HALF is none"),
        ("| 6 | 8 | 2 | FULL | many |", "not a row of the table"),
        ("| 6 | 8 | 2 |", "not a row of the table"),
    ],
)
def test_malformed_rows_of_a_table_are_told(row: str, what: str) -> None:
    text = METRICS + row + "\n| 5 | 8 | 3 | FULL | 1 |\n"
    with pytest.raises(DocumentError) as caught:
        read(text)
    assert str(caught.value).startswith(f"folder/file:13:1: {what}")
    assert histogram(text, skip_malformed=True).decode_steps() == {5: 1, 6: 31}


def test_a_log_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_table, "MAX_SIZES", 3)
    with pytest.raises(DocumentError, match="more than 3 rows; give a part of the log"):
        read(METRICS)


# The cache's counts.


def test_the_count_of_a_graph_is_spread_over_the_batches_that_it_serves() -> None:
    found = histogram(USAGE)
    # Three steps of 1 or 2 requests, eight of 3 or 4; the larger of an odd number.
    assert found.decode_steps() == {1: 1, 2: 2, 3: 4, 4: 4}
    assert found.token_steps() == {1: 2, 2: 3}


def decode(num_reqs: int, query_len: int, loras: int = 0) -> PlanEntry:
    return PlanEntry(CUDAGraphMode.FULL, num_reqs * query_len, num_reqs, query_len, num_active_loras=loras)


entries = st.builds(decode, st.integers(1, 40), st.sampled_from((1, 2, 5)), st.integers(0, 2))


@given(st.lists(st.tuples(entries, st.integers(0, 100))))
def test_no_replay_is_lost_and_none_is_larger_than_its_graph(counts: list[tuple[PlanEntry, int]]) -> None:
    found = usage_histogram(counts)
    assert sum(row.count for row in found.rows) == sum(count for _, count in counts)
    for row in found.rows:
        query_len = row.num_tokens // row.num_reqs  # type: ignore[operator]
        assert any(
            entry.uniform_token_count == query_len and entry.num_tokens >= row.num_tokens and count
            for entry, count in counts
        )


def test_a_graph_that_never_ran_tells_what_others_served() -> None:
    assert usage_histogram([(decode(8, 1), 4), (decode(4, 1), 0)]).decode_steps() == {5: 1, 6: 1, 7: 1, 8: 1}


def test_counts_of_too_many_sizes_are_refused() -> None:
    huge = [(decode((1 << 20) // length, length), 1) for length in range(1, 20)]
    with pytest.raises(UsageError, match="more sizes than any plan"):
        usage_histogram(huge)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{\n", "no counts of a cache: not JSON"),
        ("{\n}", "the key counts is missing"),
        ('{"counts": 3}', "counts: expected a list in brackets, found 3"),
        ('{"counts": [{"entry": {"mode": "FULL"}, "count": 3}]}', "counts[0].entry"),
        (USAGE.replace("3", "-3"), "no counts of a cache: counts: -3 is too small"),
        ('{"counts": []}', "has no step that was counted"),
    ],
)
def test_what_is_no_usage_record_is_told(text: str, what: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read(text)
    assert str(caught.value).startswith("folder/file: ")
    assert what in str(caught.value)
