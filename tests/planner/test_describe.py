"""Plain words for sizes and entries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import CUDAGraphMode, PlanEntry
from planner.describe import label, size_runs

FULL, PIECEWISE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE


def written_out(text: str) -> list[int]:
    """The sizes that a summary stands for."""
    found: list[int] = []
    for part in text.split(", "):
        if ".." in part:
            first, _, rest = part.partition("..")
            last, _, step = rest.partition("/")
            found.extend(range(int(first), int(last) + 1, int(step)))
        elif part:
            found.append(int(part))
    return found


def test_the_default_sizes_read_as_their_grid() -> None:
    default = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
    assert size_runs(default) == "1, 2, 4, 8..256/8, 272..512/16"


@pytest.mark.parametrize(
    ("sizes", "text"),
    [([], ""), ([7], "7"), ([1, 2, 3], "1, 2, 3"), ([1, 2, 3, 4], "1..4/1"), ([5, 5], "5, 5")],
)
def test_short_lists_stay_as_they_are(sizes: list[int], text: str) -> None:
    assert size_runs(sizes) == text


@given(st.lists(st.integers(1, 60), unique=True).map(sorted))
def test_a_summary_stands_for_exactly_its_sizes(sizes: list[int]) -> None:
    assert written_out(size_runs(sizes)) == sizes


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (PlanEntry(PIECEWISE, 8), "PIECEWISE 8 tokens"),
        (PlanEntry(PIECEWISE, 1, num_active_loras=1), "PIECEWISE 1 token, 1 LoRA"),
        (PlanEntry(FULL, 8, 8), "FULL 8 tokens, 8 requests"),
        (PlanEntry(FULL, 8, 1, 8), "FULL 8 tokens, 1 request of 8"),
        (PlanEntry(FULL, 8, 4, None, 3), "FULL 8 tokens, 4 requests of up to 3"),
        (PlanEntry(FULL, 8, 4, 2, None, 2, 2), "FULL 8 tokens, 4 requests of 2, 2 LoRAs, 2 microbatches"),
    ],
)
def test_an_entry_is_named_by_what_sets_it_apart(entry: PlanEntry, text: str) -> None:
    assert label(entry) == text
