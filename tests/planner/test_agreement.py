"""Data-parallel agreement: the worked steps that were run on the real engine (rules 6.1)."""

from __future__ import annotations

from typing import Any

import pytest

from planner import Agreement, Batch, BatchError, DispatchTable, agree, column, decide
from planner.documents.plan import Microbatching
from tests.planner.test_dispatch import family

EIGHT = family("FAP", "1, 2, 4, 8, 16", 8)
THREE = family("FAP", "1, 2, 4, 8, 16, 24", 8, 3)
VARLEN = family("FAP", "1, 2, 4, 8, 16, 24, 32", 8, 3, varlen=True)
SPLIT = family(
    "FDO",
    "1, 2, 4, 8, 16, 32",
    32,
    microbatching=Microbatching(num_ubatches=2, decode_token_threshold=8, prefill_token_threshold=32),
)


def batch(
    reqs: int, tokens: int, uniform: int | None = None, longest: int | None = None, **more: Any
) -> Batch:
    return Batch(num_reqs=reqs, num_tokens=tokens, uniform_token_count=uniform, max_query_len=longest, **more)


def split(reqs: int, tokens: int, uniform: int | None = None) -> Batch:
    return batch(reqs, tokens, uniform, allow_ubatching=True, uniform_decode=uniform == 1)


#        table, batches, descriptors (mode, tokens, requests, microbatches), tokens across ranks, eager
STEPS: list[tuple[DispatchTable, list[Batch], list[tuple[str, int, int | None, int]], list[int], bool]] = [
    (EIGHT, [batch(3, 3, 1), batch(5, 5, 1)], [("FULL", 8, 8, 1)] * 2, [8, 8], False),
    (EIGHT, [batch(3, 3, 1), batch(1, 7)], [("PIECEWISE", 8, None, 1)] * 2, [8, 8], False),
    (EIGHT, [batch(3, 3, 1), batch(1, 17)], [("NONE", 3, 3, 1), ("NONE", 17, 1, 1)], [3, 17], True),
    (EIGHT, [batch(3, 3, 1), batch(1, 1, 1)], [("FULL", 4, 4, 1)] * 2, [4, 4], False),
    (EIGHT, [batch(3, 3, 1), batch(0, 0)], [("NONE", 3, 3, 1), ("NONE", 0, 0, 1)], [3, 0], True),
    (EIGHT, [batch(3, 3, 1, need_eager=True), batch(3, 3, 1)], [("NONE", 3, 3, 1)] * 2, [3, 3], True),
    (EIGHT, [batch(8, 8, 1), batch(2, 9)], [("PIECEWISE", 16, None, 1)] * 2, [16, 16], False),
    (THREE, [batch(4, 12, 3), batch(2, 6, 3)], [("FULL", 18, 6, 1)] * 2, [18, 18], False),
    (VARLEN, [batch(4, 9, None, 3), batch(2, 2, 1, 1)], [("FULL", 16, 8, 1)] * 2, [16, 16], False),
    (VARLEN, [batch(4, 9, None, 3), batch(1, 5)], [("PIECEWISE", 16, None, 1)] * 2, [16, 16], False),
    (SPLIT, [split(8, 8, 1), split(12, 12, 1)], [("FULL", 16, 16, 2)] * 2, [16, 16], False),
    (SPLIT, [split(8, 8, 1), split(20, 20, 1)], [("NONE", 20, 8, 2), ("NONE", 20, 20, 2)], [20, 20], True),
    (SPLIT, [split(7, 7, 1), split(20, 20, 1)], [("FULL", 32, 32, 1)] * 2, [32, 32], False),
    (SPLIT, [split(1, 40), split(20, 20, 1)], [("NONE", 40, 1, 1), ("NONE", 20, 20, 1)], [40, 20], True),
    (SPLIT, [split(1, 40), split(2, 64)], [("NONE", 64, 1, 2), ("NONE", 64, 2, 2)], [64, 64], True),
]


