"""Sizes for a traffic: what they cost on other days, limits, and what a plan keeps of its traffic."""

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner import (
    Deployment,
    DocumentError,
    Plan,
    PlanError,
    compile_plan,
    dump_plan,
    load_deployment,
    load_plan,
)
from planner.documents.deployment import CaptureSection
from planner.documents.digest import is_edited
from planner.engines.sglang.grids import decode_grid
from planner.modes import CapturePolicy
from planner.testing import deployments
from planner.traffic.histogram import Histogram, HistogramRow, dump_histogram, histogram_of
from planner.traffic.load import load_histogram
from planner.traffic.padding import decode_sizes, padding_of
from tests.planner.policies.documents import (
    compiled,
    counted,
    decision,
    deployed,
    finding,
    sizes_of,
    unwanted,
)

PLANS = Path(__file__).resolve().parents[3] / "plans"

STEADY = counted({3: 40, 17: 60, 21: 10}, {3: 50, 17: 50, 20: 10})


def for_traffic(histogram: Histogram, limits: dict[str, Any] | None = None, **sections: Any) -> Plan:
    asked = deployed("traffic", capture=limits or {}, **sections)
    return compile_plan(asked, histogram=histogram)


def held_out(name: str, graphs: int) -> tuple[Plan, Histogram]:
    """The plan for the first half of a histogram by time, and the second half."""
    histogram = load_histogram(PLANS / "traffic" / name)
    middle = len(histogram.blocks) // 2
    plan = for_traffic(
        histogram_of(histogram.blocks[:middle]),
        {"max_graphs": graphs},
        scheduler={"max_num_seqs": 256},
        compilation={"cudagraph_mode": "FULL_DECODE_ONLY"},
    )
    return plan, histogram_of(histogram.blocks[middle:])


@pytest.mark.parametrize(
    ("name", "target"), [("azure-2023-conversation.csv", 0.035), ("mooncake-conversation.csv", 0.05)]
)
def test_sizes_of_the_first_half_pad_the_second_little(name: str, target: float) -> None:
    plan, later = held_out(name, 24)
    padding = padding_of(decode_sizes(plan), later.decode_steps())
    assert len(sizes_of(plan)) == 24
    assert padding.share <= target
    assert padding.uncovered == 0


@pytest.mark.parametrize("name", ["azure-2023-conversation.csv", "mooncake-conversation.csv"])
def test_sixteen_sizes_do_better_than_the_thirty_six_of_sglang(name: str) -> None:
    plan, later = held_out(name, 16)
    sglang = decode_grid(256, speculative=False, padding=True)
    assert (len(sizes_of(plan)), len(sglang)) == (16, 36)
    steps = later.decode_steps()
    assert padding_of(decode_sizes(plan), steps).share < padding_of(sglang, steps).share


def test_the_most_requests_always_have_a_graph() -> None:
    plan = for_traffic(STEADY, {"max_graphs": 3}, scheduler={"max_num_seqs": 100})
    assert sizes_of(plan)[-1] == 100
    assert len(sizes_of(plan)) == 3
    assert not unwanted(plan)


def test_decode_of_several_tokens_is_counted_in_requests() -> None:
    speculative = {"method": "ngram", "num_speculative_tokens": 3}
    plan = for_traffic(
        counted({3: 1000, 8: 1000}),
        {"max_graphs": 6},
        scheduler={"max_num_seqs": 16},
        speculative=speculative,
    )
    assert all(size % 4 == 0 for size in sizes_of(plan))
    assert sizes_of(plan)[-1] == 64
    assert not unwanted(plan)


def test_draft_passes_of_one_token_get_sizes_too() -> None:
    speculative = {"method": "eagle3", "num_speculative_tokens": 3}
    plan = for_traffic(STEADY, {"max_graphs": 12}, scheduler={"max_num_seqs": 32}, speculative=speculative)
    widest = {
        family: max(entry.num_reqs or 0 for entry in entries) for family, entries in plan.graphs.items()
    }
    assert widest == {"target": 32, "draft_prefill": 32, "draft_decode": 32}
    assert not unwanted(plan)


