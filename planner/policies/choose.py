"""Which capture sizes a deployment gets: by its policy, or exactly those that the user wrote."""

from __future__ import annotations

from planner.errors import PlanError
from planner.modes import CapturePolicy, Runner
from planner.policies.budgets import passed
from planner.policies.covering import covering, left_without
from planner.policies.request import Choice, Outcome, PolicyRequest
from planner.rules.sizes import SIZES_FIELD, TOKENS_FIELD, CaptureSizes

POLICY_FIELD = "capture.policy"


def chosen(request: PolicyRequest) -> Choice:
    """The sizes that the deployment's policy chooses; those that the user wrote are the user's choice.

    Raises:
        PlanError: a setting of the user's cannot be honoured.
    """
    if request.deployment.compilation.cudagraph_capture_sizes is not None:
        return _as_written(request)
    if request.deployment.capture.policy is CapturePolicy.TRAFFIC:
        from planner.policies.traffic import for_traffic

        return for_traffic(request)
    return covering(request)


def capture_sizes_of(choice: Choice) -> CaptureSizes:
    """The sizes in force."""
    sizes = choice.outcome.sizes
    return CaptureSizes(sizes, sizes[-1] if sizes else 0, choice.decisions)


def _as_written(request: PolicyRequest) -> Choice:
    """The user's own sizes, each of them captured and none missing."""
    policy = request.deployment.capture.policy
    written = tuple(sorted(set(request.deployment.compilation.cudagraph_capture_sizes or ())))
    outcome = request.outcome(written)
    _refuse_lost(request, written)
    _refuse_unused(written, outcome)
    if outcome.holes:
        raise PlanError(
            f"the list leaves {left_without(outcome)} without a FULL graph, and {policy} adds nothing "
            "to a list; leave it out, add sizes, or set capture.policy engine",
            fields=(SIZES_FIELD, POLICY_FIELD),
        )
    if limit := passed(request.deployment, written, outcome.families):
        raise PlanError(
            f"{limit.value} is the limit, but the list needs {limit.needed}; raise the one, or shorten "
            "the other",
            fields=(f"capture.{limit.name}", SIZES_FIELD),
        )
    return Choice(outcome, request.engine_sizes.decisions)


def _refuse_lost(request: PolicyRequest, written: tuple[int, ...]) -> None:
    limit, length = request.settings.max_num_batched_tokens, request.settings.query_len
    if written[-1] > limit:
        too_large = [size for size in written if size > limit]
        raise PlanError(
            f"no step has as many tokens as {_listed(too_large)}; the most are {limit}: leave them out, "
            "or raise it",
            fields=(SIZES_FIELD, TOKENS_FIELD),
        )
    rounded = request.settings.runner is Runner.V1 and request.engine_sizes.sizes != written
    if rounded:
        ragged = [size for size in written if size % length]
        raise PlanError(
            f"the v1 runner captures whole requests of {length} tokens, which {_listed(ragged)} are not; "
            f"write multiples of {length}",
            fields=(SIZES_FIELD,),
        )


def _refuse_unused(written: tuple[int, ...], outcome: Outcome) -> None:
    captured = {entry.num_tokens for family in outcome.families for entry in family.entries}
    unused = [size for size in written if size not in captured]
    if unused:
        raise PlanError(
            f"no graph has exactly the tokens of {_listed(unused)}: none is made, or no batch ever runs "
            "in it; leave them out, or write whole decode requests",
            fields=(SIZES_FIELD,),
        )


def _listed(sizes: list[int]) -> str:
    return ", ".join(map(str, sizes[:8])) + (f" and {len(sizes) - 8} more" if len(sizes) > 8 else "")
