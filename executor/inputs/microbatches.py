"""A uniform step cut into microbatches: each has request buffers of its own beside the step's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen

from executor.inputs.attention import AttentionGroup, AttentionState, build_attention_state
from executor.inputs.block_tables import BlockTables
from executor.inputs.buffers import InputBuffers
from planner.rules.ubatch_slices import UbatchSlice, clamped_ubatch_slices, ubatch_boundaries, ubatch_slices


@frozen(eq=False)
class Microbatches:
    """The parts of a padded step of ``num_reqs`` requests with ``num_tokens`` tokens, all alike.

    ``buffers`` hold where each part's queries start and how long its sequences are, at fixed addresses;
    tokens, tables and slots are parts of the step's own.
    """

    slices: tuple[UbatchSlice, ...]
    buffers: tuple[InputBuffers, ...]
    query_len: int

    @classmethod
    def of(
        cls, num_reqs: int, num_tokens: int, num_ubatches: int, device: torch.device | str
    ) -> Microbatches:
        """The parts that the engine cuts such a step into (rules 6.3).

        Raises:
            BatchError: the step cannot be cut so.
        """
        query_len = num_tokens // num_reqs
        boundaries = ubatch_boundaries(num_tokens, num_ubatches)
        slices = clamped_ubatch_slices(
            ubatch_slices((query_len,) * num_reqs, boundaries), num_tokens, num_reqs, num_reqs
        )
        buffers = (InputBuffers(part.request_stop - part.request_start, 1, device) for part in slices)
        return cls(slices, tuple(buffers), query_len)

    def refresh(self, step: InputBuffers) -> None:
        """Computes each part's buffers from those of the ``step``.

        A request that a boundary cuts through ends, in the earlier part, where that part does.
        """
        for part, buffer in zip(self.slices, self.buffers, strict=True):
            starts = step.query_start_loc[part.request_start : part.request_stop + 1]
            seq_lens = step.seq_lens[part.request_start : part.request_stop]
            later = (starts[1:] - part.token_stop).clamp_(min=0)
            most = part.token_stop - part.token_start
            buffer.query_start_loc.copy_((starts - part.token_start).clamp_(0, most))
            buffer.seq_lens.copy_((seq_lens - later).clamp_(min=0))

    def build(
        self,
        block_tables: BlockTables,
        attn_groups: Sequence[Sequence[AttentionGroup]],
        max_seq_len: int,
    ) -> tuple[AttentionState, ...]:
        """Metadata and slots of each part."""
        return tuple(
            build_attention_state(
                part.request_stop - part.request_start,
                part.token_stop - part.token_start,
                buffer,
                [table[part.request_start : part.request_stop] for table in block_tables.block_tables],
                [slots[part.token_start : part.token_stop] for slots in block_tables.slot_mappings],
                attn_groups,
                max_query_len=self.query_len,
                max_seq_len=max_seq_len,
                for_capture=True,
            )
            for part, buffer in zip(self.slices, self.buffers, strict=True)
        )