def test_mixed_batches_that_were_counted_bring_sizes_of_their_own() -> None:
    rows = [
        HistogramRow(num_tokens=8, num_reqs=8, count=10),
        HistogramRow(num_tokens=300, count=50),
        HistogramRow(num_tokens=8000, count=50),
    ]
    plan = for_traffic(histogram_of([rows]), {"max_graphs": 8}, scheduler={"max_num_seqs": 64})
    assert sizes_of(plan)[-1] == 128
    larger = for_traffic(histogram_of([rows]), {"max_graphs": 8}, scheduler={"max_num_seqs": 256})
    assert sizes_of(larger)[-1] == 512


def test_traffic_beyond_the_most_requests_is_taken_as_the_most_and_told() -> None:
    plan = for_traffic(counted({8: 3, 17: 7, 400: 90}), {"max_graphs": 2}, scheduler={"max_num_seqs": 16})
    assert sizes_of(plan)[-1] == 16
    told = finding(plan, "traffic-too-wide")
    assert told.severity == "warning"
    assert told.message == (
        "97.0% of the counted decode steps have more than 16 requests, the most that run at once; they count "
        "as steps of 16"
    )
    assert told.fix is not None
    assert told.fix.startswith("planner traffic TRACE --max-num-seqs 16 ")
    assert "which a histogram cannot be: its trace is needed" in told.fix


def test_the_most_requests_are_those_that_run_not_those_that_are_asked_for() -> None:
    plan = for_traffic(
        counted({64: 1, 16: 1}),
        scheduler={"max_num_seqs": 128, "max_num_batched_tokens": 512},
        speculative={"method": "dflash", "num_speculative_tokens": 15},
    )
    assert (
        "50.0% of the counted decode steps have more than 32 requests"
        in finding(plan, "traffic-too-wide").message
    )


@pytest.mark.parametrize(
    ("wide", "severity", "share"), [(1, "info", "less than 0.1%"), (5000, "warning", "33.3%")]
)
def test_a_small_share_of_wide_steps_is_a_note(wide: int, severity: str, share: str) -> None:
    plan = for_traffic(counted({5: 10_000, 65: wide}), scheduler={"max_num_seqs": 64})
    told = finding(plan, "traffic-too-wide")
    assert told.severity == severity
    assert told.message.startswith(f"{share} of the counted decode steps")


def test_traffic_within_the_limits_is_no_finding() -> None:
    plan = for_traffic(counted({5: 10, 64: 3}), scheduler={"max_num_seqs": 64})
    assert not [one for one in plan.findings if one.code.startswith("traffic-")]


WITH_PREFILL = [
    HistogramRow(num_tokens=8, num_reqs=8, count=10),
    HistogramRow(num_tokens=11, count=900),
    HistogramRow(num_tokens=4000, count=100),
]


def test_prefill_above_the_largest_size_is_told() -> None:
    plan = for_traffic(histogram_of([WITH_PREFILL]), scheduler={"max_num_seqs": 64})
    assert finding(plan, "traffic-above-maximum").message == (
        "10.0% of the counted steps with prefill have more than 128 tokens: they run without a graph and "
        "count for no padding"
    )


def test_prefill_that_runs_without_graphs_decides_no_size() -> None:
    sections: dict[str, Any] = {
        "scheduler": {"max_num_seqs": 64},
        "compilation": {"cudagraph_mode": "FULL_DECODE_ONLY"},
    }
    with_prefill = for_traffic(histogram_of([WITH_PREFILL]), {"max_graphs": 4}, **sections)
    without = for_traffic(histogram_of([WITH_PREFILL[:1]]), {"max_graphs": 4}, **sections)
    assert sizes_of(with_prefill) == sizes_of(without)
    assert decision(with_prefill, "traffic").because == decision(without, "traffic").because


