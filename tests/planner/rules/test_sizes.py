"""Capture sizes: each worked example that was run on the real engine is a row (rules 2.8)."""

from __future__ import annotations

from typing import Any

import pytest

from planner import Deployment, PlanError, compile_plan, load_deployment
from planner.rules.schedule import Tier, dense_schedule, schedule_fault, tiers_of
from planner.rules.sizes import SizeRequest, capture_sizes, platform_ceiling
from tests.planner.runs import sizes

TO_512 = "1, 2, 4, 8..256/8, 272..512/16"
TO_1024 = "1, 2, 4, 8..256/8, 272..1024/16"
SEVENTEENS = "1, 2, 4, 8, 16, 17, 24, 32, 34, 40..64/8, 68, 72..256/8, 272..400/16, 408, 416..512/16"
TWO_TIERS = (
    "1, 2, 3, 4, 6, 8, 12, 16, 17, 24, 32, 34, 40..64/8, 68, 72..272/8, 288, 304, 312, 320, 336, 352,"
    "360, 368..512/16"
)

# The number of the worked example, the settings, the list.
LISTS: list[tuple[str, dict[str, Any], str]] = [
    ("1", {"S": 1}, "1, 2"),
    ("2", {"S": 3}, "1, 2, 3, 4"),
    ("3", {"S": 4}, "1, 2, 4, 8"),
    ("4", {"S": 5}, "1, 2, 4, 5, 8"),
    ("5", {"S": 8}, "1, 2, 4, 8, 16"),
    ("6", {"S": 16}, "1, 2, 4, 8, 16, 24, 32"),
    ("7", {"S": 100}, "1, 2, 4, 8..96/8, 100, 104..200/8"),
    ("8", {"S": 101}, "1, 2, 4, 8..96/8, 101, 104..200/8"),
    ("9", {"S": 128}, "1, 2, 4, 8..256/8"),
    ("10", {"S": 256}, TO_512),
    ("11", {"S": 300}, "1, 2, 4, 8..256/8, 272, 288, 300, 304..512/16"),
    ("12", {"S": 512, "D": 1024}, TO_1024),
    ("13a", {"S": 600}, TO_512),
    ("13b", {"S": 1024}, TO_512),
    ("14", {"S": 256, "B": 300}, "1, 2, 4, 8..256/8, 272, 288, 300"),
    ("15", {"S": 256, "B": 256}, "1, 2, 4, 8..256/8"),
    ("16", {"S": 8, "B": 10}, "1, 2, 4, 8, 10"),
    ("17", {"max": 257, "B": 2048}, "1, 2, 4, 8..256/8"),
    ("18", {"max": 2048, "B": 257}, "1, 2, 4, 8..256/8, 257"),
    ("19", {"max": 1024}, TO_1024),
    ("20", {"max": 5}, "1, 2, 4"),
    ("21", {"max": 7, "B": 7}, "1, 2, 4, 7"),
    ("22", {"max": 12}, "1, 2, 4, 8"),
    ("24", {"list": (1, 2, 4, 15)}, "1, 2, 4, 15"),
    ("25", {"list": (15, 4, 1, 2, 4), "B": 8}, "1, 2, 4"),
    ("27", {"list": (1, 2, 4), "max": 4}, "1, 2, 4"),
    ("32", {"interactivity": True, "S": 128}, "1..32/1, 40..256/8"),
    ("33", {"interactivity": True, "S": 8}, "1..16/1"),
    ("34", {"N": 1, "S": 4}, "1, 2, 4, 8, 16"),
    ("35", {"N": 1, "S": 300}, TO_512),
    ("36", {"N": 2, "S": 8}, "1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48"),
    ("37", {"N": 3, "S": 16}, "1, 2, 4, 8..128/8"),
    ("38", {"N": 7, "S": 64}, TO_512),
    ("39", {"N": 15, "S": 8}, "1, 2, 4, 8..256/8"),
    ("40a", {"N": 16, "S": 24}, SEVENTEENS),
    ("40b", {"N": 16, "S": 32}, SEVENTEENS),
    ("40c", {"N": 16, "S": 512}, SEVENTEENS),
    ("41", {"N": 3, "S": 16, "B": 40}, "1, 2, 4, 8..40/8"),
    ("42", {"N": 3, "max": 64}, "1, 2, 4, 8..64/8"),
    ("43", {"N": 3, "interactivity": True, "S": 8}, "1..32/1, 40..64/8"),
    ("44", {"N": 16, "S": 128, "schedule": ((1, 16, 16), (17, 128, 2))}, TWO_TIERS),
    ("45", {"N": 3, "S": 16, "schedule": ((1, 16, 5),)}, "1, 2, 4, 8..128/8"),
    (
        "46",
        {"N": 4, "S": 17, "schedule": ((1, 2, 4), (5, 5, 1))},
        "1, 2, 4, 5, 8, 10, 16, 20, 24, 32, 34, 40..168/8",
    ),
    ("47", {"N": 2, "S": 8, "schedule": ((2, 4, 1),)}, "1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48"),
    ("48", {"N": 3, "S": 8, "schedule": ((1, 4, 3), (5, 8, 0))}, "1, 2, 4, 8..64/8"),
]

