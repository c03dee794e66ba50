"""Lists of capture sizes that a fix may propose, and how it writes them."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, frozen

from planner.descriptors import MAX_GRAPH_TOKENS
from planner.rules.sizes import SizeRequest
from planner.verify.wording import joined

LISTED_SIZES = 64
"""Up to how many sizes a fix writes out the whole list."""

MOST_SIZES = 1 << 14
"""Up to how many sizes a list is made at all."""


@frozen
class SizeList:
    """Capture sizes in tokens: the ``base``, and what is ``added`` to it, partly as whole ``runs``.

    ``words`` name the whole list where it is too long to be read.
    """

    base: Sequence[int]
    added: Sequence[int] = ()
    runs: tuple[range, ...] = ()
    words: str | None = None

    @property
    def last(self) -> int:
        """The largest size, 0 where there is none."""
        return max((0, *self.base, *self.added, *(run[-1] for run in self.runs if run)))

    @property
    def is_bounded(self) -> bool:
        """Whether it is short enough to be made, and no graph of it beyond the largest."""
        return self._length <= MOST_SIZES and 0 < self.last <= MAX_GRAPH_TOKENS

    @property
    def _length(self) -> int:
        return len(self.base) + len(self.added) + sum(map(len, self.runs))

    def sizes(self) -> tuple[int, ...]:
        """The sizes, ascending."""
        return tuple(sorted({*self.base, *self.added, *(size for run in self.runs for size in run)}))

    def asked_in(self, request: SizeRequest) -> SizeRequest:
        """``request`` with this list."""
        return evolve(request, asked_sizes=self.sizes(), asked_max=None)

    def setting(self, asked_max: int | None) -> str:
        """``cudagraph_capture_sizes: [1, 2, 4]``; a maximum that was asked for has to stay the last size."""
        setting = f"cudagraph_capture_sizes: {self._listed()}"
        if asked_max not in (None, self.last):
            setting += f", max_cudagraph_capture_size: {self.last}"
        return setting

    def _listed(self) -> str:
        if self._length <= MOST_SIZES and len(sizes := self.sizes()) <= LISTED_SIZES:
            return str(list(sizes))
        if self.words is not None:
            return self.words
        runs = (f"every multiple of {run.step} up to {run[-1]}" for run in self.runs if run)
        return f"those in force and {joined((*sorted(self.added), *runs))}"
