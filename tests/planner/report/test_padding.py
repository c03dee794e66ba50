"""Padding: by requests, against the engine's default, and weighed by traffic."""

from __future__ import annotations

from pathlib import Path

import pytest

import planner
from planner.documents.plan import Plan
from planner.report.coverage import surveyed
from planner.report.padding import clamped, decode_ranges, default_plan, traffic_padding
from planner.traffic.histogram import Histogram, HistogramRow, histogram_of
from planner.traffic.padding import decode_sizes, padding_of

COMPILED = Path(__file__).resolve().parents[3] / "plans/compiled"


def load(name: str) -> Plan:
    return planner.load_plan(COMPILED / f"{name}.yaml")


def compiled(**sections: object) -> Plan:
    return planner.compile_plan(
        planner.load_deployment({"apiVersion": "graphplan/v1", "kind": "Deployment", **sections})
    )


def decode(counts: dict[int, int]) -> Histogram:
    rows = [HistogramRow(num_reqs=number, num_tokens=number, count=count) for number, count in counts.items()]
    return histogram_of([rows])


def test_every_number_of_requests_is_told_once() -> None:
    for path in sorted(COMPILED.glob("*.yaml")):
        survey = surveyed(planner.load_plan(path), "target")
        assert survey is not None
        ranges = decode_ranges(survey)
        covered = [number for one in ranges for number in range(one.first, one.last + 1)]
        most = max(one.batches.most_reqs for one in survey.groups[0].coverages if one.batches.query_len)
        assert covered == list(range(1, most + 1)), path.stem


def test_decode_runs_in_the_query_length_of_its_tier() -> None:
    survey = surveyed(load("qwen3-30b-a3b-schedule"), "target")
    assert survey is not None
    lengths = {one.last: one.query_len for one in decode_ranges(survey)}
    assert (lengths[16], lengths[17], lengths[64], lengths[128]) == (16, 8, 8, 4)


def test_traffic_pads_as_the_traffic_policy_counts_it() -> None:
    plan = compiled(scheduler={"max_num_seqs": 64})
    counts = {3: 5, 17: 2, 64: 1}
    expected = padding_of(decode_sizes(plan), counts)
    found = traffic_padding(plan, decode(counts))
    assert found.decode == pytest.approx(expected.share)
    assert found.decode_eager == 0
    assert found.other is None


def test_steps_without_a_graph_are_counted_apart() -> None:
    plan = compiled(scheduler={"max_num_seqs": 64}, compilation={"cudagraph_capture_sizes": [8]})
    found = traffic_padding(plan, decode({4: 3, 9: 1}))
    assert (found.decode, found.decode_eager) == (0.5, 0.25)


def test_more_requests_than_run_at_once_are_as_many_as_do() -> None:
    assert clamped(decode({3: 1, 12: 2, 40: 5}), 12) == {3: 1, 12: 7}


def test_other_steps_are_padded_to_mixed_graphs() -> None:
    plan = compiled(scheduler={"max_num_seqs": 64, "max_num_batched_tokens": 2048})
    rows = [HistogramRow(num_tokens=100, count=1), HistogramRow(num_tokens=2000, count=3)]
    found = traffic_padding(plan, histogram_of([rows]))
    assert found.other == pytest.approx(4 / 104)
    assert found.other_eager == 0.75


def test_the_default_has_none_of_the_users_sizes() -> None:
    plan = compiled(scheduler={"max_num_seqs": 64}, compilation={"cudagraph_capture_sizes": [8, 64]})
    default = default_plan(plan)
    assert default is not None
    assert default.graphs == compiled(scheduler={"max_num_seqs": 64}).graphs


def test_other_engines_have_a_default_too() -> None:
    own = {"engine": {"name": "sglang"}, "device": {"name": "H200"}}
    plan = compiled(**own, sglang={"cuda_graph_bs": [1, 8]})
    default = default_plan(plan)
    assert default is not None
    assert default.graphs == compiled(**own).graphs != plan.graphs


def test_a_plan_by_hand_has_no_default() -> None:
    assert default_plan(planner.load_plan(COMPILED.parent / "small-decode.yaml")) is None