REFUSALS: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("23", {"max": 0}, ("0", "8192")),
    ("26", {"list": (1, 2, 4), "max": 8}, ("8", "4")),
    ("28", {"list": (1, 2, 4, 512), "max": 512, "B": 256}, ("512", "4", "256")),
    ("30", {"list": ()}, ("[]",)),
    ("a size of 0", {"list": (0, 8)}, ("0",)),
]


def request(case: dict[str, Any]) -> SizeRequest:
    max_num_seqs, drafts = case.get("S", 128), case.get("N", 0)
    schedule = case.get("schedule")
    tiers: tuple[Tier, ...] = (Tier(1 + drafts, max_num_seqs),)
    if schedule and schedule_fault(schedule) is None:
        tiers = tiers_of(dense_schedule(schedule, max_num_seqs, drafts))
    return SizeRequest(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=case.get("B", 8192),
        query_len=1 + drafts,
        tiers=tiers,
        ceiling=case.get("D", 512),
        interactivity=case.get("interactivity", False),
        asked_sizes=case.get("list"),
        asked_max=case.get("max"),
    )


@pytest.mark.parametrize(("case", "expected"), [pytest.param(*row[1:], id=row[0]) for row in LISTS])
def test_sizes_are_the_engines(case: dict[str, Any], expected: str) -> None:
    found = capture_sizes(request(case))
    assert found.sizes == sizes(expected)
    assert found.maximum == found.sizes[-1]


@pytest.mark.parametrize(("case", "values"), [pytest.param(*row[1:], id=row[0]) for row in REFUSALS])
def test_a_refusal_names_the_fields_and_the_values(case: dict[str, Any], values: tuple[str, ...]) -> None:
    with pytest.raises(PlanError) as refusal:
        capture_sizes(request(case))
    assert all(field.startswith(("compilation.", "scheduler.")) for field in refusal.value.fields)
    assert all(value in refusal.value.message for value in values)


def test_sizes_above_the_token_budget_may_leave_nothing() -> None:
    found = capture_sizes(request({"list": (512,), "B": 256}))
    assert (found.sizes, found.maximum) == ((), 0)
    assert "512" in found.decisions[0].because


@pytest.mark.parametrize(
    ("case", "rules"),
    [
        ({"S": 8}, ["max-default"]),
        ({"max": 257}, ["max-truncated-to-grid"]),
        ({"max": 256}, []),
        ({"list": (4, 2, 2)}, ["sizes-sorted", "max-from-sizes"]),
        ({"list": (2, 4)}, ["max-from-sizes"]),
        ({"list": (2, 9000)}, ["sizes-within-token-budget", "max-from-sizes"]),
    ],
)
def test_every_change_is_a_decision(case: dict[str, Any], rules: list[str]) -> None:
    assert [decision.rule for decision in capture_sizes(request(case)).decisions] == rules


@pytest.mark.parametrize(
    ("capability", "ceiling"),
    [((9, 0), 512), ((10, 0), 1024), ((10, 3), 1024), ((12, 0), 512), ((8, 9), 512), (None, 512)],
)
def test_only_data_centre_blackwell_doubles_the_ceiling(
    capability: tuple[int, int] | None, ceiling: int
) -> None:
    assert platform_ceiling(capability) == ceiling


def deployment(**sections: dict[str, Any]) -> Deployment:
    return load_deployment({"apiVersion": "graphplan/v1", "kind": "Deployment", **sections})


@pytest.mark.parametrize(
    "sections",
    [
        {"compilation": {"cudagraph_mode": "NONE", "cudagraph_capture_sizes": []}},
        {"compilation": {"cudagraph_mode": "NONE", "max_cudagraph_capture_size": 0}},
        {"model": {"enforce_eager": True}, "compilation": {"cudagraph_capture_sizes": []}},
    ],
)
def test_without_graphs_no_size_is_looked_at(sections: dict[str, Any]) -> None:
    target = compile_plan(deployment(**sections)).resolved["target"]
    assert (target.cudagraph_capture_sizes, target.max_cudagraph_capture_size) == ((), 0)


@pytest.mark.parametrize(
    ("seqs", "drafts", "captured"),
    [
        (8, 0, True),
        (32, 0, True),
        (64, 7, True),
        (256, 1, True),
        (24, 16, True),
        (32, 16, False),
        (64, 16, False),
        (128, 16, False),
        (256, 24, False),
        (33, 16, False),
    ],
)
def test_the_widest_decode_batch_is_captured_up_to_the_ceiling(
    seqs: int, drafts: int, captured: bool
) -> None:
    found = capture_sizes(request({"S": seqs, "N": drafts}))
    assert (seqs * (1 + drafts) in found.sizes) is captured
    assert found.maximum == min(seqs * (1 + drafts) * 2, 512)
