"""The batches that a server may form: ranges of requests, and what bounds each family."""

from __future__ import annotations

from itertools import product

from attrs import evolve

from planner import Plan, compile_plan
from planner.documents.plan import DRAFT, TARGET
from planner.rules.schedule import Tier
from planner.verify.domain import BatchClass, batch_classes, domain_of
from tests.planner.verify.deployments import deployment

SCHEDULE = [(1, 8, 3), (9, 20, 1), (21, 64, 0)]


def shapes(batches: BatchClass) -> set[tuple[int, int]]:
    """Requests and tokens of every batch of a class, by its definition."""
    return {
        (num_reqs, num_tokens)
        for num_reqs, num_tokens in product(range(1, batches.most_reqs + 1), range(1, 40))
        if num_reqs * batches.shortest + batches.surplus <= num_tokens <= num_reqs * batches.longest
        and batches.first_tokens <= num_tokens <= batches.last_tokens
    }


def test_the_requests_of_a_range_of_tokens_are_those_of_its_batches() -> None:
    classes = [
        BatchClass(shortest=3, longest=3, most_reqs=6, last_tokens=17),
        BatchClass(longest=7, most_reqs=5, last_tokens=30),
        BatchClass(longest=4, surplus=2, most_reqs=9, first_tokens=5, last_tokens=22),
    ]
    for batches, (first, last) in product(classes, product(range(1, 36), repeat=2)):
        found = {num_reqs for num_reqs, num_tokens in shapes(batches) if first <= num_tokens <= last}
        fewest, most = batches.requests(first, last)
        assert set(range(fewest, most + 1)) == found


def tiers(plan: Plan, family: str) -> dict[int, int]:
    return {tier.query_len: tier.max_num_reqs for tier in domain_of(plan, family).tiers}


def test_each_family_has_the_query_lengths_and_widest_batches_that_the_schedule_gives_it() -> None:
    plan = compile_plan(deployment(64, drafts=3, schedule=SCHEDULE, method="eagle3"))
    assert tiers(plan, TARGET) == {4: 8, 2: 20, 1: 64} == tiers(plan, "draft_prefill")
    assert tiers(plan, "draft_decode_3") == {1: 8}
    block = compile_plan(deployment(64, drafts=3, schedule=SCHEDULE, method="dflash"))
    assert tiers(block, TARGET) == {4: 8, 2: 20, 1: 64}
    assert tiers(block, DRAFT) == {4: 20}


def test_drafts_that_fill_the_token_budget_bound_the_requests() -> None:
    plan = compile_plan(deployment(64, drafts=15, method="dflash", budget=512))
    assert domain_of(plan, TARGET).max_num_reqs == 32
    assert domain_of(plan, TARGET).tiers == (Tier(16, 64),)


def test_decode_is_bounded_by_the_longest_sequence() -> None:
    asked = deployment(4, drafts=3)
    plan = compile_plan(evolve(asked, model=evolve(asked.model, max_model_len=3)))
    domain = domain_of(plan, TARGET)
    decode, mixed = batch_classes(domain, plan.entries())
    assert not shapes(decode)
    assert max(num_tokens for _, num_tokens in shapes(mixed)) == 12
