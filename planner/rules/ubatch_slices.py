"""How a step is cut into microbatches: the requests and tokens that each of them runs.

Source: vLLM 0.33, microbatch slices of both runners (rules 6.2 and 6.3).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from attrs import evolve, frozen

from planner.errors import BatchError


@frozen
class UbatchSlice:
    """One microbatch: requests and tokens from a start up to, and without, a stop.

    A request that a boundary cuts through belongs to both its neighbours.
    """

    request_start: int
    request_stop: int
    token_start: int
    token_stop: int


def is_last_ubatch_empty(num_tokens: int, num_tokens_padded: int, num_ubatches: int) -> bool:
    """Whether padding alone would fill the last microbatch of a step of ``num_tokens`` tokens."""
    return num_tokens_padded // num_ubatches * (num_ubatches - 1) >= num_tokens


def ubatch_boundaries(
    num_tokens_padded: int, num_ubatches: int, split: int | Sequence[int] | None = None
) -> tuple[int, ...]:
    """Tokens at which a step is cut, one fewer than there are microbatches.

    ``split`` is the tokens of every microbatch but the last, by default an even share, or the
    boundaries themselves.

    Raises:
        BatchError: there are no microbatches, or the boundaries do not ascend or are too few or many.
    """
    if num_ubatches < 1:
        raise BatchError(f"num_ubatches is {num_ubatches}; a step is cut into 1 microbatch at least")
    if isinstance(split, Sequence):
        boundaries = tuple(split)
    else:
        share = num_tokens_padded // num_ubatches if split is None else split
        boundaries = tuple(index * share for index in range(1, num_ubatches))
    ascending = all(before <= after for before, after in pairwise((0, *boundaries)))
    if len(boundaries) != num_ubatches - 1 or not ascending:
        raise BatchError(
            f"split {list(boundaries)} does not cut {num_ubatches} microbatches; "
            f"give {num_ubatches - 1} ascending boundaries"
        )
    return boundaries


def ubatch_slices(tokens_per_request: Iterable[int], boundaries: Sequence[int]) -> tuple[UbatchSlice, ...]:
    """The microbatches of a step before padding.

    Where padding reaches beyond the real tokens, a slice may begin after it ends, and a slice of
    requests may end one past the last.

    Raises:
        BatchError: a request without tokens.
    """
    counts = tuple(tokens_per_request)
    if not counts or min(counts) < 1:
        raise BatchError(f"requests of {list(counts)} tokens; a step has requests of one token or more each")
    starts = (0, *accumulate(counts))
    edges = (0, *boundaries, starts[-1])
    return tuple(
        UbatchSlice(bisect_right(starts, first) - 1, bisect_left(starts, stop), first, stop)
        for first, stop in pairwise(edges)
    )


def padded_ubatch_slices(
    slices: Sequence[UbatchSlice], num_tokens_padded: int, num_reqs_padded: int
) -> tuple[UbatchSlice, ...]:
    """``slices`` with the last of them stretched over the padding, as the V1 runner does."""
    last = evolve(slices[-1], request_stop=num_reqs_padded, token_stop=num_tokens_padded)
    return (*slices[:-1], last)


def clamped_ubatch_slices(
    slices: Sequence[UbatchSlice], num_tokens_padded: int, num_reqs: int, num_reqs_padded: int
) -> tuple[UbatchSlice, ...]:
    """``slices`` stretched over the padding and kept within the requests, as the V2 runner does."""
    return tuple(
        evolve(
            padded,
            request_start=min(padded.request_start, num_reqs - 1),
            request_stop=min(padded.request_stop, num_reqs_padded),
        )
        for padded in padded_ubatch_slices(slices, num_tokens_padded, num_reqs_padded)
    )
