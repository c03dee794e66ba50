"""Grids: numbers of requests, or of tokens, that grow by a bounded factor.

Between two powers of two a grid has ``steps`` equal steps, so that no batch is padded by more than
1/(steps + 1) of its graph, and the number of graphs grows with the logarithm of the widest batch.
"""

from __future__ import annotations

from collections.abc import Iterator

FINENESS = (8, 4, 2, 1)
"""Steps between two powers of two, the finest grid first."""

NOTHING_BETWEEN = 0
"""In place of a number of steps: only the highest number."""


def grid(widest: int, steps: int) -> Iterator[int]:
    """Numbers from 1 on up to exactly ``widest``."""
    number = 1
    while number < widest:
        yield number
        number += max(1, (1 << (number.bit_length() - 1)) // steps)
    if widest > 0:
        yield widest


def grid_of_multiples(widest: int, unit: int, steps: int) -> Iterator[int]:
    """The same in multiples of ``unit``, but for ``widest`` itself."""
    for number in grid(widest // unit, steps):
        yield number * unit
    if widest % unit:
        yield widest


def grid_between(lowest: int, highest: int, unit: int, steps: int) -> Iterator[int]:
    """Multiples of ``unit`` above ``lowest`` that grow likewise, then exactly ``highest``."""
    number = lowest
    while steps != NOTHING_BETWEEN and number < highest:
        step = max(1, (1 << (number.bit_length() - 1)) // steps) if number else 1
        number = -(-(number + step) // unit) * unit
        yield min(number, highest)
    if highest > lowest:
        yield highest
