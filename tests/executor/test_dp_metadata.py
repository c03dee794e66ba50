from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from executor.dp_metadata import DPMetadata, exchanges_tokens
from executor.errors import ContextError
from executor.parallel import ParallelInfo

TOKENS = [5, 3, 0, 8]
COUNTS = st.lists(st.integers(0, 100_000), min_size=1, max_size=8)
SIZES = st.integers(1, 8)


def vector(*tokens: int) -> torch.Tensor:
    return torch.tensor(tokens, dtype=torch.int32)


def metadata(tokens: list[int]) -> DPMetadata:
    return DPMetadata(vector(*tokens))


@pytest.mark.parametrize(
    ("sp", "pcp", "use_ep", "sizes"),
    [
        (1, 1, False, [5, 3, 0, 8]),
        (2, 1, False, [3, 3, 2, 2, 0, 0, 4, 4]),
        (4, 1, False, [2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0, 2, 2, 2, 2]),
        (2, 1, True, [3, 3, 2, 2, 0, 0, 4, 4]),
        (2, 2, True, [3] * 4 + [2] * 4 + [0] * 4 + [4] * 4),
        (2, 2, False, [5, 5, 3, 3, 0, 0, 8, 8]),
    ],
)
def test_local_sizes_are_the_reference_engines(sp: int, pcp: int, use_ep: bool, sizes: list[int]) -> None:
    step = metadata(TOKENS)
    with step.sp_local_sizes(sp, pcp, use_ep) as yielded:
        assert yielded == sizes
        assert step.local_sizes == sizes
        assert step.get_chunk_sizes_across_dp_rank() == sizes
    assert step.local_sizes is None


@pytest.mark.parametrize(
    ("sp", "totals"),
    [
        (1, [5, 8, 8, 16]),
        (2, [3, 6, 8, 10, 10, 10, 14, 18]),
        (4, [2, 4, 6, 8, 9, 10, 11, 12, 12, 12, 12, 12, 14, 16, 18, 20]),
    ],
)
def test_running_totals_are_the_reference_engines(sp: int, totals: list[int]) -> None:
    assert metadata(TOKENS).cu_tokens_across_sp(sp).tolist() == totals


def test_running_totals_are_int32_on_the_cpu() -> None:
    totals = metadata(TOKENS).cu_tokens_across_sp(2)
    assert (totals.dtype, totals.device.type) == (torch.int32, "cpu")


@given(tokens=COUNTS, sp=SIZES)
def test_running_totals_are_those_of_the_local_sizes(tokens: list[int], sp: int) -> None:
    step = metadata(tokens)
    with step.sp_local_sizes(sp) as sizes:
        assert step.cu_tokens_across_sp(sp).tolist() == torch.tensor(sizes).cumsum(0).tolist()


@given(tokens=COUNTS, sp=SIZES, pcp=SIZES, use_ep=st.booleans())
def test_shares_cover_the_tokens_of_every_rank_and_waste_less_than_one_each(
    tokens: list[int], sp: int, pcp: int, use_ep: bool
) -> None:
    with metadata(tokens).sp_local_sizes(sp, pcp, use_ep) as sizes:
        width = sp * pcp if use_ep else sp
        assert len(sizes) == len(tokens) * width
        for rank, count in enumerate(tokens):
            shares = sizes[rank * width : (rank + 1) * width]
            assert len(set(shares)) == 1
            assert 0 <= sum(shares) - count * pcp < (sp * pcp if use_ep else sp)


@given(tokens=COUNTS, widths=st.lists(SIZES, min_size=1, max_size=5))
def test_blocks_nest_and_give_the_outer_sizes_back(tokens: list[int], widths: list[int]) -> None:
    step = metadata(tokens)

    def enter(remaining: list[int]) -> None:
        before = step.local_sizes
        if remaining:
            with step.sp_local_sizes(remaining[0]) as sizes:
                enter(remaining[1:])
                assert step.local_sizes is sizes
        assert step.local_sizes is before

    enter(widths)
    assert step.local_sizes is None


