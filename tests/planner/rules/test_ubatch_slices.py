"""Microbatch slices: the worked examples that were run on the real engine (rules 6.2 and 6.3)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import BatchError
from planner.rules.ubatch_slices import (
    UbatchSlice,
    clamped_ubatch_slices,
    is_last_ubatch_empty,
    padded_ubatch_slices,
    ubatch_boundaries,
    ubatch_slices,
)


def cut(text: str) -> tuple[UbatchSlice, ...]:
    """Slices written as ``0-4:0-4 4-6:4-8``: requests, then tokens."""
    return tuple(UbatchSlice(*map(int, re.split("[-:]", part))) for part in text.split())


#           tokens of each request, padded tokens, padded requests, split, unpadded, padded
CUTS = [
    ([1] * 8, 8, 8, None, "0-4:0-4 4-8:4-8", "0-4:0-4 4-8:4-8"),
    ([1] * 6, 8, 8, None, "0-4:0-4 4-6:4-6", "0-4:0-4 4-8:4-8"),
    ([1, 1, 10, 1, 1], 14, 5, None, "0-3:0-7 2-5:7-14", "0-3:0-7 2-5:7-14"),
    ([2, 20], 22, 2, None, "0-2:0-11 1-2:11-22", "0-2:0-11 1-2:11-22"),
    ([3, 9, 3], 15, 3, None, "0-2:0-7 1-3:7-15", "0-2:0-7 1-3:7-15"),
    ([1] * 6, 16, 6, None, "0-7:0-8 6-6:8-6", "0-7:0-8 6-6:8-16"),
    ([4] * 4, 16, 4, None, "0-1:0-4 1-2:4-8 2-3:8-12 3-4:12-16", "0-1:0-4 1-2:4-8 2-3:8-12 3-4:12-16"),
    ([1] * 7, 7, 7, [3], "0-3:0-3 3-7:3-7", "0-3:0-3 3-7:3-7"),
    ([1] * 7, 7, 7, 3, "0-3:0-3 3-7:3-7", "0-3:0-3 3-7:3-7"),
]


@pytest.mark.parametrize(("counts", "tokens", "reqs", "split", "unpadded", "padded"), CUTS)
def test_a_step_is_cut_as_the_engine_does(
    counts: list[int], tokens: int, reqs: int, split: list[int] | int | None, unpadded: str, padded: str
) -> None:
    found = ubatch_slices(counts, ubatch_boundaries(tokens, len(cut(unpadded)), split))
    assert found == cut(unpadded)
    assert padded_ubatch_slices(found, tokens, reqs) == cut(padded)


def test_the_v2_runner_keeps_requests_within_the_batch() -> None:
    found = ubatch_slices([1] * 6, ubatch_boundaries(16, 2))
    assert clamped_ubatch_slices(found, 16, 6, 6) == cut("0-6:0-8 5-6:8-16")


@pytest.mark.parametrize(("counts", "tokens", "reqs", "split", "unpadded", "padded"), CUTS)
def test_both_runners_cut_the_same_where_no_slice_is_padding_alone(
    counts: list[int], tokens: int, reqs: int, split: list[int] | int | None, unpadded: str, padded: str
) -> None:
    found = ubatch_slices(counts, ubatch_boundaries(tokens, len(cut(unpadded)), split))
    if found[-1].token_start < found[-1].token_stop:
        assert clamped_ubatch_slices(found, tokens, len(counts), reqs) == cut(padded)


@pytest.mark.parametrize(
    ("tokens", "padded", "ubatches", "empty"),
    [
        (8, 16, 2, True),
        (9, 16, 2, False),
        (4, 8, 2, True),
        (1, 2, 2, True),
        (10, 16, 4, True),
        (12, 16, 4, True),
        (13, 16, 4, False),
        (3, 7, 2, True),
        (4, 7, 2, False),
    ],
)
def test_a_last_microbatch_of_padding_alone_is_seen(
    tokens: int, padded: int, ubatches: int, empty: bool
) -> None:
    assert is_last_ubatch_empty(tokens, padded, ubatches) is empty


@given(st.data(), st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 4))
def test_slices_cover_all_tokens_and_the_requests_that_have_them(
    data: st.DataObject, counts: list[int], ubatches: int
) -> None:
    total = sum(counts)
    tokens = total + data.draw(st.integers(0, 40))
    reqs = len(counts) + data.draw(st.integers(0, 8))
    found = ubatch_slices(counts, ubatch_boundaries(tokens, ubatches))
    for slices in (
        padded_ubatch_slices(found, tokens, reqs),
        clamped_ubatch_slices(found, tokens, len(counts), reqs),
    ):
        assert [part.token_start for part in slices[1:]] == [part.token_stop for part in slices[:-1]]
        assert (slices[0].token_start, slices[-1].token_stop) == (0, tokens)
        owners = [index for index, count in enumerate(counts) for _ in range(count)]
        for part in slices:
            for owner in owners[part.token_start : part.token_stop]:
                assert part.request_start <= owner < part.request_stop


@pytest.mark.parametrize(
    ("ubatches", "split", "message"),
    [
        (2, [3, 5], "give 1"),
        (3, [5, 3], "give 2 ascending"),
        (2, [-1], "give 1"),
        (0, None, "num_ubatches is 0"),
    ],
)
def test_boundaries_that_cut_nothing_are_refused(
    ubatches: int, split: list[int] | None, message: str
) -> None:
    with pytest.raises(BatchError, match=message):
        ubatch_boundaries(8, ubatches, split)


@pytest.mark.parametrize("counts", [[], [1, 0]])
def test_requests_without_tokens_are_refused(counts: list[int]) -> None:
    with pytest.raises(BatchError, match="one token or more each"):
        ubatch_slices(counts, (1,))
