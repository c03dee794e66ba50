"""What one family covers: its entries by LoRA case, and the coverage of every class of batches.

LoRA cases with the same shapes cover the same batches, so each set of shapes is decided once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter

from attrs import frozen

from planner.descriptors import PlanEntry
from planner.documents.plan import TARGET, Plan, ResolvedFamily
from planner.modes import CUDAGraphMode
from planner.verify.coverage import MOST_RANGES, Coverage, TooManyRangesError, cover_all
from planner.verify.domain import Domain, batch_classes, domain_of
from planner.verify.ladders import rules_of

Shape = tuple[bool, int, int | None, int | None, int | None, int]
"""What two entries of one family can differ in, beside the LoRA case."""

_NUMBERS = ("num_tokens", "num_reqs", "uniform_token_count", "max_query_len", "num_ubatches")
_ROW, _COLUMNS = attrgetter(*_NUMBERS), tuple(attrgetter(name) for name in _NUMBERS)


@frozen
class CaseGroup:
    """LoRA cases whose entries have the same ``shapes``, in capture order.

    ``active`` are those of its ``cases`` that some number of adapters runs in, ``brought`` those and
    the one of the engine's dummy batches, which count an adapter more than there are (rules 5.2).
    ``entries`` are each case's, ``coverages`` one for each class of batches.
    """

    cases: tuple[int, ...]
    active: tuple[int, ...]
    brought: tuple[int, ...]
    shapes: tuple[Shape, ...]
    entries: Mapping[int, Sequence[PlanEntry]]
    coverages: tuple[Coverage, ...]

    @property
    def model(self) -> Sequence[PlanEntry]:
        """The entries of one case, which the coverages speak of."""
        return self.entries[self.cases[0]]


@frozen(slots=False)
class Survey:
    """A family, the batches that it has to serve, and what serves them."""

    plan: Plan
    family: str
    domain: Domain
    groups: tuple[CaseGroup, ...]

    @property
    def entries(self) -> tuple[PlanEntry, ...]:
        """All entries of the family, in capture order."""
        return self.plan.entries(self.family)

    @property
    def resolved(self) -> ResolvedFamily | None:
        """What was resolved for the family; ``None`` in a plan written by hand."""
        return self.plan.resolved.get(self.family)

    @property
    def prefix(self) -> str:
        """How a message about batches begins: nothing for the target, else the family's name."""
        return "" if self.family == TARGET else f"graphs.{self.family}: "

    def telling_cases(self, cases: Iterable[int]) -> tuple[int, ...]:
        """``cases`` ascending, or none where they are all that batches run in."""
        found = set(cases)
        return () if found == self.active_cases else tuple(sorted(found))

    @cached_property
    def active_cases(self) -> frozenset[int]:
        """The LoRA cases that some number of adapters runs in."""
        return frozenset(case for group in self.groups for case in group.active)

    @cached_property
    def largest_mixed_size(self) -> int:
        """The largest size that was resolved, or else that a graph for mixed batches has."""
        resolved = self.resolved if self.domain.lookup is None else None
        if resolved is not None and resolved.max_cudagraph_capture_size:
            return resolved.max_cudagraph_capture_size
        return max(
            (
                entry.num_tokens
                for entry in self.entries
                if entry.uniform_token_count is None and entry.max_query_len is None
            ),
            default=0,
        )


def survey_of(plan: Plan, family: str) -> Survey:
    """The survey of ``family``.

    Raises:
        TooManyRangesError: it has more entries for more query lengths than any server captures.
    """
    domain, entries, rules = domain_of(plan, family), plan.entries(family), rules_of(plan, family)
    classes = batch_classes(domain, entries)
    by_case: dict[int, list[PlanEntry]] = {}
    for entry in entries:
        by_case.setdefault(entry.num_active_loras, []).append(entry)
    # Rounding is a staircase: its steps begin at 0, at 1, and above each captured case.
    steps = {0, 1, *(case + 1 for case in rules.lora_cases)}
    active = {rules.captured_case(number) for number in steps if number <= domain.max_loras}
    brought = active | ({rules.captured_case(domain.max_loras + 1)} if domain.max_loras else set())
    by_shapes: dict[object, list[int]] = {}
    for case in sorted({*by_case, *active}, key=lambda case: (case not in active, case)):
        by_shapes.setdefault(_shapes_key(by_case.get(case, ())), []).append(case)
    if len(by_shapes) * len(classes) > MOST_RANGES:
        raise TooManyRangesError
    groups = []
    for cases in by_shapes.values():
        ladders = rules.ladders(by_case.get(cases[0], ()), cases[0])
        groups.append(
            CaseGroup(
                cases=tuple(cases),
                active=tuple(case for case in cases if case in active),
                brought=tuple(case for case in cases if case in brought),
                shapes=tuple(map(shape_of, by_case.get(cases[0], ()))),
                entries={case: by_case.get(case, ()) for case in cases},
                coverages=cover_all(classes, ladders),
            )
        )
    return Survey(plan, family, domain, tuple(groups))


def shape_of(entry: PlanEntry) -> Shape:
    """The shape of ``entry``."""
    return entry.mode is CUDAGraphMode.FULL, *_ROW(entry)


def _shapes_key(entries: Sequence[PlanEntry]) -> object:
    """What is equal where all shapes are, but made without an object for each entry."""
    full = bytes([entry.mode is CUDAGraphMode.FULL for entry in entries])
    return full, *(tuple(map(column, entries)) for column in _COLUMNS)
