"""The exact optimum: the capture sizes that cost a known traffic the least, for every number of sizes.

A dynamic programme over the sizes, one layer for each further size. Where costs do not fall with the
size, the best size before another moves up with it, so that a layer takes linear time: the choices
left open are straight lines of the next size's cost, of which only the lower envelope is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate

from attrs import frozen


@frozen(eq=False)
class Optima:
    """The optimum for each number of sizes, from ``fewest`` to ``most``.

    ``costs[k - fewest]`` is the whole cost with k sizes, in units of weight times cost.
    """

    fewest: int
    costs: tuple[int, ...]
    _candidates: tuple[int, ...]
    _before: tuple[Sequence[int], ...]

    @property
    def most(self) -> int:
        """The largest number of sizes; more would not lower the cost."""
        return self.fewest + len(self.costs) - 1

    def sizes(self, number: int) -> tuple[int, ...]:
        """The ``number`` sizes of least cost, ascending."""
        place = len(self._candidates) - 1
        chosen = [place]
        for layer in range(number - 1, 0, -1):
            place = self._before[layer][place]
            chosen.append(place)
        return tuple(self._candidates[place] for place in reversed(chosen))


def optimal_sizes(
    weights: Sequence[int],
    costs: Sequence[int],
    candidates: Sequence[int],
    *,
    required: Collection[int] = (),
    most: int,
) -> Optima | None:
    """The sizes among ``candidates`` that serve ``weights`` at the least cost, ``None`` without any.

    ``weights[n]`` is how often a batch of n tokens occurs; it runs in the smallest size at or above n,
    at ``costs[size]``. Both may be any integers from 0 on. ``candidates`` ascend, and their last, which
    no weight lies above, is always chosen, as are those ``required``; nothing is found where these are
    more than ``most``.
    """
    barriers = {*required, candidates[-1]}
    if len(barriers) > most:
        return None
    places = _useful(list(accumulate(weights)), costs, candidates, barriers)
    sizes = tuple(size for size, _ in places)
    totals, before = _layers(
        [below for _, below in places],
        [costs[size] for size in sizes],
        [size in barriers for size in sizes],
        min(most, len(sizes)),
    )
    fewest = len(barriers)
    return Optima(fewest, tuple(totals[fewest - 1 :]), sizes, tuple(before))


def _useful(
    below: Sequence[int], costs: Sequence[int], candidates: Sequence[int], barriers: Collection[int]
) -> list[tuple[int, int]]:
    """Candidates that may be part of an optimum, each with the weight up to it.

    Between two sizes that are chosen anyway, one with a cheaper one above it is worse than that one,
    and one without weight of its own is worse than the one below it. The costs of those left rise.
    """
    cheap: list[int] = []
    cheapest = 0
    for size in reversed(candidates):
        if size in barriers or costs[size] < cheapest:
            cheap.append(size)
            cheapest = costs[size]
    useful: list[tuple[int, int]] = []
    weight_before = 0
    for size in reversed(cheap):
        if below[size] > weight_before or size in barriers:
            useful.append((size, below[size]))
            weight_before = below[size]
    return useful


def _layers(
    below: Sequence[int], costs: Sequence[int], barrier: Sequence[bool], layers: int
) -> tuple[list[int], list[Sequence[int]]]:
    """The least cost with 1, 2, ... sizes, and for each layer which place precedes each place.

    ``least[j]`` is the cost of everything up to place j with j chosen last.
    """
    impossible = below[-1] * max(costs) + 1
    least: list[int] = []
    passed = False
    for weight, cost, is_barrier in zip(below, costs, barrier, strict=True):
        least.append(impossible if passed else weight * cost)
        passed = passed or is_barrier
    totals = [least[-1]]
    before: list[Sequence[int]] = [[0] * len(below)]
    for layer in range(1, layers):
        least, places = _next_layer(least, below, costs, barrier, layer)
        totals.append(least[-1])
        before.append(places)
    return totals, before


def _next_layer(
    least: Sequence[int], below: Sequence[int], costs: Sequence[int], barrier: Sequence[bool], layer: int
) -> tuple[list[int], list[int]]:
    """One size more: each place after the best of those before it, not beyond the last barrier.

    Place i offers place j the cost ``least[i] + (below[j] - below[i]) * costs[j]``, a line in
    ``costs[j]``. ``slopes``, ``starts`` and ``places`` are the lines of the lower envelope; each is the
    best for costs above its entry of ``turns``, up to the next line's.
    """
    size = len(below)
    found, choice = [0] * size, [0] * size
    slopes, starts, places, turns = [below[layer - 1]], [least[layer - 1]], [layer - 1], [-1]
    best = 0
    for place in range(layer, size):
        weight, cost, start = below[place], costs[place], least[place]
        last = len(slopes) - 1
        while best < last and turns[best + 1] < cost:
            best += 1
        found[place] = starts[best] + (weight - slopes[best]) * cost
        choice[place] = places[best]
        if barrier[place]:
            slopes, starts, places, turns = [weight], [start], [place], [-1]
            best = 0
            continue
        turn = (start - starts[last]) // (weight - slopes[last])
        while last > best and turn <= turns[last]:
            for line in (slopes, starts, places, turns):
                line.pop()
            last -= 1
            turn = (start - starts[last]) // (weight - slopes[last])
        slopes.append(weight)
        starts.append(start)
        places.append(place)
        turns.append(turn)
    return found, choice
