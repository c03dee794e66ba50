"""Smoothing: from the batches that were counted to those that tomorrow's traffic may bring.

Every batch stands for others of nearly its size: its count is spread over them in a triangle whose
width is a fraction of the size, as load that varies by some factor does. How wide is found by
cross-validation over the time spans of the histogram: sizes fitted to each span alone are scored on all
others. A small share of the steps may further have any size, so that the tail never costs nothing.
All arithmetic is of integers, so that every machine finds the same sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from attrs import frozen

from planner.traffic.histogram import Histogram, histogram_of

EIGHTHS = 8

WIDTHS = tuple(range(EIGHTHS + 1))
"""Half widths of the triangle that are tried, in eighths of a batch's size; 0 spreads nothing."""

UNTESTED_WIDTH = 4
"""The half width, in eighths, for a histogram that tells no spans of time to test others on."""

TAIL_SHARE = 100
"""One step in so many may have any size, of which smaller ones are likelier as 1/n."""

_SCALE = 1 << 20
"""What one count weighs, so that the parts that it is spread over are still integers."""

Fit = Callable[[Histogram, int], Sequence[int]]
"""The best sizes for a histogram that is smoothed by a width."""

Score = Callable[[Sequence[int], Histogram], float]
"""The padded share of a histogram's tokens in sizes."""


@frozen
class Smoothing:
    """The half width in eighths of a batch's size, and how it was found.

    ``padding`` is the share of padded tokens that sizes fitted to one span had on the others, on
    average, ``spans`` how many spans there were; ``None`` and 0 where it was not tested.
    """

    width: int
    padding: float | None = None
    spans: int = 0


def smoothed(counts: Mapping[int, int], last: int, width: int) -> list[int]:
    """The weights of batches of 0 to ``last`` once each count is spread by ``width`` eighths.

    What lies above ``last`` is taken to be of that size.
    """
    spread = _spread(counts, last, width)
    share = sum(spread) // TAIL_SHARE
    tail = [0, *(_SCALE // size for size in range(1, last + 1))]
    whole = sum(tail)
    return [weight + share * part // whole for weight, part in zip(spread, tail, strict=True)]


def _spread(counts: Mapping[int, int], last: int, width: int) -> list[int]:
    """Counts as triangles of their weight, cut off at 1 and ``last``; a triangle is two sums of its kinks."""
    kinks = [0] * (2 * last + 3)
    for number, count in counts.items():
        size = min(number, last)
        half = min(1 + width * size // EIGHTHS, size)
        beyond = max(0, size + half - 1 - last)
        height = count * _SCALE // (half * half - beyond * (beyond + 1) // 2)
        kinks[size - half + 1] += height
        kinks[size + 1] -= 2 * height
        kinks[size + half + 1] += height
    return list(accumulate(accumulate(kinks[: last + 1])))


def cross_validated(histogram: Histogram, fit: Fit, score: Score) -> Smoothing:
    """The width with which sizes fitted to one time span pad the others the least; the widest of equals.

    With fewer than two spans there is nothing to test on.
    """
    spans = [histogram_of([rows]) for rows in histogram.blocks if rows]
    if len(spans) < 2:
        return Smoothing(UNTESTED_WIDTH)
    others = [
        histogram_of([[row for other in spans if other is not span for row in other.rows]]) for span in spans
    ]
    tested = []
    for width in WIDTHS:
        shares = [score(fit(span, width), rest) for span, rest in zip(spans, others, strict=True)]
        tested.append((sum(shares) / len(shares), -width))
    padding, narrowness = min(tested)
    return Smoothing(-narrowness, padding, len(spans))