@pytest.mark.parametrize("policy", ["covering", "traffic"])
@pytest.mark.parametrize(
    ("sections", "severity", "reason"),
    [
        ({"compilation": {"cudagraph_mode": "NONE"}}, "warning", "cudagraph_mode is NONE"),
        ({"model": {"enforce_eager": True}}, "warning", "cudagraph_mode is NONE"),
        ({"compilation": {"cudagraph_capture_sizes": [1, 2, 4, 8]}}, "info", "the deployment lists them"),
        (
            {
                "compilation": {"cudagraph_mode": "FULL_DECODE_ONLY"},
                "scheduler": {"max_num_seqs": 8, "max_num_batched_tokens": 8},
                "speculative": {"method": "ngram", "num_speculative_tokens": 15},
            },
            "warning",
            "no batch of this server fits into a graph",
        ),
    ],
    ids=["mode", "eager", "list", "no room"],
)
def test_a_policy_without_sizes_to_choose_is_told(
    policy: str, sections: dict[str, Any], severity: str, reason: str
) -> None:
    asked = deployed(policy, **{"scheduler": {"max_num_seqs": 8}, **sections})
    told = finding(compile_plan(asked, histogram=counted({3: 1})), "policy-without-effect")
    assert told.severity == severity
    assert told.message.startswith(f"capture.policy {policy} chooses no sizes: {reason}")
    assert told.fix


def test_a_policy_that_chooses_is_no_finding_nor_is_the_engines_own() -> None:
    for plan in (
        for_traffic(STEADY, scheduler={"max_num_seqs": 64}),
        compiled("covering"),
        compiled("engine", compilation={"cudagraph_mode": "NONE"}),
    ):
        assert not [one for one in plan.findings if one.code == "policy-without-effect"]


def test_without_limits_few_sizes_keep_padding_within_five_percent() -> None:
    histogram = load_histogram(PLANS / "traffic" / "azure-2023-conversation.csv")
    plan = for_traffic(histogram, scheduler={"max_num_seqs": 256})
    because = decision(plan, "traffic").because
    assert len(sizes_of(plan)) == 17
    assert (
        "17 sizes, the fewest that pad no more than 5.0%: 4.6% of the counted tokens are padding" in because
    )
    assert "the engine's own 51 sizes: 7.6%" in because


def test_a_padding_target_takes_the_fewest_sizes_that_reach_it() -> None:
    histogram = load_histogram(PLANS / "traffic" / "azure-2023-conversation.csv")
    loose, tight = (
        for_traffic(histogram, {"max_padding": target}, scheduler={"max_num_seqs": 256})
        for target in (0.1, 0.02)
    )
    steps = histogram.decode_steps()
    for plan, target in ((loose, 0.1), (tight, 0.02)):
        assert padding_of(decode_sizes(plan), steps).share <= target
    assert len(sizes_of(loose)) < len(sizes_of(tight)) < 51


def test_budgets_bound_the_graphs() -> None:
    sections: dict[str, Any] = {"scheduler": {"max_num_seqs": 256}}
    by_memory = for_traffic(STEADY, {"memory_budget": 0.5}, **sections)
    assert by_memory.estimates is not None
    assert by_memory.estimates.memory_gib.expected <= 0.5
    assert "as many as memory_budget 0.5 GiB allows" in decision(by_memory, "traffic").because
    by_time = for_traffic(STEADY, {"startup_budget": 3}, **sections)
    assert by_time.estimates is not None
    assert by_time.estimates.seconds.expected <= 3
    assert "as many as startup_budget 3 s allows" in decision(by_time, "traffic").because
    with pytest.raises(
        PlanError, match=r"capture.startup_budget: 0.5 s is the limit, but the fewest sizes need"
    ):
        for_traffic(STEADY, {"startup_budget": 0.5}, **sections)


def test_limits_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(
        PlanError, match=r"capture.max_padding.*: 1.0% is the target, but 44.8% are left with 2"
    ):
        for_traffic(STEADY, {"max_graphs": 2, "max_padding": 0.01}, scheduler={"max_num_seqs": 64})
    with pytest.raises(
        PlanError, match=r"capture.max_graphs.*: the limit is 1 size, but 2 are always captured"
    ):
        for_traffic(
            STEADY,
            {"max_graphs": 1},
            scheduler={"max_num_seqs": 64},
            compilation={"max_cudagraph_capture_size": 128},
        )


