"""Verification decides over ranges; here every batch of small domains is tried, and both agree."""

from __future__ import annotations

import pytest

from planner import BatchError, Plan
from planner.documents.plan import TARGET
from planner.modes import Runner
from planner.verify import verify
from planner.verify.holes import decode_holes, mixed_holes
from planner.verify.reachability import unreached
from planner.verify.survey import Survey, survey_of
from tests.planner.verify.brute import Answers, answers
from tests.planner.verify.random_plans import random_plan

QUICK = range(200)
ALL = range(200, 2000)


def decided(survey: Survey) -> Answers:
    """What verification says, spelled out batch by batch."""
    decode, mixed = set(), set()
    for group in survey.groups:
        for case in group.active:
            for hole in (hole for _, holes in decode_holes(survey, group) for hole in holes):
                decode.update(
                    (hole.query_len, num_reqs, case, hole.pieces)
                    for num_reqs in range(hole.fewest, hole.most + 1)
                )
            for gap in mixed_holes(survey, group):
                mixed.update(
                    (num_reqs, num_tokens, case)
                    for num_tokens in range(gap.first, gap.last + 1)
                    for num_reqs in range(gap.fewest, survey.domain.max_num_reqs + 1)
                    if num_reqs <= num_tokens <= num_reqs * survey.domain.max_model_len
                )
    dead = frozenset(entry for _, _, entries in unreached(survey) for entry in entries)
    return Answers(dead, frozenset(decode), frozenset(mixed))


def assert_agrees(plan: Plan) -> None:
    codes = {finding.code for finding in verify(plan)}
    try:
        tried = answers(plan)
    except BatchError:
        assert "misaligned-size" in codes
        return
    assert "misaligned-size" not in codes
    assert decided(survey_of(plan, TARGET)) == tried
    assert ("unreachable-entry" in codes) == bool(tried.unreached)
    assert bool({"decode-hole", "shadowed-by-tier"} & codes) == bool(tried.decode_holes)
    assert ("mixed-hole" in codes) == bool(tried.mixed_holes)


@pytest.mark.parametrize("runner", [Runner.V2, Runner.V1], ids=str)
def test_200_plans_are_decided_as_by_trying_every_batch(runner: Runner) -> None:
    for seed in QUICK:
        assert_agrees(random_plan(seed, runner))


@pytest.mark.slow
@pytest.mark.parametrize("runner", [Runner.V2, Runner.V1], ids=str)
def test_1800_more_plans_are_decided_as_by_trying_every_batch(runner: Runner) -> None:
    for seed in ALL:
        assert_agrees(random_plan(seed, runner))
