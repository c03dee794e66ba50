"""V1 data-parallel agreement: the worked examples that were run on the real engine (rules 6.2)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import Agreement, Batch, BatchError, CUDAGraphMode, PlanEntry, agree, column, decide
from planner.agreement_v1 import V1Column, synchronise
from planner.descriptors import BatchExecutionDescriptor
from planner.dispatch_v1 import V1DispatchTable, V1Family
from planner.documents.plan import Microbatching
from planner.rules.entries import EntryRequest
from planner.rules.entries_v1 import v1_family_entries
from planner.rules.microbatch import passes_threshold
from tests.planner.rules.test_entries_v1 import MODES

SPLIT = Microbatching(num_ubatches=2, decode_token_threshold=8, prefill_token_threshold=32)


def family(
    mode: str,
    sizes: tuple[int, ...] = (1, 2, 4, 8, 16),
    max_num_seqs: int = 16,
    query_len: int = 1,
    microbatching: Microbatching | None = None,
    cases: tuple[int, ...] = (0,),
) -> V1DispatchTable:
    request = EntryRequest(
        mode=MODES[mode],
        sizes=sizes,
        max_num_seqs=max_num_seqs,
        decode_query_len=query_len,
        query_lens=(query_len,),
        lora_cases=cases,
        microbatching=microbatching,
    )
    described = V1Family(
        mode=request.mode,
        sizes=sizes,
        max_num_seqs=max_num_seqs,
        decode_query_len=query_len,
        lora_cases=cases,
        microbatching=microbatching,
    )
    return V1DispatchTable(v1_family_entries(request), described)


def batch(tokens: int, uniform: bool = True, **more: Any) -> Batch:
    return Batch(num_reqs=min(tokens, 8 if uniform else 1), num_tokens=tokens, uniform_decode=uniform, **more)


#          ranks (tokens, padded, uniform, mode), microbatches, tokens across ranks, mode
SYNCHRONISED: list[tuple[list[tuple[int, int, bool, int]], int, tuple[int, ...], str]] = [
    ([(3, 4, True, 2), (5, 8, True, 2)], 1, (8, 8), "FULL"),
    ([(3, 4, True, 2), (7, 8, False, 1)], 1, (8, 8), "PIECEWISE"),
    ([(3, 4, True, 2), (700, 700, False, 0)], 1, (4, 700), "NONE"),
    ([(8, 8, True, 2), (12, 16, True, 2)], 1, (16, 16), "FULL"),
    ([(9, 16, True, 2), (12, 16, True, 2)], 2, (16, 16), "FULL"),
    ([(7, 8, True, 2), (12, 16, True, 2)], 1, (16, 16), "FULL"),
]


@pytest.mark.parametrize(("ranks", "ubatches", "across", "mode"), SYNCHRONISED)
def test_ranks_synchronise_as_in_the_engine(
    ranks: list[tuple[int, int, bool, int]], ubatches: int, across: tuple[int, ...], mode: str
) -> None:
    columns = [
        V1Column(tokens, padded, int(passes_threshold(SPLIT, tokens, uniform)), strength)
        for tokens, padded, uniform, strength in ranks
    ]
    step = synchronise(columns, SPLIT.num_ubatches)
    assert (step.num_ubatches, step.num_tokens_across_dp, str(step.mode)) == (ubatches, across, mode)


#        batches, descriptors (mode, tokens, requests, uniform, microbatches), tokens across ranks
STEPS: list[tuple[list[Batch], list[tuple[str, int, int | None, int | None, int]], tuple[int, ...]]] = [
    ([batch(3), batch(5)], [("FULL", 8, 8, 1, 1)] * 2, (8, 8)),
    ([batch(3), batch(7, uniform=False)], [("PIECEWISE", 8, None, None, 1)] * 2, (8, 8)),
    (
        [batch(3), batch(700, uniform=False)],
        [("NONE", 4, 3, None, 1), ("NONE", 700, 1, None, 1)],
        (4, 700),
    ),
    (
        [batch(8, allow_ubatching=True), batch(12, allow_ubatching=True)],
        [("FULL", 16, 16, 1, 1)] * 2,
        (16, 16),
    ),
    (
        [batch(9, allow_ubatching=True), batch(12, allow_ubatching=True)],
        [("FULL", 16, 16, 1, 2)] * 2,
        (16, 16),
    ),
    (
        [batch(7, allow_ubatching=True), batch(12, allow_ubatching=True)],
        [("FULL", 16, 16, 1, 1)] * 2,
        (16, 16),
    ),
    ([batch(9, allow_ubatching=True), batch(12)], [("FULL", 16, 16, 1, 1)] * 2, (16, 16)),
    ([batch(3, need_eager=True), batch(3)], [("NONE", 3, 3, None, 1), ("NONE", 4, 3, None, 1)], (3, 4)),
    ([batch(0), batch(0)], [("NONE", 0, 0, None, 1)] * 2, (0, 0)),
    (
        [batch(40, uniform=False, allow_ubatching=True), batch(64, uniform=False, allow_ubatching=True)],
        [("NONE", 64, 1, None, 2)] * 2,
        (64, 64),
    ),
]


@pytest.mark.parametrize(("batches", "descriptors", "across"), STEPS)
def test_every_rank_runs_what_was_agreed(
    batches: list[Batch],
    descriptors: list[tuple[str, int, int | None, int | None, int]],
    across: tuple[int, ...],
) -> None:
    decided = agree(family("FAP", microbatching=SPLIT), batches)
    assert [
        (str(key.cg_mode), key.num_tokens, key.num_reqs, key.uniform_token_count, key.num_ubatches)
        for key in (own.descriptor for own in decided)
    ] == descriptors
    assert {own.num_tokens_across_dp for own in decided} == {across}
    assert {own.eager for own in decided} == {descriptors[0][0] == "NONE"}
    assert {(own.uniform_token_count, own.num_reqs, own.skip_drafts) for own in decided} == {
        (None, None, None)
    }


def test_ranks_agree_on_pieces_where_one_of_them_is_mixed() -> None:
    decided = agree(family("FAP", (4, 8, 16), 8, query_len=4), [batch(4), batch(7, uniform=False)])
    assert [str(own.descriptor.cg_mode) for own in decided] == ["PIECEWISE", "PIECEWISE"]


def test_a_batch_of_the_query_length_is_uniform_decode() -> None:
    found = family("FDO", (4, 8, 16), 8, query_len=4)
    assert column(found, Batch(num_reqs=3, num_tokens=12, uniform_token_count=4)) == (12, 16, 0, 2)
    assert column(found, Batch(num_reqs=4, num_tokens=12, uniform_token_count=3)) == (12, 12, 0, 0)
    assert column(found, {"num_reqs": 3, "num_tokens": 12, "uniform_decode": True}) == (12, 16, 0, 2)


def test_a_column_tells_whether_a_rank_would_cut_its_step() -> None:
    found = family("FAP", microbatching=SPLIT)
    assert column(found, batch(8, allow_ubatching=True)) == (8, 8, 1, 2)
    assert column(found, batch(8)) == (8, 8, 0, 2)
    assert column(found, batch(7, allow_ubatching=True)) == (7, 8, 0, 2)
    assert column(found, batch(31, uniform=False, allow_ubatching=True)) == (31, 31, 0, 0)


def test_a_single_rank_runs_what_it_dispatches_whole() -> None:
    (alone,) = agree(family("FAP", microbatching=SPLIT), [batch(9, allow_ubatching=True)])
    assert alone == Agreement(BatchExecutionDescriptor(CUDAGraphMode.FULL, 16, 16, 1))


def test_without_microbatches_in_its_plan_a_rank_never_cuts_a_step() -> None:
    decided = decide(family("FAP"), [(9, 16, 1, 2), (12, 16, 1, 2)], 0, batch(9))
    assert decided.descriptor.num_ubatches == 1


def test_each_rank_keeps_its_own_loras() -> None:
    found = family("FAP", cases=(0, 5))
    first, second = agree(found, [batch(3), batch(5, num_active_loras=2)])
    assert (first.descriptor.num_active_loras, second.descriptor.num_active_loras) == (0, 5)
    assert first.descriptor.num_tokens == second.descriptor.num_tokens == 8


def test_a_rank_without_the_agreed_graph_is_told_so() -> None:
    entries = [
        PlanEntry(CUDAGraphMode.PIECEWISE, 4),
        PlanEntry(CUDAGraphMode.PIECEWISE, 8, num_active_loras=1),
    ]
    pieces = CUDAGraphMode.PIECEWISE
    found = V1DispatchTable(entries, V1Family(mode=pieces, sizes=(4, 8), max_num_seqs=8, lora_cases=(0, 1)))
    with pytest.raises(BatchError, match="8 tokens with 0 LoRAs have no PIECEWISE graph"):
        agree(found, [batch(4), batch(8, num_active_loras=1)])


def test_ranks_with_different_plans_are_told_so() -> None:
    small, large = family("FAP", (1, 2, 4, 8)), family("FAP", (1, 2, 4, 6))
    columns = [column(small, batch(3)), column(large, batch(5))]
    with pytest.raises(BatchError, match="agreed on 6 tokens, but its own FULL graph has 8"):
        decide(small, columns, 0, batch(3))


@pytest.mark.parametrize(
    ("columns", "rank", "message"),
    [
        ([(1, 1, 0)], 0, "a column has 4"),
        ([(1, 1, 0, 3)], 0, "3 is no runtime mode"),
        ([(1, 1, 0, 1)], 1, "rank 1: there are 1 columns"),
    ],
)
def test_columns_that_no_rank_sends_are_refused(columns: list[Any], rank: int, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        decide(family("FAP"), columns, rank, batch(1))


@given(st.data(), st.sampled_from(sorted(MODES)), st.integers(1, 4), st.integers(1, 12))
def test_ranks_never_disagree(data: st.DataObject, mode: str, query_len: int, max_num_seqs: int) -> None:
    requests = data.draw(st.sets(st.integers(1, 20), min_size=1, max_size=6))
    cases = data.draw(st.sampled_from([(0,), (0, 5), (5,)]))
    microbatching = data.draw(st.sampled_from([None, SPLIT]))
    sizes = tuple(sorted(query_len * count for count in requests))
    found = family(mode, sizes, max_num_seqs, query_len, microbatching, cases)
    batches = [
        batch(
            data.draw(st.integers(1, max_num_seqs)) * query_len if uniform else data.draw(st.integers(0, 90)),
            uniform,
            num_active_loras=data.draw(st.integers(0, 4)),
            need_eager=data.draw(st.booleans()),
            allow_ubatching=data.draw(st.booleans()),
        )
        for uniform in data.draw(st.lists(st.booleans(), min_size=2, max_size=4))
    ]
    decided = agree(found, batches)
    assert len({own.num_tokens_across_dp for own in decided}) == 1
    assert len({(own.descriptor.cg_mode, own.descriptor.num_ubatches) for own in decided}) == 1
    across = decided[0].num_tokens_across_dp
    assert across == tuple(own.descriptor.num_tokens for own in decided)
    assert all(own.num_tokens <= tokens for own, tokens in zip(batches, across or (), strict=True))
    if not decided[0].eager:
        assert len(set(across or ())) == 1
