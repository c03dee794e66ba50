"""What is wrong in the list of entries itself: duplicates, order, contradictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import ge

from planner.describe import label
from planner.descriptors import MAX_GRAPH_TOKENS, PlanEntry
from planner.documents.plan import TARGET, Finding, Plan, Severity
from planner.engines.lookup import is_decode
from planner.modes import CapturePolicy, CUDAGraphMode
from planner.verify.survey import Survey


def ignored_settings(plan: Plan) -> Iterator[Finding]:
    """Settings that the engine knows and planning does not use."""
    paths = ", ".join(plan.deployment.ignored_paths())
    if paths:
        yield Finding(
            severity=Severity.INFO, code="ignored-settings", message=f"without effect on planning: {paths}"
        )


def policy_without_effect(plan: Plan) -> Iterator[Finding]:
    """A policy that was to choose the capture sizes, where there are none to choose."""
    policy, target = plan.deployment.capture.policy, plan.resolved.get(TARGET)
    if policy in (None, CapturePolicy.ENGINE) or target is None:
        return
    written = plan.deployment.compilation.cudagraph_capture_sizes is not None
    if not target.cudagraph_mode:
        severity, reason = Severity.WARNING, "cudagraph_mode is NONE, and nothing is captured"
        fix = "remove capture.policy, or what makes cudagraph_mode NONE"
    elif written:
        severity, reason = Severity.INFO, "the deployment lists them, and they are captured as they stand"
        fix = "remove capture.policy, or compilation.cudagraph_capture_sizes"
    elif not target.cudagraph_capture_sizes:
        severity, reason = Severity.WARNING, "no batch of this server fits into a graph"
        fix = "remove capture.policy, or raise max_num_batched_tokens"
    else:
        return
    yield Finding(
        severity=severity,
        code="policy-without-effect",
        message=f"capture.policy {policy} chooses no sizes: {reason}",
        fix=fix,
    )


def missing_target(plan: Plan) -> Iterator[Finding]:
    """A plan that does not speak of the model itself."""
    if TARGET not in plan.graphs:
        has = f"it has {', '.join(plan.graphs)}" if plan.graphs else "it has none"
        yield Finding(
            severity=Severity.WARNING,
            code="no-target",
            message=f"the plan has no family {TARGET}, the graphs of the served model itself; {has}",
            fix=f"add graphs.{TARGET}, an empty list where the model runs without graphs",
        )


def duplicates_found(survey: Survey) -> Iterator[Finding]:
    """Entries that are captured twice, and different ones with the same key in a forward context."""
    for group in survey.groups:
        # In a forward context, a count and a bound of the query length do not tell graphs apart.
        keys = [
            (full, tokens, reqs, count is None, cut) for full, tokens, reqs, count, _, cut in group.shapes
        ]
        if len(set(keys)) == len(keys):
            continue
        for case in group.cases:
            by_key: dict[object, list[PlanEntry]] = {}
            for key, entry in zip(keys, group.entries[case], strict=True):
                by_key.setdefault(key, []).append(entry)
            for same in by_key.values():
                yield from _duplicates(survey.family, same)


def _duplicates(family: str, same: Sequence[PlanEntry]) -> Iterator[Finding]:
    """Findings about entries with the same mode and batch descriptor."""
    counts = Counter(entry.execution_descriptor for entry in same)
    first, *others = {entry.execution_descriptor: entry for entry in same}.values()
    for entry in (first, *others):
        count = counts[entry.execution_descriptor]
        if count > 1:
            yield Finding(
                severity=Severity.ERROR,
                code="duplicate-entry",
                message=f"graphs.{family}: {label(entry)} appears {count} times; only one is ever replayed",
                fix="remove the others",
            )
    for other in others:
        yield Finding(
            severity=Severity.ERROR,
            code="duplicate-descriptor",
            message=f"graphs.{family}: {label(first)} and {label(other)} have the same batch descriptor",
            fix="keep one of the two",
        )


def misorder_found(survey: Survey) -> Iterator[Finding]:
    """The first entry that is captured after a smaller one of its mode, or FULL before PIECEWISE."""
    by_requests = survey.domain.lookup is not None
    ranks = [_rank_of_size(entry) if by_requests else _rank(entry) for entry in survey.entries]
    if all(map(ge, ranks, ranks[1:])):
        return
    after = next(index for index, (rank, following) in enumerate(pairwise(ranks), 1) if following > rank)
    yield Finding(
        severity=Severity.WARNING,
        code="capture-order",
        message=f"graphs.{survey.family}: {label(survey.entries[after])} is captured after "
        f"{label(survey.entries[after - 1])}; with the largest first, the graph pool is allocated once",
        fix="order prefill before decode, each from its largest size down"
        if by_requests
        else "order PIECEWISE before FULL, each from the most tokens down",
    )


_BOUND = MAX_GRAPH_TOKENS + 1


def _rank(entry: PlanEntry) -> int:
    """What falls from entry to entry in vLLM's order of capture."""
    return entry.num_tokens + _BOUND if entry.mode is CUDAGraphMode.PIECEWISE else entry.num_tokens


def _rank_of_size(entry: PlanEntry) -> int:
    """What falls from entry to entry where decode has its sizes in requests."""
    return entry.num_reqs or entry.num_tokens if is_decode(entry) else entry.num_tokens + _BOUND


def contradictions_found(survey: Survey) -> Iterator[Finding]:
    """Entries whose own fields no batch can meet together."""
    by_requests = survey.domain.lookup is not None
    for group in survey.groups:
        for place, (full, tokens, reqs, count, _, _) in enumerate(group.shapes):
            fault = fix = None
            if reqs is None:
                if full:
                    fault, fix = "a FULL graph needs num_reqs", "give num_reqs"
            elif not full and not (by_requests and count is not None):
                fault, fix = "a PIECEWISE graph serves any number of requests", "leave num_reqs out"
            elif reqs > tokens:
                fault, fix = f"{reqs} requests have at least {reqs} tokens", f"num_tokens: {reqs}"
            elif count is not None and reqs * count != tokens:
                fault = f"{reqs} requests of {count} are {reqs * count} tokens"
                fix = f"num_tokens: {reqs * count}"
            if fault is None:
                continue
            for case in group.cases:
                yield Finding(
                    severity=Severity.ERROR,
                    code="impossible-entry",
                    message=f"graphs.{survey.family}: {label(group.entries[case][place])}: {fault}",
                    fix=fix,
                )
