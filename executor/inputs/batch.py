"""What one rank runs in a step, before padding: requests, their new tokens and their blocks."""

from __future__ import annotations

from functools import cached_property

from attrs import frozen

from executor.errors import InputError


# A dict class, as cached properties need one.
@frozen(slots=False)
class ScheduledBatch:
    """Requests of a step. Every tuple has one item a request.

    ``token_ids`` are the tokens to compute, ``num_computed`` counts those whose K/V are in the cache
    already, ``block_ids`` are the blocks that hold both. ``is_prefilling`` says that a request's known
    tokens are not computed before this step (by default none is), ``num_drafts`` how many of its last
    tokens are a draft's proposals.
    """

    token_ids: tuple[tuple[int, ...], ...]
    num_computed: tuple[int, ...]
    block_ids: tuple[tuple[int, ...], ...]
    is_prefilling: tuple[bool, ...] = ()
    num_drafts: tuple[int, ...] = ()
    num_active_loras: int = 0
    num_ubatches: int = 1

    def __attrs_post_init__(self) -> None:
        count = len(self.token_ids)
        lengths = (len(self.num_computed), len(self.block_ids), len(self.is_prefilling), len(self.num_drafts))
        if lengths[0] != count or lengths[1] != count or lengths[2] not in (0, count):
            raise InputError(
                f"a batch of {count} requests with {lengths} of their other fields; give one each"
            )
        if lengths[3] not in (0, count):
            raise InputError(f"a batch of {count} requests with {lengths[3]} counts of drafts; give one each")
        if any(not tokens for tokens in self.token_ids):
            raise InputError("a request without tokens; leave it out of the batch")

    @property
    def num_reqs(self) -> int:
        """Requests."""
        return len(self.token_ids)

    @cached_property
    def query_lens(self) -> tuple[int, ...]:
        """Tokens to compute, by request."""
        return tuple(len(tokens) for tokens in self.token_ids)

    @cached_property
    def seq_lens(self) -> tuple[int, ...]:
        """Tokens in the cache behind this step, by request."""
        return tuple(a + b for a, b in zip(self.num_computed, self.query_lens, strict=True))

    @cached_property
    def num_tokens(self) -> int:
        """Tokens of all requests."""
        return sum(self.query_lens)

    @property
    def max_query_len(self) -> int | None:
        """Tokens of the longest request; ``None`` where some request is in prefill.

        Source: vLLM 0.33, V2 runner (rules 5.6).
        """
        return None if any(self.is_prefilling) or not self.query_lens else max(self.query_lens)

    @property
    def uniform_token_count(self) -> int | None:
        """Tokens of every request where all have the same number and decode graphs may serve them.

        A request in prefill counts as decoding where it adds one token to a context of some.
        Source: vLLM 0.33, V2 runner (rules 5.6).
        """
        if not self.query_lens or min(self.query_lens) != max(self.query_lens):
            return None
        drafts = self.num_drafts or (0,) * self.num_reqs
        for index, prefilling in enumerate(self.is_prefilling):
            new = self.query_lens[index] - drafts[index]
            if prefilling and (new != 1 or not self.num_computed[index]):
                return None
        return self.query_lens[0]
