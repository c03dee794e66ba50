"""Block tables and slot mappings at fixed addresses, one of each for every KV cache group."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch

from executor.errors import InputError
from executor.inputs.kv_cache import NULL_BLOCK, PAD_SLOT_ID, KVCacheConfig


class BlockTables:
    """Where each request's tokens lie in the cache, and where the tokens of a step go.

    ``block_tables[group]`` is int32 ``[max_num_reqs, blocks of max_model_len]``, empty places name the
    null block; ``slot_mappings[group]`` is int64 ``[max_num_tokens]``.
    """

    def __init__(
        self,
        config: KVCacheConfig,
        max_num_reqs: int,
        max_num_tokens: int,
        max_model_len: int,
        device: torch.device | str,
    ) -> None:
        self.config = config
        self.max_num_reqs = max_num_reqs
        self.max_num_tokens = max_num_tokens
        self.max_blocks = -(-max_model_len // config.block_size)
        shape = (max_num_reqs, self.max_blocks)
        self.block_tables = tuple(
            torch.full(shape, NULL_BLOCK, dtype=torch.int32, device=device) for _ in config.groups
        )
        self.slot_mappings = tuple(
            torch.full((max_num_tokens,), PAD_SLOT_ID, dtype=torch.int64, device=device)
            for _ in config.groups
        )

    def write(self, block_ids: Sequence[Sequence[int]]) -> None:
        """The blocks of each request, the same in every group; further requests have none.

        Raises:
            InputError: more requests or blocks than the tables hold, or a block that is not there.
        """
        if len(block_ids) > self.max_num_reqs:
            raise InputError(f"{len(block_ids)} requests; the block tables hold {self.max_num_reqs}")
        width = max(map(len, block_ids), default=0)
        if width > self.max_blocks:
            raise InputError(f"a request with {width} blocks; the block tables hold {self.max_blocks}")
        for row in block_ids:
            if row and not 0 <= min(row) <= max(row) < self.config.num_blocks:
                raise InputError(
                    f"blocks {list(row)}; the cache has blocks 0 to {self.config.num_blocks - 1}"
                )
        padded = chain.from_iterable((*row, *(NULL_BLOCK,) * (width - len(row))) for row in block_ids)
        rows = torch.tensor(list(padded), dtype=torch.int32).view(len(block_ids), width)
        for table in self.block_tables:
            table[: len(block_ids), :width].copy_(rows, non_blocking=True)  # read before it returns
            table[: len(block_ids), width:].fill_(NULL_BLOCK)
            table[len(block_ids) :].fill_(NULL_BLOCK)

    def dummy_block_tables(self, num_reqs: int) -> tuple[torch.Tensor, ...]:
        """The tables' first ``num_reqs`` rows, emptied."""
        for table in self.block_tables:
            table.fill_(NULL_BLOCK)
        return tuple(table[:num_reqs] for table in self.block_tables)

    def dummy_slot_mappings(self, num_tokens: int) -> tuple[torch.Tensor, ...]:
        """The mappings' first ``num_tokens`` items. All become PAD, so that nothing is written."""
        for mapping in self.slot_mappings:
            mapping.fill_(PAD_SLOT_ID)
        return tuple(mapping[:num_tokens] for mapping in self.slot_mappings)

    def compute_slot_mappings(
        self,
        num_reqs: int,
        num_tokens: int,
        num_tokens_padded: int,
        query_start_loc: torch.Tensor,
        positions: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """The slots of the first ``num_tokens`` tokens; everything behind them becomes PAD.

        A token in the null block or beyond the table has no place either. Returns the first
        ``num_tokens_padded`` items.

        Raises:
            InputError: more requests or tokens than there is room for.
        """
        if num_reqs > self.max_num_reqs or num_tokens_padded > self.max_num_tokens:
            raise InputError(
                f"{num_reqs} requests and {num_tokens_padded} tokens; the block tables hold "
                f"{self.max_num_reqs} requests and {self.max_num_tokens} tokens"
            )
        if num_tokens:
            tokens = torch.arange(num_tokens, dtype=torch.int32, device=positions.device)
            owners = torch.searchsorted(query_start_loc[1 : num_reqs + 1], tokens, right=True)
        for table, mapping in zip(self.block_tables, self.slot_mappings, strict=True):
            if num_tokens:
                mapping[:num_tokens].copy_(self.slots(table, owners, positions[:num_tokens]))
            mapping[num_tokens:].fill_(PAD_SLOT_ID)
        return tuple(mapping[:num_tokens_padded] for mapping in self.slot_mappings)

    def slots(self, table: torch.Tensor, owners: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The slots of tokens at ``positions`` of requests ``owners``.

        PAD in the null block and beyond the table, where vLLM would clamp to the last block and
        overwrite what a request has there.
        """
        size = self.config.block_size
        columns = positions // size
        blocks = table[owners, columns.clamp(max=self.max_blocks - 1)].to(torch.int64)
        has_place = (blocks != NULL_BLOCK) & (columns < self.max_blocks)
        return torch.where(has_place, blocks * size + positions % size, PAD_SLOT_ID)
