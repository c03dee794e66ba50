"""One batch under each policy: what else a deployment could have it run in."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve, frozen

from planner.compile import compile_plan
from planner.descriptors import PlanEntry
from planner.documents.digest import is_edited
from planner.documents.plan import Plan
from planner.errors import GraphplanError
from planner.explain import explain
from planner.modes import CapturePolicy
from planner.queries import Query


@frozen
class UnderPolicy:
    """The graph that serves a batch under a policy, ``None`` where it runs eagerly."""

    policy: CapturePolicy
    entry: PlanEntry | None

    def padding(self, num_tokens: int) -> int:
        """The tokens by which a batch of ``num_tokens`` is padded."""
        return 0 if self.entry is None else self.entry.num_tokens - num_tokens


def under_other_policies(plan: Plan, query: Query, family: str) -> Iterator[UnderPolicy]:
    """What the batch would run in under the policies that ``plan`` was not compiled by.

    Nothing for a plan that was written or changed by hand, and for policies that refuse its deployment
    or, as traffic does, need more than the plan has in it.
    """
    if plan.digest is None or is_edited(plan):
        return
    own = plan.deployment.capture.policy or CapturePolicy.ENGINE
    for policy in CapturePolicy:
        if policy is own:
            continue
        capture = evolve(plan.deployment.capture, policy=policy)
        try:
            other = compile_plan(evolve(plan.deployment, capture=capture))
            yield UnderPolicy(policy, explain(other, query, family).entry)
        except GraphplanError:
            continue
