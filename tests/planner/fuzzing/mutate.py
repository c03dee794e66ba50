"""One mutated document from one number: the same bytes each time."""

from __future__ import annotations

from random import Random

from tests.planner.fuzzing import gentle, rough
from tests.planner.fuzzing.combinations import extremes
from tests.planner.fuzzing.nodes import parsed, written
from tests.planner.fuzzing.seeds import seed_texts

GENTLE_SHARE = 0.74
"""Share of documents that get gentle mutations only."""

PLAN_SHARE = 0.35
EXTREME_SHARE = 0.002
"""Share of documents that ask for as much work as their limits allow, which takes seconds each."""


def mutated_document(rng: Random) -> bytes:
    """A seed after a few mutations."""
    deployments, plans = seed_texts()
    text = rng.choice(plans if rng.random() < PLAN_SHARE else deployments)
    others = (*deployments, *plans)
    root = parsed(text)
    is_gentle = rng.random() < GENTLE_SHARE
    for _ in range(rng.randint(1, 4) if is_gentle else rng.randint(0, 2)):
        rng.choice(gentle.MUTATIONS)(root, others, rng)
    if rng.random() < EXTREME_SHARE:
        extremes(root, rng)
    in_bytes = not is_gentle and rng.random() < 0.5
    for _ in range(0 if is_gentle or in_bytes else rng.randint(1, 2)):
        rng.choice(rough.MUTATIONS)(root, others, rng)
    data = rough.with_raw_text(gentle.decorated(written(root, rng), rng), rng).encode("utf-8")
    for _ in range(rng.choice((1, 1, 2)) if in_bytes else 0):
        data = rough.broken(data, rng.choice(others).encode(), rng)
    return data
