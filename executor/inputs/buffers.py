"""The token buffers of one family: allocated once, at the addresses that its graphs read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

import torch
from attrs import define, field

from executor.errors import InputError
from executor.inputs.batch import ScheduledBatch
from planner import Plan


def family_limits(plan: Plan, family: str) -> tuple[int, int]:
    """The most requests and tokens that a graph of ``family`` is replayed with.

    Where an entry takes any number of requests, the server's own limit counts, and without one the
    entry's tokens.

    Raises:
        FamilyError: the plan has no such family.
    """
    entries = plan.entries(family)
    resolved = plan.resolved.get(family)
    most = None if resolved is None else resolved.max_num_seqs
    reqs = [
        entry.num_reqs or (entry.num_tokens if most is None else min(most, entry.num_tokens))
        for entry in entries
    ]
    return max(reqs, default=1), max((entry.num_tokens for entry in entries), default=1)


@define(eq=False)
class InputBuffers:
    """Inputs of a forward on static tensors, sized for ``max_num_reqs`` and ``max_num_tokens``.

    ``input_ids`` and ``positions`` int64 and ``is_padding`` bool by token, ``query_start_loc`` int32
    with one item more than requests, ``seq_lens`` int32 by request.
    """

    max_num_reqs: int
    max_num_tokens: int
    device: torch.device = field(converter=torch.device)
    input_ids: torch.Tensor = field(init=False)
    positions: torch.Tensor = field(init=False)
    query_start_loc: torch.Tensor = field(init=False)
    seq_lens: torch.Tensor = field(init=False)
    is_padding: torch.Tensor = field(init=False)

    def __attrs_post_init__(self) -> None:
        tokens, reqs, device = self.max_num_tokens, self.max_num_reqs, self.device
        self.input_ids = torch.zeros(tokens, dtype=torch.int64, device=device)
        self.positions = torch.zeros(tokens, dtype=torch.int64, device=device)
        self.query_start_loc = torch.zeros(reqs + 1, dtype=torch.int32, device=device)
        self.seq_lens = torch.zeros(reqs, dtype=torch.int32, device=device)
        self.is_padding = torch.ones(tokens, dtype=torch.bool, device=device)

    @classmethod
    def for_plan(
        cls,
        plan: Plan,
        family: str,
        device: torch.device | str,
        max_num_reqs: int = 0,
        max_num_tokens: int = 0,
    ) -> InputBuffers:
        """Buffers for the largest entry of ``family``, and for eager batches up to the given sizes.

        Raises:
            FamilyError: the plan has no such family.
        """
        reqs, tokens = family_limits(plan, family)
        return cls(max(reqs, max_num_reqs), max(tokens, max_num_tokens), device)

    def write(self, batch: ScheduledBatch) -> None:
        """Fills in a batch; all that lies behind its tokens and requests becomes padding.

        Padding rows are token 0 at position 0. Padding requests start where the tokens end and have
        sequences of length 0.

        Raises:
            InputError: the batch is larger than the buffers.
        """
        reqs, tokens = batch.num_reqs, batch.num_tokens
        self.check(reqs, tokens)
        starts = zip(batch.num_computed, batch.seq_lens, strict=True)
        self.fill(self.input_ids, list(chain.from_iterable(batch.token_ids)), 0)
        self.fill(self.positions, list(chain.from_iterable(range(*span) for span in starts)), 0)
        self.fill(self.query_start_loc, [0, *accumulate(batch.query_lens)], tokens)
        self.fill(self.seq_lens, batch.seq_lens, 0)
        self.mark_padding(tokens)

    def mark_padding(self, num_tokens: int) -> None:
        """All rows but the first ``num_tokens`` are padding."""
        self.is_padding[:num_tokens] = False
        self.is_padding[num_tokens:] = True

    def check(self, num_reqs: int, num_tokens: int) -> None:
        """Refuses a batch that is larger than the buffers.

        Raises:
            InputError: it is.
        """
        if num_reqs > self.max_num_reqs or num_tokens > self.max_num_tokens:
            raise InputError(
                f"a batch of {num_reqs} requests and {num_tokens} tokens; the buffers hold "
                f"{self.max_num_reqs} requests and {self.max_num_tokens} tokens; schedule less"
            )

    @staticmethod
    def fill(buffer: torch.Tensor, values: Sequence[object], rest: int) -> None:
        """Writes ``values`` to the front of ``buffer`` and ``rest`` behind them, without waiting."""
        if values:  # memory that is not pinned is read before the copy returns
            buffer[: len(values)].copy_(torch.tensor(values, dtype=buffer.dtype), non_blocking=True)
        buffer[len(values) :].fill_(rest)
