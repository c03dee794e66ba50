"""Batches as users write them: what is taken, and what is refused with which reason."""

from __future__ import annotations

from typing import Any

import pytest

from planner import BatchError, CUDAGraphMode, DispatchTable, PlanEntry
from planner.dispatch_v1 import V1DispatchTable, V1Family
from planner.queries import ask, query_of, settled

DECODE = PlanEntry(CUDAGraphMode.FULL, 8, 2, 4)
V2 = DispatchTable([DECODE], decode_query_len=4)
V2_BY_HAND = DispatchTable([DECODE])
V1 = V1DispatchTable(
    [DECODE],
    V1Family(mode=CUDAGraphMode.FULL_DECODE_ONLY, sizes=(8,), max_num_seqs=4, decode_query_len=4),
)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "'num_tokens' is missing"),
        ({"num_tokens": 4, "tokens": 4}, "unknown field 'tokens'"),
        ({"num_tokens": 4.0}, "num_tokens: expected a whole number, found 4.0"),
        ({"num_tokens": True}, "num_tokens: expected a whole number, found True"),
        ({"num_tokens": "4"}, "num_tokens: expected a whole number, found '4'"),
        ({"num_tokens": None}, "num_tokens: expected a whole number, found None"),
        ({"num_tokens": [4]}, "num_tokens: expected a whole number, found a list"),
        ({"num_tokens": 0}, "num_tokens: 0 is too small; the smallest value is 1"),
        ({"num_tokens": 4, "num_reqs": 0}, "num_reqs: 0 is too small"),
        (
            {"num_tokens": 4, "num_active_loras": -1},
            "num_active_loras: -1 is too small; the smallest value is 0",
        ),
        ({"num_tokens": 4, "num_ubatches": 0}, "num_ubatches: 0 is too small"),
        ({"num_tokens": 10**30}, "is too large; the largest value is 999999999999999999"),
        ({"num_tokens": 4, "uniform_decode": 1}, "uniform_decode: expected true or false, found 1"),
        ({"num_tokens": 4, "uniform_decode": None}, "uniform_decode: expected true or false, found None"),
    ],
)
def test_a_value_that_no_batch_has_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(BatchError) as refusal:
        query_of(values)
    assert message in str(refusal.value)


def test_null_means_not_given() -> None:
    assert query_of({"num_tokens": 4, "uniform_token_count": None}) == query_of({"num_tokens": 4})


@pytest.mark.parametrize(
    ("table", "values", "message"),
    [
        (V2, {"num_tokens": 4}, "'num_reqs' is missing"),
        (V2, {"num_tokens": 4, "num_reqs": 5}, "5 requests have at least 5 tokens, but num_tokens is 4"),
        (V2, {"num_tokens": 9, "num_reqs": 2, "uniform_token_count": 4}, "2 requests of 4 are 8 tokens"),
        (V2, {"num_tokens": 9, "num_reqs": 2, "max_query_len": 4}, "up to 4 are 8 tokens at most"),
        (V2, {"num_tokens": 9, "num_reqs": 2, "uniform_decode": True}, "2 requests of 4 are 8 tokens"),
        (
            V2,
            {"num_tokens": 6, "num_reqs": 2, "uniform_decode": True, "uniform_token_count": 3},
            "uniform_decode means 4 tokens a request, but uniform_token_count is 3",
        ),
        (V2_BY_HAND, {"num_tokens": 8, "num_reqs": 2, "uniform_decode": True}, "give uniform_token_count"),
        (V1, {"num_tokens": 8, "max_query_len": 4}, "max_query_len: the v1 runner does not dispatch by it"),
        (V1, {"num_tokens": 8, "num_ubatches": 2}, "num_ubatches: the v1 runner does not dispatch by it"),
    ],
)
def test_a_batch_that_no_runner_forms_is_refused(
    table: DispatchTable | V1DispatchTable, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(BatchError) as refusal:
        settled(query_of(values), table)
    assert message in str(refusal.value)


def test_a_uniform_decode_and_its_token_count_say_the_same_to_both_runners() -> None:
    by_flag = query_of({"num_tokens": 8, "num_reqs": 2, "uniform_decode": True})
    by_count = query_of({"num_tokens": 8, "num_reqs": 2, "uniform_token_count": 4})
    for table in (V2, V1):
        assert settled(by_flag, table) == settled(by_count, table)
        assert ask(table, settled(by_flag, table)) == ask(table, settled(by_count, table))


def test_a_uniform_batch_of_another_length_is_no_decode() -> None:
    query = settled(query_of({"num_tokens": 8, "num_reqs": 4, "uniform_token_count": 2}), V1)
    assert not query.uniform_decode
    assert ask(V1, query)[0] is CUDAGraphMode.NONE  # type: ignore[index]


def test_v1_is_asked_without_requests() -> None:
    query = settled(query_of({"num_tokens": 8, "uniform_decode": True}), V1)
    assert ask(V1, query) == (CUDAGraphMode.FULL, DECODE.batch_descriptor)
