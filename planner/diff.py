"""Diff: what changed from one plan to another, in graphs, values, decisions, findings and estimates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from attrs import Factory, evolve, frozen

from planner.descriptors import PlanEntry
from planner.documents.data import plain
from planner.documents.deployment import Json
from planner.documents.estimates import Estimate
from planner.documents.plan import Decision, Finding, Plan

T = TypeVar("T")


@frozen
class Difference(Generic[T]):
    """Items that only the first plan has, and those that only the second has."""

    lost: tuple[T, ...] = ()
    gained: tuple[T, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.lost or self.gained)


@frozen
class Change:
    """A value that differs; ``None`` where a plan does not have it."""

    path: str
    before: Json
    after: Json


@frozen(kw_only=True)
class FamilyDiff:
    """One family's graphs, compared by execution descriptor and prologue.

    ``reordered`` says that the graphs of both plans are captured in another order. ``only_before``
    and ``only_after`` say that one of the plans has no such family.
    """

    family: str
    graphs: Difference[PlanEntry]
    reordered: bool = False
    only_before: bool = False
    only_after: bool = False

    def __bool__(self) -> bool:
        return bool(self.graphs) or self.reordered or self.only_before or self.only_after


@frozen(kw_only=True)
class PlanDiff:
    """What differs. ``families`` are those with other graphs, ``settings`` what was asked for.

    The plans' names and digests are not compared: a digest follows from the rest.
    """

    families: tuple[FamilyDiff, ...] = ()
    settings: tuple[Change, ...] = ()
    resolved: tuple[Change, ...] = ()
    decisions: Difference[Decision] = Factory(Difference)
    findings: Difference[Finding] = Factory(Difference)
    estimates: tuple[Change, ...] = ()

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        stated = self.decisions or self.findings or self.estimates
        return not (self.families or self.settings or self.resolved or stated)


def diff(a: Plan, b: Plan) -> PlanDiff:
    """What changes from ``a`` to ``b``."""
    families = (family_diff(a, b, family) for family in dict.fromkeys((*a.graphs, *b.graphs)))
    return PlanDiff(
        families=tuple(family for family in families if family),
        settings=tuple(_changes("", _settings(a), _settings(b))),
        resolved=tuple(_changes("resolved", plain(a.resolved), plain(b.resolved))),
        decisions=_difference(a.decisions, b.decisions),
        findings=_difference(a.findings, b.findings),
        estimates=tuple(_estimate_changes(a.estimates, b.estimates)),
    )


def _estimate_changes(a: Estimate | None, b: Estimate | None) -> Iterator[Change]:
    """Changes of what is expected, and of where that is from; none where a plan has no estimates."""
    if a is not None and b is not None:
        yield from _changes("estimates", _expected(a), _expected(b))


def _expected(estimate: Estimate) -> dict[str, Json]:
    quantities = {"memory_gib": estimate.memory_gib, "seconds": estimate.seconds}
    shown = {
        name: {"expected": quantity.expected, "source": quantity.source}
        for name, quantity in quantities.items()
    }
    return {"num_graphs": estimate.num_graphs, **shown}


def family_diff(a: Plan, b: Plan, family: str) -> FamilyDiff:
    """What changes from ``a`` to ``b`` in the graphs of ``family``."""
    before, after = a.graphs.get(family, ()), b.graphs.get(family, ())
    return FamilyDiff(
        family=family,
        graphs=_difference(before, after),
        reordered=_common_in_order(before, after) != _common_in_order(after, before),
        only_before=family not in b.graphs,
        only_after=family not in a.graphs,
    )


def _common_in_order(items: Sequence[T], others: Iterable[T]) -> list[T]:
    common = set(others)
    return [item for item in dict.fromkeys(items) if item in common]


def _difference(before: Sequence[T], after: Sequence[T]) -> Difference[T]:
    """Items of either side without a partner on the other, in their order."""
    return Difference(tuple(_without_partner(before, after)), tuple(_without_partner(after, before)))


def _without_partner(items: Sequence[T], others: Sequence[T]) -> Iterator[T]:
    # Decisions hold lists, which cannot be counted by their hash.
    left = Counter(repr(other) for other in others)
    for item in items:
        key = repr(item)
        if left[key]:
            left[key] -= 1
        else:
            yield item


def _settings(plan: Plan) -> dict[str, Json]:
    settings: dict[str, Json] = plain(evolve(plan.deployment, name=None))
    return settings


def _changes(path: str, before: Any, after: Any) -> Iterator[Change]:
    """Changed values, as deep as both sides are mappings."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys((*before, *after)):
            inner = f"{path}.{key}" if path else key
            yield from _changes(inner, before.get(key), after.get(key))
    elif before != after:
        yield Change(path, before, after)
