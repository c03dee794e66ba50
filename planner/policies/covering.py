"""The covering policy: capture sizes that leave no decode batch without its graph, and no graph unused.

Sizes are a grid over numbers of requests, times the query length: exact at 1 request, at the widest
batch and at each draft tier's widest. The finest grid is taken that has no more graphs than the engine
would capture by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import lcm

from planner.describe import counted
from planner.documents.plan import Decision
from planner.errors import PlanError
from planner.policies.budgets import passed
from planner.policies.closure import closed
from planner.policies.grids import FINENESS, NOTHING_BETWEEN, grid_between, grid_of_multiples
from planner.policies.needs import Alignment, Need, Needs, alignment_decisions
from planner.policies.request import Choice, Outcome, PolicyRequest, mixed_unit
from planner.rules.sizes import MAX_FIELD, SIZES_FIELD
from planner.verify.wording import joined, span_of, spans_of

WITH_HOLES = 1
"""Which grid, from the finest, is taken where covering needs more graphs than the engine captures."""

ROOM = 4
"""From so many joint multiples on, the sizes of several query lengths are rounded up to one."""


def covering(request: PolicyRequest) -> Choice:
    """The sizes that cover ``request``'s deployment.

    Raises:
        PlanError: a setting of the user's cannot be honoured.
    """
    maximum = request.maximum(request.engine_sizes.maximum if request.has_mixed else 0)
    outcome = _chosen(request, tuple(_outcomes(request, maximum)))
    return Choice(outcome, tuple(_decisions(request, outcome)))


def _outcomes(request: PolicyRequest, maximum: int) -> Iterator[Outcome]:
    """What the grids capture, from the finest to the one with the fewest graphs."""
    for steps in FINENESS:
        yield request.outcome(
            covering_sizes(request.needs, maximum, steps, steps if request.has_mixed else NOTHING_BETWEEN)
        )
    if request.has_mixed:
        yield request.outcome(covering_sizes(request.needs, maximum, FINENESS[-1], NOTHING_BETWEEN))


def covering_sizes(needs: Needs, maximum: int, steps: int, mixed_steps: int) -> tuple[int, ...]:
    """The sizes of a grid with ``steps`` between two powers of two, ascending.

    ``mixed_steps`` are those beyond the widest decode batch, up to ``maximum``.
    """
    sizes = {maximum}
    for family in needs.families:
        joint = lcm(*(needs.alignment.whole(need) for need in family))
        for need in family:
            sizes.update(_sizes_of(need, needs.alignment, steps, joint if len(family) > 1 else 1))
    for need in needs.others:
        sizes.update(_sizes_of(need, needs.alignment, steps, 1))
    sizes.update(grid_between(needs.num_tokens, maximum, mixed_unit(needs), mixed_steps))
    sizes.discard(0)
    return tuple(sorted(closed(sizes, needs)))


def _sizes_of(need: Need, alignment: Alignment, steps: int, joint: int) -> set[int]:
    """The sizes of one need; larger ones are multiples of ``joint``, with no length in another's way."""
    shared, whole = alignment.shared(need), alignment.whole(need)
    sizes = {need.num_tokens}
    for num_reqs in grid_of_multiples(need.widest, shared // need.query_len, steps):
        size = num_reqs * need.query_len
        if size > whole:
            size = -(-size // whole) * whole
        if size >= ROOM * joint:
            size = -(-size // joint) * joint
        if size <= need.num_tokens:
            sizes.add(size)
    return sizes


def _chosen(request: PolicyRequest, outcomes: Sequence[Outcome]) -> Outcome:
    """The finest grid within all limits and the engine's number of graphs; for a target the coarsest.

    ``outcomes`` are those of the grids, the finest first.
    """
    capture = request.deployment.capture
    limits = [passed(request.deployment, one.sizes, one.families) for one in outcomes]
    within = [one for one, limit in zip(outcomes, limits, strict=True) if limit is None]
    if limits[-1] is not None and not within:
        raise PlanError(
            f"{limits[-1].value} is the limit, but covering needs {limits[-1].needed}; raise it, or lower "
            "max_num_seqs",
            fields=(f"capture.{limits[-1].name}",),
        )
    if capture.max_padding is not None:
        return _reaching(capture.max_padding, within)
    engine = request.engine
    if engine.holes:
        modest = [one for one in within if one.num_graphs <= engine.num_graphs]
    else:
        modest = [one for one in within if one.is_within(engine)]
    return modest[0] if modest else within[min(WITH_HOLES, len(within) - 1)]


def _reaching(target: float, outcomes: Sequence[Outcome]) -> Outcome:
    """The fewest graphs that pad no decode batch by more than ``target``."""
    reaching = [one for one in outcomes if one.worst_padding <= target]
    if not reaching:
        best = min(outcomes, key=lambda one: one.worst_padding)
        raise PlanError(
            f"covering pads some decode batch by {best.worst_padding:.1%}, more than {target:.1%}; raise it, "
            "or set capture.policy traffic, which weighs batches by how often they occur",
            fields=("capture.max_padding",),
        )
    return min(reaching, key=lambda one: one.num_graphs)


def _decisions(request: PolicyRequest, outcome: Outcome) -> Iterator[Decision]:
    engine, sizes = request.engine, outcome.sizes
    if not sizes:
        because = "no decode request fits into a step, and mixed batches run without graphs"
        yield Decision(path=SIZES_FIELD, became=[], rule="covering", because=because)
        return
    widest = {need.query_len: need.widest for need in reversed(request.needs.all)}
    covered = joined(f"{span_of(1, most, 'request')} of {length}" for length, most in widest.items())
    because = f"uniform decode of {covered} is padded by {outcome.worst_padding:.1%} at most"
    because += f"; {counted(outcome.num_graphs, 'graph')}, the engine's own sizes make {engine.num_graphs}"
    if engine.holes:
        because += f" and leave {left_without(engine)} without a FULL graph"
    yield Decision(path=SIZES_FIELD, became=list(sizes), rule="covering", because=because)
    yield from maximum_decisions(request, sizes[-1], "mixed batches are covered as far as by the engine")
    yield from alignment_decisions(request.needs)


def maximum_decisions(request: PolicyRequest, maximum: int, beyond_decode: str) -> Iterator[Decision]:
    """Why the largest size is what it is, where the user left that open."""
    top = request.needs.num_tokens
    if request.asked_max is None:
        because = f"the widest decode batch has {counted(top, 'token')}" if maximum <= top else beyond_decode
        yield Decision(path=MAX_FIELD, became=maximum, rule="widest-batch", because=because)


def left_without(outcome: Outcome) -> str:
    """Which decode batches have no FULL graph, of the first family with such."""
    survey, group = outcome.holes[0]
    requests = spans_of(((hole.fewest, hole.most) for hole in group.holes), "request")
    of_family = "" if survey.family == "target" else f" of {survey.family}"
    return f"{requests} of {group.query_len}{of_family}"
