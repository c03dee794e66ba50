"""SGLang's own capture sizes, where the user lists none.

Source: SGLang 0.5.23, list generators of its CUDA-graph arguments (rules 5 and 6).
"""

from __future__ import annotations

from collections.abc import Sequence

_Run = tuple[int, int | None, int]
"""First size, last (open without one) and step."""

PLAIN_DECODE: Sequence[_Run] = ((1, 2, 1), (4, 12, 4), (16, 256, 8), (272, 496, 16), (512, None, 32))
SPECULATIVE_DECODE: Sequence[_Run] = ((1, 8, 1), (10, 32, 2), (40, 64, 4), (72, 256, 8), (272, None, 16))
PREFILL: Sequence[_Run] = (
    (4, 32, 4),
    (48, 256, 16),
    (288, 512, 32),
    (576, 1024, 64),
    (1280, 4096, 256),
    (4608, None, 512),
)

ALIGNED = 8
"""DeepEP's kernels take multiples of this many tokens."""


def decode_grid(maximum: int, *, speculative: bool, padding: bool) -> tuple[int, ...]:
    """Requests of the decode graphs up to ``maximum``, which is always one of them."""
    if not padding:
        sizes: Sequence[int] = range(1, maximum + 1)
    else:
        sizes = _up_to(maximum, SPECULATIVE_DECODE if speculative else PLAIN_DECODE)
    return (*sizes, maximum) if not sizes or sizes[-1] != maximum else tuple(sizes)


def prefill_grid(maximum: int) -> tuple[int, ...]:
    """Tokens of the prefill graphs up to ``maximum``, which need not be one of them."""
    return tuple(_up_to(maximum, PREFILL))


def aligned_up(sizes: Sequence[int], multiple: int) -> tuple[int, ...]:
    """``sizes`` rounded up to multiples, each once, ascending."""
    return tuple(sorted({rounded_up(size, multiple) for size in sizes}))


def rounded_up(number: int, multiple: int) -> int:
    """The smallest multiple that is not below ``number``."""
    return -(-number // multiple) * multiple


def _up_to(maximum: int, runs: Sequence[_Run]) -> list[int]:
    return [
        size
        for first, last, step in runs
        for size in range(first, (maximum if last is None else min(last, maximum)) + 1, step)
    ]