def test_sizes_are_gone_after_an_exception() -> None:
    step = metadata(TOKENS)
    with pytest.raises(RuntimeError, match="layer"), step.sp_local_sizes(2):
        raise RuntimeError("layer")
    assert step.local_sizes is None


def test_local_sizes_are_asked_for_within_a_block_only() -> None:
    with pytest.raises(ContextError, match="sp_local_sizes"):
        metadata(TOKENS).get_chunk_sizes_across_dp_rank()


@pytest.mark.parametrize("size", [0, -2, True, 2.0, None], ids=repr)
def test_sizes_are_integers_of_one_or_more(size: Any) -> None:
    step = metadata(TOKENS)
    with pytest.raises(ContextError, match="sequence_parallel_size"), step.sp_local_sizes(size):
        pass
    with pytest.raises(ContextError, match="pcp_size"), step.sp_local_sizes(2, size):
        pass
    with pytest.raises(ContextError, match="sequence_parallel_size"):
        step.cu_tokens_across_sp(size)
    assert step.local_sizes is None


def test_a_total_beyond_int32_is_refused() -> None:
    with pytest.raises(ContextError, match="2147483648"):
        metadata([2**31 - 1, 1]).cu_tokens_across_sp(1)


def test_make_keeps_the_ranks_own_vector() -> None:
    tokens = vector(4, 7)
    step = DPMetadata.make(ParallelInfo(data_parallel_size=2, data_parallel_rank=1), 7, tokens)
    assert step.num_tokens_across_dp_cpu is tokens
    assert step.local_sizes is None


def test_make_takes_one_rank_with_sequence_parallel_experts() -> None:
    step = DPMetadata.make(ParallelInfo(use_sequence_parallel_moe=True), 7, vector(7))
    assert step.cu_tokens_across_sp(2).tolist() == [4, 8]


@pytest.mark.parametrize(
    ("ranks", "shares_out", "is_moe", "exchanges"),
    [
        (1, False, None, False),
        (1, False, True, False),
        (1, True, None, True),
        (1, True, False, False),
        (2, False, None, True),
        (2, False, True, True),
        (2, False, False, False),
        (2, True, False, False),
    ],
)
def test_which_ranks_exchange_tokens(
    ranks: int, shares_out: bool, is_moe: bool | None, exchanges: bool
) -> None:
    parallel = ParallelInfo(
        data_parallel_size=ranks, use_sequence_parallel_moe=shares_out, is_moe_model=is_moe
    )
    assert exchanges_tokens(parallel) is exchanges
    if not exchanges:
        with pytest.raises(ContextError, match="exchange no tokens"):
            DPMetadata.make(parallel, 1, vector(*[1] * ranks))


@pytest.mark.parametrize("rank", [0, 1])
def test_make_refuses_a_vector_that_says_something_else_of_this_rank(rank: int) -> None:
    with pytest.raises(ContextError, match=rf"num_tokens_across_dp\[{rank}\]"):
        DPMetadata.make(ParallelInfo(data_parallel_size=2, data_parallel_rank=rank), 9, vector(4, 7))


@pytest.mark.parametrize("tokens", [(4,), (4, 4, 4)])
def test_make_refuses_a_vector_of_another_number_of_ranks(tokens: tuple[int, ...]) -> None:
    with pytest.raises(ContextError, match="2 ranks"):
        DPMetadata.make(ParallelInfo(data_parallel_size=2), 4, vector(*tokens))


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [4, 4],
        torch.tensor([4, 4]),
        torch.tensor([4.0, 4.0]),
        torch.tensor([[4, 4]], dtype=torch.int32),
        torch.tensor(4, dtype=torch.int32),
        torch.empty(0, dtype=torch.int32),
        torch.empty(2, dtype=torch.int32, device="meta"),
        torch.tensor([4, -1], dtype=torch.int32),
    ],
    ids=repr,
)
def test_anything_but_a_vector_of_token_counts_is_refused(wrong: Any) -> None:
    with pytest.raises(ContextError, match="num_tokens_across_dp is"):
        DPMetadata.make(ParallelInfo(data_parallel_size=2), 4, wrong)
