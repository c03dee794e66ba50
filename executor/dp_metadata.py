"""How many tokens each rank brings to the experts in one step.

Source: vLLM 0.33, ``DPMetadata`` of its forward context (rules 6.4).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate

import torch
from attrs import define

from executor.errors import ContextError
from executor.parallel import ParallelInfo, require_positive

MAX_INT32 = torch.iinfo(torch.int32).max


def same_tokens_across_dp(parallel: ParallelInfo, num_tokens: int) -> torch.Tensor | None:
    """The vector of a step in which every rank runs ``num_tokens``, padded; ``None`` for one rank."""
    ranks = parallel.data_parallel_size
    return torch.full((ranks,), num_tokens, dtype=torch.int32) if ranks > 1 else None


# Compared by identity: tensors have no truth value to compare by.
@define(eq=False)
class DPMetadata:
    """The tokens of every data-parallel rank in this step, padding included.

    ``num_tokens_across_dp_cpu`` is int32 on the CPU, one element a rank. ``local_sizes`` is set
    within ``sp_local_sizes`` only.

    Raises:
        ContextError: the vector is no such tensor.
    """

    num_tokens_across_dp_cpu: torch.Tensor
    local_sizes: list[int] | None = None

    def __attrs_post_init__(self) -> None:
        _require_token_counts(self.num_tokens_across_dp_cpu)

    @staticmethod
    def make(parallel: ParallelInfo, num_tokens: int, num_tokens_across_dp_cpu: torch.Tensor) -> DPMetadata:
        """The metadata of a step in which this rank runs ``num_tokens`` tokens.

        Raises:
            ContextError: the ranks of ``parallel`` exchange no tokens, or the vector is none of theirs.
        """
        if not exchanges_tokens(parallel):
            raise ContextError(
                "these ranks exchange no tokens: there is one data-parallel rank without "
                "sequence-parallel experts, or the model has none; do without DPMetadata"
            )
        metadata = DPMetadata(num_tokens_across_dp_cpu)
        tokens, ranks = metadata._tokens(), parallel.data_parallel_size
        if len(tokens) != ranks:
            raise ContextError(
                f"num_tokens_across_dp has {len(tokens)} elements; give one for each of {ranks} ranks"
            )
        own = tokens[parallel.data_parallel_rank]
        if own != num_tokens:
            raise ContextError(
                f"num_tokens_across_dp[{parallel.data_parallel_rank}] is {own}, but this rank runs "
                f"{num_tokens} tokens; give the vector and num_tokens of the same step"
            )
        return metadata

    def _tokens(self) -> list[int]:
        tokens: list[int] = self.num_tokens_across_dp_cpu.tolist()
        return tokens

    @contextmanager
    def sp_local_sizes(
        self, sequence_parallel_size: int, pcp_size: int = 1, use_ep: bool = False
    ) -> Iterator[list[int]]:
        """Within the block, ``local_sizes`` are the tokens of every sequence-parallel rank.

        ``pcp_size`` is the number of prefill-context-parallel ranks: with expert parallelism
        (``use_ep``) each of them is a rank of its own, without it their tokens add up. Blocks nest:
        the sizes of the outer one are back after the inner.

        Raises:
            ContextError: a size below 1.
        """
        require_positive("sequence_parallel_size", sequence_parallel_size)
        require_positive("pcp_size", pcp_size)
        tokens = self._tokens()
        expanded = _repeated(tokens, pcp_size) if use_ep else [count * pcp_size for count in tokens]
        outer = self.local_sizes
        sizes = self.local_sizes = _shares(expanded, sequence_parallel_size)
        try:
            yield sizes
        finally:
            self.local_sizes = outer

    def get_chunk_sizes_across_dp_rank(self) -> list[int]:
        """The local sizes of the ``sp_local_sizes`` block around this call.

        Raises:
            ContextError: there is no such block.
        """
        if self.local_sizes is None:
            raise ContextError(
                "no local sizes are set; ask for them within `with metadata.sp_local_sizes(...)`"
            )
        return self.local_sizes

    def cu_tokens_across_sp(self, sequence_parallel_size: int) -> torch.Tensor:
        """Running total of tokens over all sequence-parallel ranks, int32 on the CPU.

        Every rank's share is rounded up, so that the last total may exceed the tokens of the step.

        Raises:
            ContextError: a size below 1, or a total that int32 does not hold.
        """
        require_positive("sequence_parallel_size", sequence_parallel_size)
        totals = list(accumulate(_shares(self._tokens(), sequence_parallel_size)))
        if totals[-1] > MAX_INT32:
            raise ContextError(f"the ranks run {totals[-1]} tokens in one step, more than int32 holds")
        return torch.tensor(totals, dtype=torch.int32, device="cpu")


def exchanges_tokens(parallel: ParallelInfo) -> bool:
    """Whether a step of these ranks needs DPMetadata at all."""
    return (
        parallel.data_parallel_size > 1 or parallel.use_sequence_parallel_moe
    ) and parallel.is_moe_model is not False


def _require_token_counts(vector: object) -> None:
    wanted = "give an int32 tensor on the CPU with one element for each data-parallel rank"
    if not isinstance(vector, torch.Tensor):
        raise ContextError(f"num_tokens_across_dp is of type {type(vector).__name__}; {wanted}")
    on_cpu = vector.device.type == "cpu"
    if vector.dtype is not torch.int32 or not on_cpu or vector.ndim != 1 or not len(vector):
        shape = list(vector.shape)
        raise ContextError(
            f"num_tokens_across_dp is {vector.dtype} of shape {shape} on {vector.device}; {wanted}"
        )
    counts = vector.tolist()
    if min(counts) < 0:
        raise ContextError(f"num_tokens_across_dp is {counts}; no rank runs fewer than 0 tokens")


def _repeated(counts: list[int], times: int) -> list[int]:
    return [count for count in counts for _ in range(times)]


def _shares(counts: list[int], num_ranks: int) -> list[int]:
    """Each count cut into ``num_ranks`` equal shares, rounded up."""
    return _repeated([-(-count // num_ranks) for count in counts], num_ranks)