def test_measured_step_times_decide_where_padding_is_cheap() -> None:
    """Where steps of up to 16 requests take as long as one of 16, no graph is spent below."""
    steps = counted(dict.fromkeys(range(1, 33), 100))
    sections: dict[str, Any] = {"scheduler": {"max_num_seqs": 32}}
    times = [[1, 0.010], [16, 0.010], [32, 0.030]]
    timed = for_traffic(steps, {"max_graphs": 8, "step_times": times}, **sections)
    by_tokens = for_traffic(steps, {"max_graphs": 8}, **sections)
    assert min(sizes_of(timed)) >= 15 > min(sizes_of(by_tokens))
    for wrong in ([[1, 0]], [[1, 0.1, 2]], [[4, 0.1], [2, 0.2]], [[1.5, 0.1]]):
        with pytest.raises(PlanError, match=r"capture.step_times: "):
            for_traffic(steps, {"step_times": wrong}, **sections)


def test_the_curve_of_the_trade_off_is_recorded() -> None:
    plan = for_traffic(STEADY, {"max_graphs": 10}, scheduler={"max_num_seqs": 64})
    curve = decision(plan, "traffic-curve").became
    assert [point["sizes"] for point in curve] == [4, 8, 10, 12, 16, 24, 32, 48, 64]
    paddings, graphs = ([point[name] for point in curve] for name in ("padding", "graphs"))
    assert paddings == sorted(paddings, reverse=True)
    assert graphs == sorted(graphs)
    assert curve[2]["graphs"] == len(plan.entries())


def test_a_histogram_without_time_is_smoothed_by_a_fixed_width_and_the_plan_says_so() -> None:
    plan = for_traffic(counted({5: 10, 9: 3}), {"max_graphs": 4}, scheduler={"max_num_seqs": 16})
    assert decision(plan, "traffic-smoothing").became == "4/8"
    assert "tells no time spans" in decision(plan, "traffic-smoothing").because


@pytest.mark.parametrize(
    ("capture", "message"),
    [
        ({}, "no traffic is given; name the file"),
        ({"traffic": "cache"}, "the counts of a cache are asked for"),
    ],
)
def test_without_traffic_there_is_no_such_policy(capture: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        compiled("traffic", capture=capture)
    with pytest.raises(PlanError, match="no batch was counted"):
        for_traffic(histogram_of([]))


# Documents ---------------------------------------------------------------------------------------


def written(folder: Path, histogram: Histogram = STEADY, more: str = "") -> Path:
    (folder / "traffic.csv").write_text(dump_histogram(histogram))
    path = folder / "deployment.yaml"
    path.write_text(
        "apiVersion: graphplan/v1\nkind: Deployment\nscheduler: {max_num_seqs: 64}\n"
        f"capture: {{policy: traffic, traffic: traffic.csv, max_graphs: 6{more}}}\n"
    )
    return path


def test_a_deployment_brings_its_traffic_from_a_file_beside_it(tmp_path: Path) -> None:
    plan = compile_plan(load_deployment(written(tmp_path)))
    assert plan.graphs == for_traffic(STEADY, {"max_graphs": 6}, scheduler={"max_num_seqs": 64}).graphs
    assert plan.deployment.capture.traffic == "traffic.csv"
    assert plan.deployment.capture.traffic_sha256 == STEADY.digest


def test_a_plan_stands_alone_and_its_digest_covers_what_was_counted(tmp_path: Path) -> None:
    plan = compile_plan(load_deployment(written(tmp_path)))
    (tmp_path / "traffic.csv").unlink()
    text = dump_plan(plan)
    again = load_plan(text)
    assert again == plan
    assert not is_edited(again)
    assert is_edited(load_plan(text.replace(STEADY.digest, "0" * 64)))
    assert not is_edited(load_plan(text.replace("traffic: traffic.csv", "traffic: elsewhere.csv")))


def test_traffic_other_than_that_of_the_digest_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, more=f", traffic_sha256: {STEADY.digest}")
    load_deployment(path)
    (tmp_path / "traffic.csv").write_text(dump_histogram(counted({3: 1})))
    with pytest.raises(
        DocumentError, match=r"capture.traffic: .*counts other traffic than this was planned for"
    ):
        load_deployment(path)


