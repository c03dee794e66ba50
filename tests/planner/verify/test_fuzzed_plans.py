"""Plans that fuzzing found to end verification in an error, or in gigabytes, instead of in findings."""

from __future__ import annotations

import pytest

from planner import CUDAGraphMode, Plan, PlanEntry, load_plan
from planner.verify import verify

HEADER = "apiVersion: graphplan/v1\nkind: Plan\n"
RESOLVED = "runner: v2, cudagraph_mode: FULL, max_num_seqs: 4, max_num_batched_tokens: 8"
DEVICE = "deployment: {device: {compute_capability: new}}\n"
HUGE = 10**17
GRAPHS = "{target: [{mode: FULL, num_tokens: 8, num_reqs: 8, uniform_token_count: 1}]}"


@pytest.mark.parametrize(
    "text",
    [
        f"resolved: {{target: {{{RESOLVED}}}}}\ngraphs: {{}}\n",
        f"{DEVICE}resolved: {{target: {{{RESOLVED}}}}}\ngraphs: {GRAPHS}\n",
    ],
    ids=["resolved family without graphs", "device that nothing compiles for"],
)
def test_a_plan_written_by_hand_gets_findings_whatever_stands_around_its_graphs(text: str) -> None:
    assert isinstance(verify(load_plan(HEADER + text)), tuple)


@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize("query_len", [1, HUGE])
def test_no_fix_is_tried_out_that_needs_graphs_beyond_the_largest(runner: str, query_len: int) -> None:
    resolved = (
        f"{{runner: {runner}, cudagraph_mode: FULL_AND_PIECEWISE, cudagraph_capture_sizes: [1, 8], "
        f"max_num_seqs: 1048576, max_num_batched_tokens: {HUGE}, decode_query_len: {query_len}, "
        f"uniform_query_lens: [1, {query_len}]}}"
    )
    found = verify(load_plan(f"{HEADER}resolved: {{target: {resolved}}}\ngraphs: {GRAPHS}\n"))
    assert found


def test_twenty_thousand_lora_cases_are_verified_one_by_one() -> None:
    # Where each case looked at all the others, this took minutes.
    cases = range(20_000)
    graphs = tuple(PlanEntry(CUDAGraphMode.PIECEWISE, case + 1, num_active_loras=case) for case in cases)
    assert verify(Plan(graphs={"target": graphs}))
