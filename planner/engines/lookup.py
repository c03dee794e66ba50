"""Dispatch where decode is looked up by requests and prefill by tokens: SGLang and TensorRT-LLM.

A graph for a uniform token count is one of decode, all others are of prefill; neither ever serves a
batch of the other kind. The smallest graph that holds the batch is the only one that is tried.
Source: SGLang 0.5.23 (rules 13 and 14), TensorRT-LLM (rules 5 and 6).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from planner.descriptors import BatchExecutionDescriptor, PlanEntry
from planner.dispatch import MAX_COMPARISONS, Candidate, DispatchTable, Ladder, fitting
from planner.documents.plan import Lookup, Plan
from planner.errors import PlanError
from planner.modes import CUDAGraphMode, Runner

DEFAULT_LOOKUPS = {
    Runner.SGLANG: Lookup(max_prefill_factor=2),
    Runner.TENSORRT_LLM: Lookup(pads_decode=False),
}
"""How engines look batches up where a plan written by hand does not say it."""

Step = tuple[int, PlanEntry]
"""An entry, and the tokens of the smallest batch that tries it."""


def is_decode(entry: PlanEntry) -> bool:
    """Whether the graph of ``entry`` is one of decode."""
    return entry.uniform_token_count is not None


def steps(entries: Iterable[PlanEntry], lookup: Lookup) -> list[Step]:
    """All ``entries`` of one LoRA case by ascending tokens, each with the smallest batch that tries it.

    Batches above the size before and up to an entry's own try it, unless it would pad too much: then
    nothing is tried. Each uniform token count has sizes of its own, and so have the others together.
    """
    found: list[Step] = []
    below: dict[int | None, tuple[int, int]] = {}
    for entry in sorted(entries, key=lambda entry: entry.num_tokens):
        count, tokens = entry.uniform_token_count, entry.num_tokens
        size, first = below.get(count, (0, 0))
        if tokens > size:
            first = _first_tokens(size, tokens, lookup, is_decode=count is not None)
            below[count] = tokens, first
        found.append((first, entry))
    return found


def _first_tokens(below: int, tokens: int, lookup: Lookup, *, is_decode: bool) -> int:
    if is_decode:
        return below + 1 if lookup.pads_decode else tokens
    factor = lookup.max_prefill_factor
    return below + 1 if factor is None else max(below + 1, -(-tokens // factor))


class LookupTable(DispatchTable):
    """Answers dispatch for one family of a plan of an engine that looks decode up by requests.

    ``runner`` names the engine. A batch is decode if its uniform token count is that of some decode
    graph, or if the longest query is told, which no prefill has; others are prefill.
    """

    def __init__(
        self,
        entries: Iterable[PlanEntry],
        lookup: Lookup,
        *,
        runner: Runner,
        lora_cases: Iterable[int] = (0,),
        decode_query_len: int | None = None,
    ) -> None:
        self.lookup = lookup
        self.runner = runner
        entries = tuple(entries)
        self.decode_counts = frozenset(
            (*(entry.uniform_token_count for entry in entries if is_decode(entry)), decode_query_len)
        ) - {None}
        super().__init__(entries, lora_cases=lora_cases, decode_query_len=decode_query_len)

    def is_decode_batch(self, uniform_token_count: int | None, max_query_len: int | None) -> bool:
        """Whether a batch is looked up among the graphs of decode."""
        return uniform_token_count in self.decode_counts or max_query_len is not None

    def dispatch(
        self,
        num_reqs: int,
        num_tokens: int,
        uniform_token_count: int | None = None,
        num_active_loras: int = 0,
        max_query_len: int | None = None,
        num_ubatches: int = 1,
    ) -> BatchExecutionDescriptor:
        """The graph that serves a batch of one rank, or a NONE descriptor of the batch unpadded.

        What only a running engine knows, such as a rank that votes against graphs, is taken to allow
        them; ``planner.agree`` takes it into account.
        """
        eager = uniform_token_count not in self.decode_counts and max_query_len is not None
        if num_ubatches != 1 or eager:
            case = self.captured_case(num_active_loras)
            return BatchExecutionDescriptor(
                CUDAGraphMode.NONE, num_tokens, num_reqs, None, None, case, num_ubatches
            )
        if not num_tokens and uniform_token_count in self.decode_counts and self.lookup.pads_decode:
            # An idle rank decodes along with the others, in the smallest graph.
            num_tokens = uniform_token_count or 0
        return super().dispatch(num_reqs, num_tokens, uniform_token_count, num_active_loras)

    def admits_sequence(self, num_tokens: int) -> bool:
        """Whether prefill of a sequence of so many tokens, its context included, may replay a graph.

        Dispatch is not asked about sequences; who knows their lengths asks this first.
        """
        longest = self.lookup.max_prefill_seq_len
        return longest is None or num_tokens <= longest

    def prefill_descriptor(self, num_tokens: int) -> BatchExecutionDescriptor | None:
        """The smallest prefill graph of at least ``num_tokens``, however much it pads."""
        prefill = (entry for entry in self.entries if not is_decode(entry) and entry.num_tokens >= num_tokens)
        nearest = min(prefill, key=lambda entry: entry.num_tokens, default=None)
        return None if nearest is None else nearest.execution_descriptor

    def _ladder(self, entries: Sequence[PlanEntry]) -> Ladder:
        """Every number of tokens at which some graph begins or ends to be tried, with those tried."""
        # Entries come from the last captured to the first: a later graph takes the key of an equal one.
        found = steps(entries, self.lookup)
        edges = sorted({0, *(edge for first, entry in found for edge in (first - 1, entry.num_tokens))})
        tried: dict[int, list[PlanEntry]] = {edge: [] for edge in edges}
        places = {edge: place for place, edge in enumerate(edges)}
        for first, entry in found:
            for edge in edges[places[first - 1] + 1 : places[entry.num_tokens] + 1]:
                tried[edge].append(entry)
        trials = [(edge, tuple(sorted(tried[edge], key=_decode_first))) for edge in edges[1:]]
        return [edge for edge, _ in trials], [entries for _, entries in trials]

    def _counts(self, entries: Sequence[PlanEntry]) -> Set[int | None]:
        # A decode batch without a graph of its own must not fall back to one of prefill.
        return super()._counts(entries) | self.decode_counts

    def _candidates(
        self, entries: Sequence[PlanEntry], uniform_token_count: int | None
    ) -> tuple[Candidate, ...]:
        alike = [entry for entry in entries if entry.uniform_token_count == uniform_token_count]
        return fitting(alike, uniform_token_count)


def _decode_first(entry: PlanEntry) -> tuple[bool, int]:
    return not is_decode(entry), entry.uniform_token_count or 0


def lookup_table(plan: Plan, family: str, runner: Runner) -> LookupTable:
    """The table of ``family``; what a plan written by hand leaves open follows from its entries.

    Raises:
        FamilyError: the plan has no such family.
        PlanError: its entries are for more query lengths than can be dispatched from.
    """
    entries, resolved = plan.entries(family), plan.resolved.get(family)
    lengths = {entry.uniform_token_count for entry in entries}
    if 2 * len(entries) * len(lengths) ** 2 > MAX_COMPARISONS:
        raise PlanError(
            f"graphs for {len(lengths)} query lengths are too many to dispatch from; drop those that serve "
            "nothing",
            fields=(f"graphs.{family}",),
        )
    lookup = (resolved and resolved.lookup) or DEFAULT_LOOKUPS[runner]
    if resolved is None:
        cases = {entry.num_active_loras for entry in entries}
        counts = [length for length in lengths if length is not None]
        only = counts[0] if len(counts) == 1 else None
        return LookupTable(entries, lookup, runner=runner, lora_cases=cases, decode_query_len=only)
    return LookupTable(
        entries,
        lookup,
        runner=runner,
        lora_cases=resolved.lora_cases,
        decode_query_len=resolved.decode_query_len,
    )