def test_a_file_of_traffic_that_cannot_be_read_is_an_error_of_its_key(tmp_path: Path) -> None:
    path = written(tmp_path)
    (tmp_path / "traffic.csv").write_text("num_reqs,num_tokens,count\n1,1,many\n")
    with pytest.raises(DocumentError) as caught:
        load_deployment(path)
    assert (caught.value.line, caught.value.key) == (4, "capture.traffic")
    (tmp_path / "traffic.csv").unlink()
    with pytest.raises(DocumentError, match=r"capture.traffic: .*no such file"):
        load_deployment(path)


def test_a_trace_is_replayed_within_the_limits_that_the_engine_settles_on(tmp_path: Path) -> None:
    rows = "".join("0,10,9\n" for _ in range(700))
    (tmp_path / "trace.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)
    path = tmp_path / "deployment.yaml"
    text = "apiVersion: graphplan/v1\nkind: Deployment\n"
    text += "device: {name: H200}\ncapture: {policy: traffic, traffic: trace.csv}\n"
    path.write_text(text)
    counts = load_deployment(path).capture.histogram
    assert counts is not None
    assert max(counts.decode_steps()) == 700  # of the 1024 that run at once by default
    path.write_text(text + "speculative: {method: dflash, num_speculative_tokens: 15}\n")
    limited = load_deployment(path).capture.histogram
    assert limited is not None
    assert max(limited.decode_steps()) == 512


def test_a_deployment_that_the_engine_refuses_still_has_its_traffic_read(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_text(path.read_text() + "engine: {version: '0.1'}\n")
    deployment = load_deployment(path)
    assert deployment.capture.traffic_sha256 == STEADY.digest
    with pytest.raises(PlanError, match=r"engine.version"):
        compile_plan(deployment)


def test_traffic_that_the_policy_does_not_use_is_not_read_and_listed() -> None:
    plan = compiled("engine", capture={"traffic": "nowhere.csv", "max_graphs": 8})
    assert (
        finding(plan, "ignored-settings").message
        == "without effect on planning: capture.traffic, capture.max_graphs"
    )


# Properties of all deployments -------------------------------------------------------------------

rows = st.builds(
    lambda size, count, is_mixed: HistogramRow(
        num_tokens=size, count=count, num_reqs=None if is_mixed else size
    ),
    st.integers(1, 300),
    st.integers(1, 1000),
    st.sampled_from((False, False, False, True)),
)
histograms = st.lists(st.lists(rows, max_size=8), min_size=1, max_size=4).map(histogram_of)


@settings(max_examples=min(settings.default.max_examples, 80))  # each compiles twice and cross-validates
@given(deployments(valid_only=True), histograms.filter(lambda histogram: histogram.rows), st.integers(1, 40))
def test_whatever_the_traffic_every_batch_is_covered_within_the_limit(
    deployment: Deployment, histogram: Histogram, graphs: int
) -> None:
    compilation = evolve(
        deployment.compilation, cudagraph_capture_sizes=None, max_cudagraph_capture_size=None
    )
    opened = evolve(deployment, compilation=compilation)
    capture = CaptureSection(policy=CapturePolicy.TRAFFIC, histogram=histogram, max_graphs=graphs)
    try:
        compile_plan(opened)
        plan = compile_plan(evolve(opened, capture=capture))
    except PlanError:
        assume(False)
    assert not unwanted(plan)
    if plan.entries():
        assert len(sizes_of(plan)) <= graphs
    assert load_plan(dump_plan(plan)) == plan
