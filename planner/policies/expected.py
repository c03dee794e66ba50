"""Expected traffic: the tokens of the batches that every family of graphs will see, and what they cost.

A histogram counts steps by requests; a step of some requests is one batch for the target, in the query
length that is in use for so many, and one for each draft pass with graphs of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise

from attrs import frozen

from planner.errors import PlanError
from planner.policies.grids import grid_between, grid_of_multiples
from planner.policies.needs import Needs
from planner.policies.optimum import Optima, optimal_sizes
from planner.policies.request import mixed_unit
from planner.policies.smoothing import smoothed
from planner.traffic.histogram import Histogram
from planner.traffic.padding import padding_of

FINEST = 256
"""Steps between two powers of two that sizes may lie on: up to 511 requests, every number."""

TESTED = 64
"""The same for sizes that are only fitted to see how much to smooth."""

TIMES_FIELD = "capture.step_times"
_NANOSECONDS = 1_000_000_000

Steps = Mapping[int, int]
"""How many steps there are of each size of batch."""


@frozen(slots=False)
class Expected:
    """What the sizes of a deployment are fitted to; ``maximum`` is the largest size.

    ``step_times`` are measured pairs of tokens and seconds; without any, a step costs its tokens.
    ``has_mixed`` says whether batches with prefill run in graphs, and so count at all.
    """

    needs: Needs
    maximum: int
    step_times: Sequence[Sequence[float]] = ()
    has_mixed: bool = True

    @cached_property
    def required(self) -> frozenset[int]:
        """Sizes that are always captured: the widest batch of every query length, and the maximum."""
        return frozenset({self.maximum, *(need.num_tokens for need in self.needs.all)})

    @cached_property
    def candidates(self) -> tuple[int, ...]:
        """The sizes to choose from, ascending."""
        return self._candidates(FINEST)

    @cached_property
    def tested_candidates(self) -> tuple[int, ...]:
        """The sizes to choose from where many fits are tried."""
        return self._candidates(TESTED)

    def _candidates(self, steps: int) -> tuple[int, ...]:
        sizes = set(self.required)
        for need in self.needs.all:
            shared, whole = self.needs.alignment.shared(need), self.needs.alignment.whole(need)
            for num_reqs in grid_of_multiples(need.widest, shared // need.query_len, steps):
                if (size := num_reqs * need.query_len) <= whole or size % whole == 0:
                    sizes.add(size)
        sizes.update(grid_between(self.needs.num_tokens, self.maximum, mixed_unit(self.needs), steps))
        return tuple(sorted(sizes))

    @cached_property
    def costs(self) -> Sequence[int]:
        """What a step in a graph of each size costs, in tokens or in nanoseconds."""
        if not self.step_times:
            return range(self.maximum + 1)
        return tuple(_interpolated(self.step_times, size) for size in range(self.maximum + 1))

    def optima(
        self, histogram: Histogram, width: int, most: int, *, candidates: Sequence[int] | None = None
    ) -> Optima | None:
        """The best sizes for ``histogram``, smoothed by ``width`` eighths, for each number up to ``most``.

        ``candidates`` are all those of ``self`` unless others are given.
        """
        weights = [0] * (self.maximum + 1)
        last = max((need.widest for need in self.needs.all), default=0)
        decode = histogram.decode_steps()
        if decode and last:
            for num_reqs, weight in enumerate(smoothed(decode, last, width)):
                for tokens in self._tokens(num_reqs) if weight else ():
                    weights[tokens] += weight
        if mixed := self._mixed_steps(histogram):
            for tokens, weight in enumerate(smoothed(mixed, self.maximum, width)):
                weights[tokens] += weight
        among = candidates or self.candidates
        return optimal_sizes(weights, self.costs, among, required=self.required, most=most)

    def padding(self, sizes: Sequence[int], histogram: Histogram) -> float:
        """The padded share of the tokens of ``histogram`` in graphs of ``sizes``, from 0 to 1."""
        return padding_of(sizes, self._steps(histogram)).share

    def uncovered(self, sizes: Sequence[int], histogram: Histogram) -> float:
        """The share of the steps of ``histogram`` that are larger than all ``sizes``."""
        return padding_of(sizes, self._steps(histogram)).uncovered_share

    def _steps(self, histogram: Histogram) -> Steps:
        """Steps by tokens; those that are none for a graph are left out."""
        steps: dict[int, int] = {}
        for num_reqs, count in histogram.decode_steps().items():
            for tokens in self._tokens(num_reqs):
                steps[tokens] = steps.get(tokens, 0) + count
        for tokens, count in self._mixed_steps(histogram).items():
            steps[tokens] = steps.get(tokens, 0) + count
        return steps

    def _mixed_steps(self, histogram: Histogram) -> dict[int, int]:
        """The steps with prefill that have graphs, by tokens."""
        if not self.has_mixed:
            return {}
        return {tokens: count for tokens, count in histogram.token_steps().items() if tokens <= self.maximum}

    def _tokens(self, num_reqs: int) -> Iterator[int]:
        """The tokens of each batch of a step with so many requests, more of them as the most that run."""
        for family in (*self.needs.families, *((need,) for need in self.needs.others)):
            widest = max((need.widest for need in family), default=0)
            serving = [need for need in family if need.widest >= min(num_reqs, widest)]
            if num_reqs and serving:
                need = min(serving, key=lambda need: need.widest)
                yield min(num_reqs, need.widest) * need.query_len


def checked_times(times: Sequence[Sequence[float]] | None) -> Sequence[Sequence[float]]:
    """Step times that can be interpolated.

    Raises:
        PlanError: they are no pairs of ascending tokens and positive seconds.
    """
    for pair in times or ():
        if len(pair) != 2 or pair[0] < 0 or not 0 < pair[1] < _NANOSECONDS or pair[0] != int(pair[0]):
            raise PlanError(
                f"{list(pair)} is no pair of tokens and the seconds of such a step", fields=(TIMES_FIELD,)
            )
    if any(before[0] >= after[0] for before, after in pairwise(times or ())):
        raise PlanError("the numbers of tokens have to ascend", fields=(TIMES_FIELD,))
    return times or ()


def _interpolated(times: Sequence[Sequence[float]], size: int) -> int:
    """The nanoseconds of a step of ``size`` tokens; above the last, in proportion to it."""
    points = [(int(tokens), round(seconds * _NANOSECONDS)) for tokens, seconds in times]
    if size <= points[0][0]:
        return points[0][1]
    for (low, fast), (high, slow) in pairwise(points):
        if size <= high:
            return fast + (slow - fast) * (size - low) // (high - low)
    return points[-1][1] * size // points[-1][0]
