"""A family of graphs on its way into a plan."""

from __future__ import annotations

from attrs import evolve, frozen

from planner.descriptors import PlanEntry
from planner.documents.plan import Decision, Finding, ResolvedFamily, Severity
from planner.modes import CUDAGraphMode
from planner.rules.entries import EntryRequest, family_entries


@frozen(kw_only=True)
class Family:
    """One model's set of graphs, with what was decided for it and what a person should know."""

    name: str
    resolved: ResolvedFamily
    entries: tuple[PlanEntry, ...]
    decisions: tuple[Decision, ...] = ()


@frozen(kw_only=True)
class OtherFamilies:
    """The families beside the target's, and findings about those that are not planned."""

    families: tuple[Family, ...] = ()
    findings: tuple[Finding, ...] = ()


def draft_graphs(
    target: ResolvedFamily, *, mode: CUDAGraphMode, query_len: int, query_lens: tuple[int, ...]
) -> tuple[ResolvedFamily, tuple[PlanEntry, ...]]:
    """What a draft beside ``target`` captures over the target's sizes: no adapters, no microbatches."""
    entries = family_entries(
        EntryRequest(
            mode=mode,
            sizes=target.cudagraph_capture_sizes,
            max_num_seqs=target.max_num_seqs or 1,
            decode_query_len=query_len,
            query_lens=query_lens,
        )
    )
    resolved = evolve(
        target,
        cudagraph_mode=mode,
        decode_query_len=query_len,
        uniform_query_lens=query_lens,
        lora_cases=(0,),
        microbatching=None,
    )
    return resolved, entries


def unplanned(what: str, because: str, fix: str) -> OtherFamilies:
    """The finding that the server captures graphs which the plan does not have."""
    message = f"the server captures {what}, which this plan does not have: {because}"
    finding = Finding(severity=Severity.ERROR, code="unplanned-family", message=message, fix=fix)
    return OtherFamilies(findings=(finding,))


def mode_decision(family: str, mode: object, rule: str, because: str) -> Decision:
    """Why a family that no setting names has its mode."""
    return Decision(path=f"resolved.{family}.cudagraph_mode", became=str(mode), rule=rule, because=because)
