"""TensorRT-LLM's batch sizes of decode graphs: generated, and filtered by what the engine can hold.

Source: TensorRT-LLM, validation of its CUDA-graph config and filter of the executor (rules 1 to 3).
The grid with padding changed inside the 1.3.0rc series; 1.2 stands for the one before.
"""

from __future__ import annotations

from collections.abc import Sequence

DEFAULT_MAXIMUM = 128
OLDER_GRID_VERSIONS = frozenset({"1.2"})
STEP = 64

_DENSE = (*range(1, 33), 64, 128)
_PADDED = (1, 2, 4, *range(8, 129, 8))
_LAST_OF_BASE = 128


def generated_sizes(maximum: int, *, padding: bool, doubling: bool) -> tuple[int, ...]:
    """The sizes up to ``maximum``, which is always one of them.

    Beyond 128 they double, or with ``padding`` and without ``doubling`` grow by a fixed step.
    """
    base = _PADDED if padding else _DENSE
    sizes = [size for size in base if size <= maximum]
    size = _LAST_OF_BASE
    while (size := size + STEP if padding and not doubling else 2 * size) < maximum:
        sizes.append(size)
    return tuple(sizes) if sizes and sizes[-1] == maximum else (*sizes, maximum)


def held_sizes(sizes: Sequence[int], limit: int, *, padding: bool) -> tuple[int, ...]:
    """The ascending ``sizes`` that the engine captures: none beyond ``limit`` requests.

    With padding, ``limit`` itself is captured where the sizes reach beyond it.
    """
    held = tuple(size for size in sizes if size <= limit)
    beyond = len(held) < len(sizes)
    if padding and beyond and limit >= 1 and (not held or held[-1] != limit):
        return (*held, limit)
    return held


def prefill_sizes(
    asked: Sequence[int], *, max_num_tokens: int, max_batch_size: int, max_seq_len: int | None
) -> tuple[int, ...]:
    """Tokens of the prefill graphs, ascending; those that no step can have are cut down to its most."""
    most = max_num_tokens
    if max_seq_len is not None:
        most = min(most, max_batch_size * (max_seq_len - 1))
    if most <= 0:
        return ()
    return tuple(sorted({min(size, most) for size in asked if 0 < size <= max_num_tokens}))
