"""Where regions of a saved pool go: into memory that is free, without laying two on one place."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from executor.materialize.device import packed_into, region_starts
from executor.materialize.regions import Region

MIB2 = 2 << 20
SIZES = st.lists(st.integers(1, 40).map(lambda count: count * MIB2), max_size=12)


def test_regions_share_a_segment_and_the_rest_is_missing() -> None:
    free = [Region("", 0x1000_0000, 10 * MIB2), Region("", 0x8000_0000, 3 * MIB2)]
    starts, missing = packed_into([2 * MIB2, 6 * MIB2, 3 * MIB2, 5 * MIB2], free)
    assert starts == {1: 0x1000_0000, 2: 0x8000_0000, 0: 0x1000_0000 + 6 * MIB2}
    assert missing == [3]


def test_without_free_memory_all_is_missing() -> None:
    assert packed_into([MIB2, 3 * MIB2], []) == ({}, [1, 0])


@given(SIZES, SIZES)
def test_every_region_has_a_place_of_its_own_or_is_missing(sizes: list[int], segments: list[int]) -> None:
    free = [Region("", (number + 1) << 40, size) for number, size in enumerate(segments)]
    starts, missing = packed_into(sizes, free)
    assert sorted([*starts, *missing]) == list(range(len(sizes)))
    taken = sorted((start, start + sizes[number]) for number, start in starts.items())
    assert all(one[1] <= other[0] for one, other in pairwise(taken))
    assert all(any(each.start <= start and end <= each.end for each in free) for start, end in taken)


@given(SIZES.filter(bool), SIZES, st.booleans())
def test_regions_lie_apart_wherever_the_allocator_finds_a_new_block(
    sizes: list[int], segments: list[int], reuses: bool
) -> None:
    free = [Region("", (number + 1) << 40, size) for number, size in enumerate(segments)]
    own = [segment for segment in free if reuses]

    def new_block(num_bytes: int) -> int:
        return next((each.start for each in own if each.num_bytes >= num_bytes), 1 << 50)

    starts = region_starts(sizes, free, new_block)
    taken = sorted((start, start + size) for start, size in zip(starts, sizes, strict=True))
    assert all(one[1] <= other[0] for one, other in pairwise(taken))


def test_a_new_block_in_memory_that_was_given_away_holds_everything() -> None:
    free, asked = [Region("", 1 << 40, 10 * MIB2)], []

    def new_block(num_bytes: int) -> int:
        asked.append(num_bytes)
        return 1 << 40 if num_bytes <= 10 * MIB2 else 1 << 50

    assert region_starts([6 * MIB2, 5 * MIB2], free, new_block) == [1 << 50, (1 << 50) + 6 * MIB2]
    assert asked == [5 * MIB2, 11 * MIB2]