@pytest.mark.parametrize(("table", "batches", "descriptors", "across", "eager"), STEPS)
def test_ranks_decide_as_in_the_engine(
    table: DispatchTable,
    batches: list[Batch],
    descriptors: list[tuple[str, int, int | None, int]],
    across: list[int],
    eager: bool,
) -> None:
    decided = agree(table, batches)
    assert [
        (
            str(own.descriptor.cg_mode),
            own.descriptor.num_tokens,
            own.descriptor.num_reqs,
            own.descriptor.num_ubatches,
        )
        for own in decided
    ] == descriptors
    assert {own.num_tokens_across_dp for own in decided} == {tuple(across)}
    assert {own.eager for own in decided} == {eager}
    assert {own.num_reqs for own in decided} == {max(own.num_reqs for own in batches)}


def test_the_uniform_count_is_kept_only_where_all_ranks_share_it() -> None:
    assert agree(EIGHT, [batch(3, 3, 1), batch(5, 5, 1)])[0].uniform_token_count == 1
    assert agree(EIGHT, [batch(3, 3, 1), batch(1, 7)])[0].uniform_token_count is None
    assert agree(THREE, [batch(4, 12, 3), batch(2, 6, 3)])[1].uniform_token_count == 3


@pytest.mark.parametrize("allowing", [(True, True), (True, False), (False, False)])
def test_drafting_is_skipped_only_where_all_ranks_allow_it(allowing: tuple[bool, bool]) -> None:
    batches = [batch(3, 3, 1, allow_skip_drafts=allow) for allow in allowing]
    assert {own.skip_drafts for own in agree(EIGHT, batches)} == {all(allowing)}


def test_with_no_work_on_any_rank_nothing_is_agreed() -> None:
    idle = agree(EIGHT, [batch(0, 0), batch(0, 0)])
    assert all(own == Agreement(own.descriptor) and own.descriptor.num_tokens == 0 for own in idle)


def test_a_single_rank_runs_what_it_dispatches() -> None:
    (alone,) = agree(EIGHT, [batch(3, 3, 1)])
    assert alone == Agreement(EIGHT.dispatch(3, 3, 1))


def test_a_column_has_what_the_other_ranks_need() -> None:
    one = batch(4, 12, 3, 3, allow_ubatching=True, allow_skip_drafts=True)
    assert column(THREE, one) == (12, 2, 3, 3, 1, 4, 1)
    assert column(THREE, batch(1, 99)) == (99, 0, 0, -1, 0, 1, 0)


def test_a_step_is_decided_from_columns_alone() -> None:
    batches = [batch(3, 3, 1), batch(1, 7)]
    columns = [list(column(EIGHT, one)) for one in batches]
    assert [decide(EIGHT, columns, rank, one) for rank, one in enumerate(batches)] == agree(EIGHT, batches)


def test_batches_may_be_mappings() -> None:
    assert agree(EIGHT, [{"num_reqs": 3, "num_tokens": 3}, {"num_reqs": 1, "num_tokens": 7}])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"num_reqs": 3}, "'num_tokens' is missing"),
        ({"num_reqs": 1, "num_tokens": 1, "num_request": 1}, "unknown field 'num_request'"),
        ({"num_reqs": 3, "num_tokens": 2}, "3 requests cannot share 2 tokens"),
        ({"num_reqs": -1, "num_tokens": 2}, "-1 requests"),
    ],
)
def test_an_impossible_batch_is_refused(source: dict[str, int], message: str) -> None:
    with pytest.raises(BatchError, match=message):
        agree(EIGHT, [source, source])


def test_columns_of_another_shape_are_refused() -> None:
    one = batch(3, 3, 1)
    with pytest.raises(BatchError, match="a column has 7"):
        decide(EIGHT, [(1, 2, 3)], 0, one)
    with pytest.raises(BatchError, match="rank 2"):
        decide(EIGHT, [column(EIGHT, one)], 2, one)
