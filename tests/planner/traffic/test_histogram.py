"""Histograms, and the CSV that is committed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from planner.traffic.histogram import Histogram, HistogramRow, dump_histogram, histogram_of
from planner.traffic.load import load_histogram

row = st.tuples(st.integers(1, 40), st.none() | st.integers(1, 5), st.integers(0, 10**9)).map(
    lambda part: HistogramRow(num_tokens=part[0] * (part[1] or 1), num_reqs=part[1], count=part[2])
)
blocks = st.lists(st.lists(row, max_size=8), max_size=5).filter(
    lambda spans: any(row.count for rows in spans for row in rows)
)
word = st.text("ab #,:=é", max_size=12)


@given(blocks, st.lists(word, min_size=1, max_size=3))
def test_what_is_written_is_read_back(spans: list[list[HistogramRow]], remarks: list[str]) -> None:
    source = "\n".join(filter(None, (remark.strip(" #") for remark in remarks))) or "somebody"
    if source.startswith("source:"):
        source = f"the {source}"
    histogram = histogram_of(spans, source=source)
    found = load_histogram(dump_histogram(histogram))
    assert (found.rows, found.blocks, found.digest) == (histogram.rows, histogram.blocks, histogram.digest)
    assert found.source == source


@given(blocks)
def test_rows_are_the_sum_of_the_time_spans(spans: list[list[HistogramRow]]) -> None:
    found = histogram_of(spans)
    total: dict[tuple[int, int | None], int] = {}
    for one in (row for rows in spans for row in rows if row.count):
        total[one.num_tokens, one.num_reqs] = total.get((one.num_tokens, one.num_reqs), 0) + one.count
    assert {(one.num_tokens, one.num_reqs): one.count for one in found.rows} == total


def test_the_digest_is_of_the_counts_and_not_of_their_order_or_source() -> None:
    first = HistogramRow(num_tokens=3, num_reqs=3, count=2)
    second = HistogramRow(num_tokens=700, count=1)
    one = Histogram(rows=(first, second), source="here")
    assert one.digest == Histogram(rows=(second, first), source="there").digest
    assert one.digest != Histogram(rows=(first,)).digest
    assert one.digest != Histogram(rows=(first, second), blocks=((first,), (second,))).digest


def test_decode_is_counted_by_requests_and_the_rest_by_tokens() -> None:
    histogram = histogram_of(
        [
            [
                HistogramRow(num_tokens=8, num_reqs=2, count=1),
                HistogramRow(num_tokens=2, num_reqs=2, count=4),
                HistogramRow(num_tokens=9, count=3),
            ]
        ]
    )
    assert histogram.decode_steps() == {2: 5}
    assert histogram.token_steps() == {9: 3}
    assert histogram.blocks == ()


def test_an_idle_time_span_keeps_its_place() -> None:
    busy = [HistogramRow(num_tokens=1, num_reqs=1, count=1)]
    histogram = histogram_of([busy, [], busy, []], source="ours")
    assert [len(rows) for rows in histogram.blocks] == [1, 0, 1]
    assert load_histogram(dump_histogram(histogram)) == histogram
