"""V1's rounding, its padding table, and sizes to compile for (rules 2.5, 2.7, 2.8, 4.2, 11.4, 11.5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import PlanError
from planner.rules.rounding import (
    expanded_compile_sizes,
    padding_table,
    refuse_padded_compile_sizes,
    rounded_to_query_len,
)
from planner.rules.sizes import CaptureSizes
from tests.planner.runs import sizes

TO_512 = "1, 2, 4, 8..256/8, 272..512/16"


def captured(text: str, maximum: int | None = None) -> CaptureSizes:
    listed = sizes(text) if text else ()
    return CaptureSizes(listed, maximum or (listed[-1] if listed else 0), ())


@pytest.mark.parametrize(
    ("before", "maximum", "query_len", "after"),
    [
        ("1, 2, 4, 8, 16, 24, 32", 32, 4, "4, 8, 16, 24, 32"),
        ("1, 2, 4, 8, 16", 16, 3, "3, 6, 9"),
        ("1, 2, 4, 8, 16, 24", 24, 3, "3, 6, 9, 18, 24"),
        ("1, 2", 8, 3, "3"),
        ("1, 2, 4", 4, 4, "4"),
        ("1..32/1", 32, 4, "4..32/4"),
        (TO_512, 512, 17, "17..510/17"),
        ("1..16/1", 16, 4, "4, 8, 12, 16"),
        ("4", 4, 3, "3"),
        ("1, 2, 4", 4, 1, "1, 2, 4"),
    ],
)
def test_sizes_become_whole_decode_requests(before: str, maximum: int, query_len: int, after: str) -> None:
    rounded = rounded_to_query_len(captured(before, maximum), query_len)
    assert rounded.sizes == sizes(after)
    assert rounded.maximum == rounded.sizes[-1]


@pytest.mark.parametrize(("before", "maximum", "query_len"), [("1, 2", 2, 3), ("1, 2, 4", 4, 5)])
def test_a_maximum_below_one_request_is_refused(before: str, maximum: int, query_len: int) -> None:
    with pytest.raises(PlanError) as refusal:
        rounded_to_query_len(captured(before, maximum), query_len)
    assert refusal.value.fields == (
        "compilation.max_cudagraph_capture_size",
        "speculative.num_speculative_tokens",
    )
    assert str(maximum) in refusal.value.message
    assert str(query_len) in refusal.value.message


def test_without_sizes_there_is_nothing_to_round() -> None:
    assert rounded_to_query_len(captured(""), 4) == captured("")


def test_rounding_is_recorded_with_what_was_there_before() -> None:
    rounded = rounded_to_query_len(captured("1, 2, 4, 8, 16"), 3)
    assert [(decision.path, decision.asked, decision.became) for decision in rounded.decisions] == [
        ("compilation.cudagraph_capture_sizes", [1, 2, 4, 8, 16], [3, 6, 9]),
        ("compilation.max_cudagraph_capture_size", 16, 9),
    ]
    assert "more than 16 is lost" in rounded.decisions[0].because
    assert rounded_to_query_len(captured("4, 8"), 4).decisions == ()


@given(st.sets(st.integers(1, 600), min_size=1), st.integers(1, 20))
def test_rounded_sizes_are_multiples_within_the_maximum(listed: set[int], query_len: int) -> None:
    before = CaptureSizes(tuple(sorted(listed)), max(listed), ())
    if query_len > before.maximum:
        with pytest.raises(PlanError):
            rounded_to_query_len(before, query_len)
        return
    after = rounded_to_query_len(before, query_len).sizes
    assert after == tuple(sorted(set(after)))
    assert all(size % query_len == 0 and size <= before.maximum for size in after)
    assert rounded_to_query_len(CaptureSizes(after, after[-1], ()), query_len).sizes == after


def test_each_number_of_tokens_runs_at_the_next_size() -> None:
    assert padding_table((1, 2, 4, 8, 16)) == (0, 1, 2, 4, 4, 8, 8, 8, 8, *[16] * 8)
    assert padding_table(()) == (0,)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (None, ()),
        ((1, "cudagraph_capture_sizes"), (1, 1, 2, 4, 8)),
        ((8, 3, 8), (8, 3)),
    ],
)
def test_the_word_for_all_capture_sizes_is_expanded(
    asked: tuple[int | str, ...] | None, expected: tuple[int, ...]
) -> None:
    assert expanded_compile_sizes(asked, (1, 2, 4, 8)) == expected


def test_another_word_is_refused() -> None:
    with pytest.raises(PlanError, match="'all' is no size"):
        expanded_compile_sizes(("all",), (1, 2))


@pytest.mark.parametrize("size", [3, 5])
def test_a_size_to_compile_for_that_is_padded_is_refused(size: int) -> None:
    with pytest.raises(PlanError, match=rf"{size} would be padded to") as refusal:
        refuse_padded_compile_sizes((1, size), captured("1, 2, 4, 8"))
    assert refusal.value.fields == ("compilation.compile_sizes", "compilation.cudagraph_capture_sizes")


@pytest.mark.parametrize("compiled", [(), (1, 2, 4, 8), (9, 4096), (0,)])
def test_capture_sizes_and_sizes_above_them_may_be_compiled_for(compiled: tuple[int, ...]) -> None:
    refuse_padded_compile_sizes(compiled, captured("1, 2, 4, 8"))
    refuse_padded_compile_sizes(compiled, captured(""))
