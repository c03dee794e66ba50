"""What a batch says of itself to dispatch."""

from __future__ import annotations

from typing import Any

import pytest

from executor.errors import InputError
from executor.inputs.batch import ScheduledBatch


def batch(lengths: tuple[int, ...], computed: tuple[int, ...], **fields: Any) -> ScheduledBatch:
    return ScheduledBatch(
        tuple((1,) * length for length in lengths), computed, ((1,),) * len(lengths), **fields
    )


@pytest.mark.parametrize(
    ("given", "uniform", "longest"),
    [
        (batch((1, 1), (4, 9)), 1, 1),
        (batch((3, 3), (4, 9)), 3, 3),
        (batch((3, 2), (4, 9)), None, 3),
        (batch((3, 3), (0, 9), is_prefilling=(True, False)), None, None),
        (batch((1, 1), (4, 9), is_prefilling=(True, False)), 1, None),
        (batch((1, 1), (0, 9), is_prefilling=(True, False)), None, None),
        (batch((2, 2), (3, 9), is_prefilling=(True, False), num_drafts=(1, 1)), 2, None),
        (batch((), ()), None, None),
    ],
)
def test_uniform_decode_is_told_from_prefill(
    given: ScheduledBatch, uniform: int | None, longest: int | None
) -> None:
    assert given.uniform_token_count == uniform
    assert given.max_query_len == longest


def test_tokens_and_sequences_are_counted_by_request() -> None:
    given = batch((3, 1), (4, 9))
    assert (given.num_reqs, given.num_tokens) == (2, 4)
    assert given.seq_lens == (7, 10)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"computed": (1,)}, "give one each"),
        ({"num_drafts": (1,)}, "counts of drafts"),
        ({"is_prefilling": (True,)}, "give one each"),
        ({"lengths": (1, 0)}, "without tokens"),
    ],
)
def test_fields_that_do_not_belong_together_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        batch(**{"lengths": (1, 1), "computed": (0, 0), **fields})
