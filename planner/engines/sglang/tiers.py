"""SGLang's defaults by the memory of the device and the tensor-parallel size.

Source: SGLang 0.5.23, memory settings of its arguments (rules 4). Memory is compared in MiB.
"""

from __future__ import annotations

from attrs import frozen

MIB = 1024
"""MiB of one GiB."""


@frozen
class Tier:
    """Defaults of devices with less memory than ``below_mib`` (``None``: any amount).

    ``max_bs`` counts the requests of the largest decode graph, for fewer than four tensor-parallel
    ranks and for more.
    """

    below_mib: int | None
    chunked_prefill_size: int
    max_bs: int
    max_bs_of_many_ranks: int

    def decode_max_bs(self, tensor_parallel_size: int) -> int:
        """Requests of the largest decode graph."""
        return self.max_bs if tensor_parallel_size < MANY_RANKS else self.max_bs_of_many_ranks


MANY_RANKS = 4

TIERS = (
    Tier(20480, 2048, 8, 8),
    Tier(35840, 4096, 48, 160),
    Tier(61440, 4096, 32, 160),
    Tier(92160, 8192, 256, 512),
    Tier(163840, 8192, 256, 512),
    Tier(None, 16384, 512, 512),
)
UNKNOWN_MEMORY = Tier(None, 4096, 160, 160)


def tier_of(memory_gib: float | None) -> Tier:
    """The tier of a device; ``None`` is memory that the engine cannot read."""
    if memory_gib is None:
        return UNKNOWN_MEMORY
    mib = memory_gib * MIB
    return next(tier for tier in TIERS if tier.below_mib is None or mib < tier.below_mib)
