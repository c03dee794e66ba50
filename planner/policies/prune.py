"""Pruning: graphs that no batch is ever dispatched to are not captured.

The entries of a family follow from its sizes by the engine's rules alone, which also make graphs for
batches that a schedule rules out or that other limits keep small. Which of them serve nothing is the
verifier's finding. Without them, batches whose nearest size was one of those reach the next.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from planner.describe import counted
from planner.documents.deployment import Deployment
from planner.documents.plan import Decision, Plan
from planner.rules.encoder import ENCODER
from planner.rules.family import Family
from planner.verify.reachability import unreached
from planner.verify.survey import Survey, survey_of


def plan_of(deployment: Deployment, families: Sequence[Family]) -> Plan:
    """The plan of ``families``, for verification."""
    return Plan(
        deployment=deployment,
        resolved={family.name: family.resolved for family in families},
        graphs={family.name: family.entries for family in families},
    )


def surveys_of(deployment: Deployment, families: Sequence[Family]) -> tuple[Survey, ...]:
    """What each family covers."""
    plan = plan_of(deployment, families)
    return tuple(survey_of(plan, family.name) for family in families if family.name != ENCODER)


def pruned(deployment: Deployment, families: Sequence[Family]) -> tuple[Family, ...]:
    """``families`` without entries and LoRA cases that serve no batch, each with what was left out."""
    left = tuple(families)
    while True:
        kept = _without_unreached(deployment, left)
        if kept == left:
            return tuple(_with_decision(before, after) for before, after in zip(families, left, strict=True))
        left = kept


def _without_unreached(deployment: Deployment, families: tuple[Family, ...]) -> tuple[Family, ...]:
    plan = plan_of(deployment, families)
    return tuple(
        family if family.name == ENCODER else _family_without_unreached(family, survey_of(plan, family.name))
        for family in families
    )


def _family_without_unreached(family: Family, survey: Survey) -> Family:
    dead = {id(entry) for _, _, entries in unreached(survey) for entry in entries}
    if not dead:
        return family
    cases = tuple(case for case in family.resolved.lora_cases if case == 0 or case in survey.active_cases)
    return evolve(
        family,
        entries=tuple(entry for entry in family.entries if id(entry) not in dead),
        resolved=evolve(family.resolved, lora_cases=cases),
    )


def _with_decision(before: Family, after: Family) -> Family:
    dropped = len(before.entries) - len(after.entries)
    if not dropped:
        return after
    decision = Decision(
        path=f"graphs.{after.name}",
        asked=len(before.entries),
        became=len(after.entries),
        rule="unreachable-not-captured",
        because=f"of these sizes the engine's rules make {counted(dropped, 'graph')} that no batch runs in",
    )
    return evolve(after, decisions=(*after.decisions, decision))
