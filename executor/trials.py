"""Random batches of a target's entries, to compare graphs with eager by: what ``verify_entries`` asks for."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve

from executor.context import ForwardContext
from executor.inputs.attention import AttentionState
from executor.inputs.batch import ScheduledBatch
from executor.inputs.dummy import dummy_query_lens, random_batch, room_for_context
from executor.steps import PaddedStep
from planner.descriptors import BatchExecutionDescriptor
from planner.modes import CUDAGraphMode

if TYPE_CHECKING:
    from executor.runner import TargetRunner


class TargetTrials:
    """Trial batches of ``runner``, whose largest entry of pieces has ``max_mixed_tokens``.

    Batches of one kind begin alike, so that an eager forward of a large one stands for smaller ones.
    """

    def __init__(self, runner: TargetRunner, max_mixed_tokens: int) -> None:
        self._runner = runner
        self._mixed_query_len = -(-max_mixed_tokens // runner.buffers.max_num_reqs)
        self._last: tuple[BatchExecutionDescriptor, ScheduledBatch] | None = None

    def batch(self, desc: BatchExecutionDescriptor, seed: int = 0) -> ScheduledBatch:
        """A batch that ``desc`` serves, of random tokens behind contexts of random length."""
        runner = self._runner
        lengths = self._query_lens(desc)
        longest = self._mixed_query_len if desc.cg_mode is CUDAGraphMode.PIECEWISE else max(lengths)
        config, length = runner.kv_cache_config, runner.max_model_len
        batch = random_batch(
            lengths,
            config,
            room_for_context(config, length, runner.buffers.max_num_reqs, longest),
            length,
            runner.model.config.vocab_size,
            seed,
        )
        return evolve(batch, num_active_loras=desc.num_active_loras, num_ubatches=desc.num_ubatches)

    def fill(self, desc: BatchExecutionDescriptor) -> None:
        """Puts the batch of ``desc`` into the static inputs.

        The places of its tokens in the cache hold NaN, so that a forward which stores nothing shows.
        """
        _, state = self._staged(desc)
        places: dict[int, torch.Tensor] = {}
        for name, slots in state.slot_mappings.items():
            cache = self._runner.kv_cache.layers[name]
            if id(slots) not in places:
                places[id(slots)] = cache.rows_of(slots)
            cache.poison(places[id(slots)])

    def front_of(self, desc: BatchExecutionDescriptor) -> Hashable | None:
        """What batches that begin alike have in common; None for a batch of its own."""
        if desc.num_ubatches > 1:
            return None
        if desc.cg_mode is CUDAGraphMode.PIECEWISE:
            return self._mixed_query_len, desc.num_active_loras
        return desc.uniform_token_count and (desc.uniform_token_count, desc.num_active_loras)

    def replay_context(self, desc: BatchExecutionDescriptor) -> AbstractContextManager[ForwardContext]:
        """The forward context of the batch of ``desc``."""
        step, state = self._staged(desc)
        return self._runner.context_of(step, state, step.mode)

    def eager(self, desc: BatchExecutionDescriptor) -> Any:
        """The batch of ``desc``, padded and with its own metadata, run without a graph."""
        step, state = self._staged(desc)
        with self._runner.context_of(step, state, CUDAGraphMode.NONE):
            return self._runner.forward(slice(0, step.num_tokens))

    def _staged(self, desc: BatchExecutionDescriptor) -> tuple[PaddedStep, AttentionState]:
        if self._last is None or self._last[0] != desc:
            self._last = desc, self.batch(desc)
        batch = self._last[1]
        step = self._runner.padded(batch, desc)
        return step, self._runner.stage(batch, step)

    def _query_lens(self, desc: BatchExecutionDescriptor) -> tuple[int, ...]:
        """Those of the dummy batch; of pieces, full shares of the largest entry and what is left."""
        if desc.cg_mode is CUDAGraphMode.FULL:
            return dummy_query_lens(self._runner.padded_reqs(desc.num_tokens, desc.num_reqs), desc.num_tokens)
        full, rest = divmod(desc.num_tokens, self._mixed_query_len)
        return (self._mixed_query_len,) * full + (rest,) * (rest > 0)
