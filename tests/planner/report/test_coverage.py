"""Which batch goes to which graph: the map and the list of graphs say what dispatch does."""

from __future__ import annotations

from pathlib import Path

import pytest

import planner
from planner.documents.plan import Plan
from planner.modes import CUDAGraphMode
from planner.report.coverage import Panel, family_map, panel_title
from planner.report.coverage_chart import _corners, coverage_chart, tick_text
from planner.verify.coverage import Coverage, Gap
from planner.verify.domain import BatchClass

COMPILED = Path(__file__).resolve().parents[3] / "plans/compiled"


def load(name: str) -> Plan:
    return planner.load_plan(COMPILED / f"{name}.yaml")


def panels(name: str, family: str = "target") -> tuple[Panel, ...]:
    return family_map(load(name), family).panels


def sizes_by_reqs(coverage: Coverage) -> dict[int, int]:
    """The tokens of the graph that each number of requests runs in."""
    return {
        num_reqs: served.entry.num_tokens
        for served in coverage.served
        for num_reqs in range(served.fewest, served.most + 1)
    }


@pytest.mark.parametrize("name", ["qwen3-8b-dflash", "qwen3-30b-a3b-schedule", "sglang-llama-3.1-8b"])
def test_lines_of_the_map_are_what_dispatch_answers(name: str) -> None:
    table = load(name).dispatch_table("target")
    for coverage in panels(name)[0].uniform:
        length = coverage.batches.query_len
        assert length is not None
        sizes = sizes_by_reqs(coverage)
        for num_reqs in range(1, coverage.batches.most_reqs + 1):
            answer = table.dispatch(num_reqs, num_reqs * length, length, 0, length)  # type: ignore[call-arg]
            is_served = answer.cg_mode is not CUDAGraphMode.NONE  # type: ignore[union-attr]
            assert sizes.get(num_reqs) == (answer.num_tokens if is_served else None)  # type: ignore[union-attr]


def test_a_schedule_has_a_line_for_every_query_length() -> None:
    (panel,) = panels("qwen3-30b-a3b-schedule")
    assert [(one.batches.query_len, one.batches.most_reqs) for one in panel.uniform] == [
        (4, 128),
        (8, 64),
        (16, 16),
    ]
    assert panel_title(panel) == "uniform decode and mixed batches"


def test_steps_in_microbatches_have_a_map_of_their_own() -> None:
    titles = [panel_title(panel) for panel in panels("qwen3-30b-a3b-dbo")]
    assert titles == [
        "uniform decode and mixed batches",
        "uniform decode and mixed batches, in 2 microbatches",
    ]


def test_lora_cases_that_are_covered_alike_share_a_map() -> None:
    (panel,) = panels("llama-3.1-8b-lora")
    assert panel.cases == ()


def test_images_of_an_encoder_are_not_drawn() -> None:
    plan = planner.compile_plan(planner.load_deployment({"apiVersion": "graphplan/v1", "kind": "Deployment"}))
    encoder = planner.load_plan(
        {
            "apiVersion": "graphplan/v1",
            "kind": "Plan",
            "graphs": {"encoder": [{"mode": "FULL", "num_tokens": 64}]},
        }
    )
    assert family_map(encoder, "encoder").panels == ()
    assert "images" in family_map(encoder, "encoder").because
    assert family_map(plan, "target").because == ""


def test_the_list_names_the_batches_of_every_graph() -> None:
    plan = load("qwen3-30b-a3b-schedule")
    serves = family_map(plan, "target").serves
    words = {
        (entry.mode, entry.num_tokens): serves[entry] for entry in plan.entries() if entry.num_tokens == 128
    }
    assert words[CUDAGraphMode.FULL, 128].startswith("decode of ")
    assert words[CUDAGraphMode.PIECEWISE, 128] == "mixed, 121 to 128 tokens"


def test_a_dead_graph_serves_nothing() -> None:
    plan = planner.load_plan(
        {
            "apiVersion": "graphplan/v1",
            "kind": "Plan",
            "deployment": {"scheduler": {"max_num_seqs": 2, "max_num_batched_tokens": 64}},
            "graphs": {
                "target": [
                    {"mode": "FULL", "num_tokens": 8, "num_reqs": 8, "uniform_token_count": 1},
                    {"mode": "FULL", "num_tokens": 2, "num_reqs": 2, "uniform_token_count": 1},
                ]
            },
        }
    )
    serves = family_map(plan, "target").serves
    assert [serves[entry] for entry in plan.entries()] == ["nothing", "decode of 1 to 2 requests of 1"]


def test_ranges_are_named_where_one_points_at_them() -> None:
    drawing = coverage_chart(panels("qwen3-8b-dflash", "draft")[0], name="map")
    for hint in (
        "decode of 1 request of 16 tokens: in FULL 16 tokens, 1 request of 16",
        "decode of 33 to 128 requests of 16 tokens: eagerly, without a graph",
    ):
        assert f"<title>{hint}</title>" in drawing.svg


def test_axes_have_short_numbers() -> None:
    assert [tick_text(2**power) for power in (0, 9, 12, 13, 20, 21)] == ["1", "512", "4096", "8k", "1M", "2M"]


def test_decode_of_single_tokens_is_drawn_though_it_fills_no_area() -> None:
    plan = planner.load_plan(
        {
            "apiVersion": "graphplan/v1",
            "kind": "Plan",
            "graphs": {"target": [{"mode": "FULL", "num_tokens": 16, "max_query_len": 4, "num_reqs": 4}]},
        }
    )
    panel = family_map(plan, "target").panels[-1]
    assert panel_title(panel) == "decode of unequal lengths, the longest of 1 token"
    assert ": in FULL 16 tokens, 4 requests of up to 4</title>" in coverage_chart(panel, name="map").svg


def test_areas_keep_to_the_batches_that_there_are() -> None:
    batches = BatchClass(longest=4, most_reqs=8, last_tokens=16)
    assert _corners(batches, Gap(1, 16, 3, 5)) == [
        (2.5, 2.5),
        (5.5, 5.5),
        (10.0, 5.5),
        (16.5, 5.5),
        (16.5, 4.125),
        (10.0, 2.5),
        (5.5, 2.5),
        (2.5, 2.5),
    ]
