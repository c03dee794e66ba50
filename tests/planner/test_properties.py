"""What holds for every plan, whatever the deployment; examples come from the published strategies."""

from __future__ import annotations

from collections import Counter

from attrs import evolve
from hypothesis import given, reject
from hypothesis import strategies as st

from planner import CUDAGraphMode, Deployment, Plan, PlanError, agree, compile_plan, dump_plan, load_plan
from planner.descriptors import fits
from planner.dispatch import DispatchTable
from planner.documents.writer import plan_to_json
from planner.testing import batches, deployments, plans


def compiled(deployment: Deployment) -> Plan:
    """The plan of a deployment; one that the engine refuses is no example, and compiled once, not twice."""
    try:
        return compile_plan(deployment)
    except PlanError:
        reject()


COMPILED = deployments().map(compiled)


def v2_family(plan: Plan, family: str) -> DispatchTable:
    table = plan.dispatch_table(family)
    assert isinstance(table, DispatchTable)
    return table


@given(COMPILED)
def test_descriptors_are_unique_within_a_family(plan: Plan) -> None:
    for family in plan.graphs:
        entries = plan.entries(family)
        executions = Counter(entry.execution_descriptor for entry in entries)
        keys = Counter((entry.mode, entry.num_ubatches, entry.batch_descriptor) for entry in entries)
        assert not [twice for twice, count in (*executions.items(), *keys.items()) if count > 1]


@given(COMPILED)
def test_compiling_is_deterministic_and_idempotent(plan: Plan) -> None:
    again = dump_plan(compile_plan(plan.deployment))
    assert dump_plan(plan) == again
    assert compile_plan(load_plan(again).deployment).digest == plan.digest


@given(plans())
def test_a_plan_reads_back_as_it_was_written(plan: Plan) -> None:
    written = dump_plan(plan)
    read = load_plan(written)
    assert read == plan
    assert dump_plan(read) == written
    assert load_plan(plan_to_json(plan)) == plan


@given(COMPILED)
def test_every_captured_entry_dispatches_to_itself(plan: Plan) -> None:
    for family in plan.graphs:
        table = v2_family(plan, family)
        for entry in plan.entries(family):
            # PIECEWISE fits any number of requests: more than any FULL graph holds leaves it alone.
            widest = (plan.resolved[family].max_num_seqs or 0) + 1
            found = table.dispatch(
                num_reqs=widest if entry.num_reqs is None else entry.num_reqs,
                num_tokens=entry.num_tokens,
                uniform_token_count=entry.uniform_token_count,
                num_active_loras=entry.num_active_loras,
                max_query_len=entry.max_query_len,
                num_ubatches=entry.num_ubatches,
            )
            assert found == entry.execution_descriptor


@given(st.data(), plans())
def test_a_dispatched_entry_always_fits_the_batch(data: st.DataObject, plan: Plan) -> None:
    for family in plan.graphs:
        table = v2_family(plan, family)
        batch = data.draw(batches(plan, family))
        found = table.dispatch(**batch)
        if found.cg_mode is CUDAGraphMode.NONE:
            assert (found.num_tokens, found.num_reqs) == (batch["num_tokens"], batch["num_reqs"])
            continue
        assert found in {entry.execution_descriptor for entry in plan.entries(family)}
        case = table.captured_case(batch["num_active_loras"])
        assert fits(
            found,
            batch["num_reqs"],
            batch["num_tokens"],
            batch["uniform_token_count"],
            case,
            batch["max_query_len"],
            batch["num_ubatches"],
        )


@given(st.data(), plans())
def test_the_table_answers_as_a_scan_of_the_candidates(data: st.DataObject, plan: Plan) -> None:
    for family in plan.graphs:
        table = v2_family(plan, family)
        batch = data.draw(batches(plan, family))
        case = table.captured_case(batch["num_active_loras"])
        arguments = (batch["num_reqs"], batch["num_tokens"], batch["uniform_token_count"], case)
        candidates = table.candidates(batch["num_tokens"], batch["num_active_loras"])
        serving = [
            entry
            for entry in candidates
            if fits(entry, *arguments, batch["max_query_len"], batch["num_ubatches"])
        ]
        found = table.dispatch(**batch)
        if serving:
            assert found == serving[0].execution_descriptor
        else:
            assert found.cg_mode is CUDAGraphMode.NONE


@given(st.data(), deployments(valid_only=True))
def test_more_requests_never_lose_a_graph_under_unchanged_sizes(
    data: st.DataObject, deployment: Deployment
) -> None:
    if deployment.speculative is not None:
        unscheduled = evolve(deployment.speculative, num_speculative_tokens_per_batch_size=None)
        deployment = evolve(deployment, speculative=unscheduled)
    plan = compile_plan(deployment)
    target = plan.resolved["target"]
    if not target.cudagraph_capture_sizes or target.max_num_seqs is None:
        return
    fixed = evolve(deployment.compilation, cudagraph_capture_sizes=target.cudagraph_capture_sizes)
    fixed = evolve(fixed, max_cudagraph_capture_size=None)
    more = min(target.max_num_seqs + data.draw(st.integers(1, 64)), target.max_num_batched_tokens or 0)
    if more <= target.max_num_seqs:
        return
    limits = evolve(deployment.scheduler, max_num_batched_tokens=target.max_num_batched_tokens)
    deployment = evolve(deployment, compilation=fixed, scheduler=limits)
    before = compile_plan(evolve(deployment, scheduler=evolve(limits, max_num_seqs=target.max_num_seqs)))
    after = compile_plan(evolve(deployment, scheduler=evolve(limits, max_num_seqs=more)))
    batch = data.draw(batches(before, "target"))
    served = before.dispatch_table("target")
    assert isinstance(served, DispatchTable)
    if served.dispatch(**batch).cg_mode is not CUDAGraphMode.NONE:
        assert v2_family(after, "target").dispatch(**batch).cg_mode is not CUDAGraphMode.NONE


@given(st.data(), plans(), st.integers(2, 4))
def test_ranks_never_disagree(data: st.DataObject, plan: Plan, ranks: int) -> None:
    table = v2_family(plan, "target")
    step = [
        {
            **{key: value for key, value in batch.items() if key != "num_ubatches"},
            "need_eager": data.draw(st.booleans()) and data.draw(st.booleans()),
            "allow_ubatching": data.draw(st.booleans()),
            "uniform_decode": batch["uniform_token_count"] == table.decode_query_len,
            "allow_skip_drafts": data.draw(st.booleans()),
        }
        for batch in (data.draw(batches(plan, "target")) for _ in range(ranks))
    ]
    decided = agree(table, step)
    shared = {evolve(agreement, descriptor=decided[0].descriptor) for agreement in decided}
    assert len(shared) == 1
    if decided[0].eager:
        assert {agreement.descriptor.cg_mode for agreement in decided} == {CUDAGraphMode.NONE}
    if decided[0].eager is False:
        assert len({agreement.descriptor.num_tokens for agreement in decided}) == 1
        assert len({agreement.descriptor.num_ubatches for agreement in decided}) == 1
