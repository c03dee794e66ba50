"""Padding: what decode of a known traffic costs in the graphs of a list of sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from attrs import frozen

from planner.documents.plan import TARGET, Plan
from planner.modes import CUDAGraphMode


@frozen
class Padding:
    """Steps in the graphs of some sizes, all counted in requests.

    ``batched`` is the sum of the batches that have a graph, ``computed`` that of their graphs' sizes;
    ``uncovered`` of all ``steps`` have none. ``used`` are the sizes that any batch runs in.
    """

    batched: int
    computed: int
    steps: int
    uncovered: int
    used: tuple[int, ...]

    @property
    def share(self) -> float:
        """The padded part of what is computed, from 0 to 1."""
        return 1 - self.batched / self.computed if self.computed else 0.0

    @property
    def uncovered_share(self) -> float:
        """The steps without a graph, as a part of all."""
        return self.uncovered / self.steps if self.steps else 0.0


def padding_of(sizes: Sequence[int], counts: Mapping[int, int], *, exact: bool = False) -> Padding:
    """The padding of batches, with how often each occurs, in the smallest of ``sizes`` at or above each.

    ``exact`` is of an engine that pads nothing: a batch has a graph of its own size, or none.
    """
    ladder = sorted(set(sizes))
    batched = computed = covered = 0
    used = []
    for below, size in pairwise((0, *ladder)):
        served = {n: counts[n] for n in ((size,) if exact else range(below + 1, size + 1)) if counts.get(n)}
        if served:
            steps = sum(served.values())
            batched += sum(number * count for number, count in served.items())
            computed += size * steps
            covered += steps
            used.append(size)
    steps = sum(counts.values())
    return Padding(batched, computed, steps, steps - covered, tuple(used))


def decode_sizes(plan: Plan) -> tuple[int, ...]:
    """The numbers of requests that a plan's target has FULL graphs of uniform decode for, ascending.

    With several query lengths they are those of the longest.
    """
    decode = [
        entry
        for entry in plan.entries(TARGET)
        if entry.mode is CUDAGraphMode.FULL and entry.uniform_token_count is not None
    ]
    longest = max((entry.uniform_token_count or 0 for entry in decode), default=0)
    sizes = {entry.num_tokens // longest for entry in decode if entry.uniform_token_count == longest}
    return tuple(sorted(sizes))
