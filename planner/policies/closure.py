"""Closure: the sizes that several query lengths need beside one another.

A batch tries the nearest FULL size only. Where that is a whole number of requests of another length
alone, the batch goes without, whatever larger graphs there are. So below every graph, the largest batch
of each other length needs a graph of its own.
Source: vLLM 0.33, candidates of the V2 graph manager (rules 5.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import field, frozen

from planner.errors import PlanError
from planner.policies.needs import Need, Needs
from planner.rules.sizes import SIZES_FIELD

MAX_SIZES = 1 << 14
"""Up to how many sizes are made: far more than any server captures."""


@frozen
class _Graphs:
    """The tokens of the graphs that the engine makes for one family of several query lengths."""

    needs: Sequence[Need]
    max_num_seqs: int
    largest: int
    tokens: set[tuple[int, int]] = field(factory=set)

    def note(self, size: int) -> list[int]:
        """What ``size`` adds to them."""
        made = []
        for need in self.needs:
            length = need.query_len
            tokens = -(-size // length) * length
            if tokens <= min(self.max_num_seqs * length, self.largest):
                self.tokens.add((length, tokens))
                made.append(tokens)
        return made

    def missing_below(self, tokens: int) -> Iterable[int]:
        """The batches that would try a graph of ``tokens`` and find none of their length."""
        for need in self.needs:
            length = need.query_len
            if length <= tokens <= need.num_tokens and (length, tokens // length * length) not in self.tokens:
                yield tokens // length * length


def closed(sizes: Iterable[int], needs: Needs) -> set[int]:
    """``sizes`` and those without which some query length would be in another's way.

    The widest batch of every need is among ``sizes``.

    Raises:
        PlanError: they are too many to capture.
    """
    found = set(sizes)
    families = [
        _Graphs(family, needs.max_num_seqs, max(found, default=0))
        for family in needs.families
        if len(family) > 1
    ]
    waiting = [(graphs, tokens) for graphs in families for size in found for tokens in graphs.note(size)]
    while waiting:
        graphs, tokens = waiting.pop()
        for size in graphs.missing_below(tokens):
            found.add(size)
            waiting.extend((other, made) for other in families for made in other.note(size))
        if len(found) > MAX_SIZES:
            raise PlanError(
                f"the query lengths of the schedule need more than {MAX_SIZES} sizes beside one another; "
                "schedule fewer lengths, or such that are multiples of one another",
                fields=("speculative.num_speculative_tokens_per_batch_size", SIZES_FIELD),
            )
    return found
