"""Differences between plans: none between equals, and each one where it is."""

from __future__ import annotations

from collections import Counter
from typing import Any

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from planner import (
    CUDAGraphMode,
    Decision,
    Finding,
    Plan,
    PlanEntry,
    compile_plan,
    dump_plan,
    load_deployment,
    load_plan,
)
from planner.descriptors import Prologue
from planner.diff import Change, Difference, diff
from planner.documents.deployment import Deployment, SchedulerSection
from planner.documents.plan import ResolvedFamily
from planner.modes import Runner

A = PlanEntry(CUDAGraphMode.FULL, 4, 4, 1)
B = PlanEntry(CUDAGraphMode.FULL, 2, 2, 1)
C = PlanEntry(CUDAGraphMode.PIECEWISE, 2)


def plan(*entries: PlanEntry, **others: Any) -> Plan:
    return Plan(graphs={"target": entries}, **others)


DECISIONS = st.builds(
    Decision,
    path=st.sampled_from(("compilation.mode", "engine.runner")),
    asked=st.none() | st.lists(st.integers(1, 2), max_size=2),
    rule=st.just("rule"),
    because=st.sampled_from(("this", "that")),
)
GRAPHS = st.lists(st.sampled_from((A, B, C)), max_size=5).map(tuple)
PLANS = st.builds(
    Plan,
    graphs=st.dictionaries(st.sampled_from(("target", "draft")), GRAPHS),
    decisions=st.lists(DECISIONS, max_size=3).map(tuple),
)


@given(PLANS)
def test_a_plan_does_not_differ_from_itself_written_and_read(own: Plan) -> None:
    assert diff(own, load_plan(dump_plan(own))).same


@given(PLANS, PLANS)
def test_what_is_gained_one_way_is_lost_the_other(first: Plan, second: Plan) -> None:
    there, back = diff(first, second), diff(second, first)
    assert there.same == back.same
    assert there.decisions.gained == back.decisions.lost
    losses = {family.family: family.graphs.lost for family in back.families}
    assert losses == {family.family: family.graphs.gained for family in there.families}


@given(PLANS, PLANS)
def test_what_is_lost_and_gained_makes_one_plan_of_the_other(first: Plan, second: Plan) -> None:
    there = {family.family: family.graphs for family in diff(first, second).families}
    for family in {*first.graphs, *second.graphs}:
        change = there.get(family, Difference())
        before, after = Counter(first.graphs.get(family, ())), Counter(second.graphs.get(family, ()))
        assert before - Counter(change.lost) + Counter(change.gained) == after


def test_graphs_gained_and_lost_are_told_apart() -> None:
    (family,) = diff(plan(A, B), plan(B, C)).families
    assert family.graphs == Difference(lost=(A,), gained=(C,))
    assert not family.reordered


def test_a_graph_that_appears_once_more_is_gained() -> None:
    (family,) = diff(plan(A), plan(A, A)).families
    assert family.graphs == Difference(gained=(A,))


def test_another_prologue_is_another_graph() -> None:
    with_prologue = evolve(A, prologue=Prologue("dflash_context_kv", 4))
    (family,) = diff(plan(A), plan(with_prologue)).families
    assert family.graphs == Difference(lost=(A,), gained=(with_prologue,))


def test_the_same_graphs_in_another_order_differ_by_order_only() -> None:
    (family,) = diff(plan(A, B), plan(B, A)).families
    assert family.reordered
    assert not family.graphs


def test_a_family_that_comes_or_goes_is_told_even_without_graphs() -> None:
    more = Plan(graphs={"target": (A,), "draft": ()})
    (gained,) = diff(plan(A), more).families
    (lost,) = diff(more, plan(A)).families
    assert (gained.family, gained.only_after, gained.only_before) == ("draft", True, False)
    assert (lost.family, lost.only_after, lost.only_before) == ("draft", False, True)


def test_names_and_digests_do_not_count() -> None:
    assert diff(plan(A, name="a", digest="sha256:0"), plan(A, name="b")).same
    assert diff(plan(A, deployment=Deployment(name="a")), plan(A)).same


def test_a_changed_setting_is_named_by_its_path() -> None:
    changed = diff(plan(A), plan(A, deployment=Deployment(scheduler=SchedulerSection(max_num_seqs=8))))
    assert changed.settings == (Change("scheduler", None, {"max_num_seqs": 8}),)
    first = plan(A, deployment=Deployment(scheduler=SchedulerSection(max_num_seqs=4)))
    second = plan(A, deployment=Deployment(scheduler=SchedulerSection(max_num_seqs=8)))
    assert diff(first, second).settings == (Change("scheduler.max_num_seqs", 4, 8),)


def test_a_changed_value_is_named_by_its_path() -> None:
    family = ResolvedFamily(
        runner=Runner.V2, cudagraph_mode=CUDAGraphMode.FULL, cudagraph_capture_sizes=(1, 2)
    )
    before = plan(A, resolved={"target": family})
    after = plan(A, resolved={"target": evolve(family, cudagraph_capture_sizes=(1, 2, 4))})
    assert diff(before, after).resolved == (
        Change("resolved.target.cudagraph_capture_sizes", [1, 2], [1, 2, 4]),
    )


def test_decisions_and_findings_that_differ_are_listed() -> None:
    decision = Decision(path="compilation.mode", asked=[1], became=[2], rule="r", because="b")
    finding = Finding(severity="info", code="c", message="m")
    there = diff(plan(A), plan(A, decisions=(decision,), findings=(finding,)))
    assert there.decisions == Difference(gained=(decision,))
    assert there.findings == Difference(gained=(finding,))
    assert not there.same


def test_a_smaller_server_loses_graphs_and_says_which_setting_did_it() -> None:
    def compiled(max_num_seqs: int) -> Plan:
        return compile_plan(
            load_deployment(
                {
                    "apiVersion": "graphplan/v1",
                    "kind": "Deployment",
                    "scheduler": {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": 2048},
                }
            )
        )

    changes = diff(compiled(64), compiled(32))
    assert Change("scheduler.max_num_seqs", 64, 32) in changes.settings
    assert Change("resolved.target.max_cudagraph_capture_size", 128, 64) in changes.resolved
    (family,) = changes.families
    assert family.graphs.lost
    assert not family.graphs.gained
