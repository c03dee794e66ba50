"""What decode costs in the graphs of a list of sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import compile_plan, load_deployment
from planner.traffic.engine_sizes import vllm_default_plan
from planner.traffic.padding import decode_sizes, padding_of


@given(
    st.lists(st.integers(1, 30)),
    st.dictionaries(st.integers(1, 40), st.integers(1, 50)),
    st.booleans(),
)
def test_each_batch_runs_in_the_next_size(sizes: list[int], counts: dict[int, int], exact: bool) -> None:
    found = padding_of(sizes, counts, exact=exact)
    graph_of = {n: min((s for s in sizes if s >= n and (s == n or not exact)), default=0) for n in counts}
    computed = sum(graph_of[n] * count for n, count in counts.items())
    batched = sum(n * count for n, count in counts.items() if graph_of[n])
    assert (found.computed, found.batched) == (computed, batched)
    assert found.uncovered == sum(count for n, count in counts.items() if not graph_of[n])
    assert found.steps == sum(counts.values())
    assert set(found.used) == set(graph_of.values()) - {0}
    assert found.share == (pytest.approx((computed - batched) / computed) if computed else 0)
    assert 0 <= found.uncovered_share <= 1


def test_vllms_default_has_51_sizes_of_which_35_are_for_decode() -> None:
    plan = vllm_default_plan(256, 8192, 1)
    assert len(plan.resolved["target"].cudagraph_capture_sizes) == 51
    assert decode_sizes(plan) == (1, 2, 4, *range(8, 257, 8))


def test_sizes_of_speculative_decode_are_counted_in_requests() -> None:
    assert decode_sizes(vllm_default_plan(8, 2, 4)) == (1, 2, 4, 6, 8)


def test_a_plan_without_graphs_has_no_sizes() -> None:
    mode = {"compilation": {"cudagraph_mode": "NONE"}}
    deployment = {"apiVersion": "graphplan/v1", "kind": "Deployment", **mode}
    assert decode_sizes(compile_plan(load_deployment(deployment))) == ()
