"""Which batch goes to which graph, as what a map of it shows: panels of batches over tokens and requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen

from planner.descriptors import PlanEntry
from planner.documents.plan import Plan
from planner.rules.encoder import ENCODER
from planner.verify.coverage import Coverage, TooManyRangesError
from planner.verify.survey import CaseGroup, Shape, Survey, shape_of, survey_of
from planner.verify.wording import joined, span_of, spans_of

NAMED_RANGES = 3
"""Kinds of batches that the list of graphs names for each; the others are in the map."""


@frozen(kw_only=True)
class Panel:
    """One map: ``uniform`` batches lie on a line each, those of ``ranged`` fill an area.

    ``cases`` are the LoRA cases that it holds for, none where it holds for all batches. The batches of
    a step in ``num_ubatches`` microbatches have a panel of their own, and so has decode of unequal
    lengths, the longest of ``max_query_len``.
    """

    uniform: tuple[Coverage, ...] = ()
    ranged: Coverage | None = None
    cases: tuple[int, ...] = ()
    num_ubatches: int = 1
    max_query_len: int | None = None


@frozen(kw_only=True)
class FamilyMap:
    """What one family covers. Without ``panels``, ``because`` says why there is nothing to draw.

    ``serves`` has words for the batches that run in each entry, as far as those are known.
    """

    family: str
    panels: tuple[Panel, ...] = ()
    serves: Mapping[PlanEntry, str]
    because: str = ""


def family_map(plan: Plan, family: str) -> FamilyMap:
    """The map of ``family``."""
    if family == ENCODER:
        because = "An encoder's batches are images, which requests and their tokens tell nothing of."
        return FamilyMap(family=family, serves={}, because=because)
    survey = surveyed(plan, family)
    if survey is None:
        because = "Its entries are for more query lengths and numbers of requests than can be drawn."
        return FamilyMap(family=family, serves={}, because=because)
    panels = tuple(panel for group in survey.groups if group.active for panel in _panels(survey, group))
    because = "" if panels else "No batches reach this family."
    return FamilyMap(family=family, panels=panels, serves=_served_words(survey), because=because)


def surveyed(plan: Plan, family: str) -> Survey | None:
    """The survey of ``family``; ``None`` of a plan by hand that is cut into too many ranges."""
    try:
        return survey_of(plan, family)
    except TooManyRangesError:
        return None


def _panels(survey: Survey, group: CaseGroup) -> Iterator[Panel]:
    """The maps of some LoRA cases: whole steps, decode of unequal lengths, steps in microbatches."""
    by_kind: dict[tuple[int, int | None], list[Coverage]] = {}
    for coverage in group.coverages:
        batches = coverage.batches
        bound = None if batches.query_len is not None else batches.max_query_len
        by_kind.setdefault((batches.num_ubatches, bound), []).append(coverage)
    for (num_ubatches, bound), coverages in by_kind.items():
        if not any(one.served or one.unserved for one in coverages):
            continue
        ranged = [one for one in coverages if one.batches.query_len is None]
        yield Panel(
            uniform=tuple(one for one in coverages if one.batches.query_len is not None),
            ranged=ranged[0] if ranged else None,
            cases=survey.telling_cases(group.active),
            num_ubatches=num_ubatches,
            max_query_len=bound,
        )


def _served_words(survey: Survey) -> dict[PlanEntry, str]:
    """The batches that every entry serves in some LoRA case."""
    words: dict[PlanEntry, str] = {}
    for group in survey.groups:
        by_shape = _by_shape(group.coverages)
        for case in group.active:
            for entry in group.entries[case]:
                words[entry] = by_shape.get(shape_of(entry), "nothing")
    return words


def _by_shape(coverages: Sequence[Coverage]) -> dict[Shape, str]:
    ranges: dict[Shape, dict[str, list[tuple[int, int]]]] = {}
    for coverage in coverages:
        batches = coverage.batches
        cut = f" in {batches.num_ubatches} microbatches" if batches.num_ubatches > 1 else ""
        for served in coverage.served:
            if (length := batches.query_len) is not None:
                kind, found = f"decode of {{}} of {length}{cut}", (served.fewest, served.most)
            elif batches.max_query_len is not None:
                found = served.first, served.last
                kind = f"decode of {{}}, at most {batches.max_query_len} each{cut}"
            else:
                kind, found = f"mixed, {{}}{cut}", (served.first, served.last)
            ranges.setdefault(shape_of(served.entry), {}).setdefault(kind, []).append(found)
    return {shape: _in_words(kinds) for shape, kinds in ranges.items()}


def _in_words(kinds: Mapping[str, list[tuple[int, int]]]) -> str:
    parts = []
    for kind, ranges in list(kinds.items())[:NAMED_RANGES]:
        noun = "request" if kind.startswith("decode of {} of") else "token"
        parts.append(kind.format(spans_of(ranges, noun)))
    if len(kinds) > NAMED_RANGES:
        parts.append(f"{len(kinds) - NAMED_RANGES} more kinds of batches")
    return "; ".join(parts)


def panel_title(panel: Panel) -> str:
    """What the batches of ``panel`` have in common."""
    if panel.max_query_len is not None:
        first = panel.ranged.batches.surplus + 1 if panel.ranged is not None else 1
        title = f"decode of unequal lengths, the longest of {span_of(first, panel.max_query_len, 'token')}"
    else:
        kinds = ["uniform decode"] if panel.uniform else []
        title = joined([*kinds, *(["mixed batches"] if panel.ranged is not None else [])])
    if panel.num_ubatches > 1:
        title += f", in {panel.num_ubatches} microbatches"
    if panel.cases:
        noun = "case" if len(panel.cases) == 1 else "cases"
        title += " without LoRA" if panel.cases == (0,) else f", LoRA {noun} {joined(panel.cases)}"
    return title
