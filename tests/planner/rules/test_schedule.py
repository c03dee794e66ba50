"""Dynamic speculative decoding: faults, the dense schedule and its tiers (rules 2.6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.rules.schedule import Tier, dense_schedule, schedule_fault, tiers_of


@pytest.mark.parametrize(
    ("schedule", "fault"),
    [
        ([], "empty"),
        ([[1, 2]], "2 numbers"),
        ([[0, 2, 1]], "below 1"),
        ([[3, 2, 1]], "before it begins"),
        ([[1, 2, -1]], "-1 draft tokens"),
        ([[1, 4, 2], [4, 8, 1]], "overlap"),
        ([[2, 4, 1]], "begins at 2"),
        ([[size, size, 1] for size in range(1, 1026)], "1025 ranges; planning takes at most 1024"),
        ([list(range(10_000))], "a range has 10000 numbers; each"),
    ],
)
def test_each_fault_is_named(schedule: list[list[int]], fault: str) -> None:
    found = schedule_fault(schedule)
    assert found is not None
    assert fault in found


def test_a_gap_and_the_tail_keep_the_draft_tokens_before_them() -> None:
    assert schedule_fault([[1, 2, 4], [5, 5, 1]]) is None
    assert dense_schedule([[1, 2, 4], [5, 5, 1]], 8, 4) == (4, 4, 4, 4, 1, 1, 1, 1)


def test_draft_tokens_never_exceed_what_is_configured() -> None:
    assert dense_schedule([[1, 16, 5]], 3, 3) == (3, 3, 3)


def test_ranges_beyond_the_batch_limit_do_not_count() -> None:
    assert dense_schedule([[1, 4, 3], [5, 90, 2], [91, 99, 0]], 6, 3) == (3, 3, 3, 3, 2, 2)


def test_a_tier_reaches_to_the_last_range_that_has_its_draft_tokens() -> None:
    assert tiers_of((3, 3, 1, 3, 0)) == (Tier(1, 5), Tier(2, 3), Tier(4, 4))


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=5),
    st.integers(1, 40),
    st.integers(1, 9),
)
def test_every_batch_size_has_one_number_of_draft_tokens(
    ranges: list[tuple[int, int, int]], max_num_seqs: int, drafts: int
) -> None:
    schedule, first = [], 1
    for length, gap, tokens in ranges:
        schedule.append((first, first + length - 1, tokens))
        first += length + gap
    assert schedule_fault(schedule) is None
    dense = dense_schedule(schedule, max_num_seqs, drafts)
    assert len(dense) == max_num_seqs
    for start, end, tokens in schedule:
        assert all(value == min(tokens, drafts) for value in dense[start - 1 : end])
