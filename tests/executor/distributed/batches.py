"""Random batches of data-parallel ranks: decode, speculation, prefill, idle and eager ranks."""

from __future__ import annotations

import random

from planner.batches import Batch
from planner.dispatch import DispatchTable
from planner.dispatch_v1 import V1DispatchTable


def random_batches(draw: random.Random, table: DispatchTable | V1DispatchTable, size: int) -> list[Batch]:
    """A batch for each of ``size`` ranks; in half of all steps every rank decodes alike."""
    most = max((entry.num_tokens for entry in table.entries), default=8)
    if draw.random() < 0.5:
        query_len = draw.choice([1, table.decode_query_len])
        return [_decode(draw, draw.randint(1, max(most // query_len, 1)), query_len) for _ in range(size)]
    return [_any(draw, most) for _ in range(size)]


def _any(draw: random.Random, most: int) -> Batch:
    kind = draw.choice(["decode", "decode", "mixed", "idle", "eager"])
    if kind == "idle":
        return Batch(num_reqs=0, num_tokens=0, allow_skip_drafts=True)
    reqs = draw.randint(1, max(most // 2, 1))
    if kind == "mixed":
        tokens = reqs + draw.randint(0, most)
        return Batch(num_reqs=reqs, num_tokens=tokens, num_active_loras=draw.randint(0, 2))
    return _decode(draw, reqs, draw.randint(1, 4), need_eager=kind == "eager")


def _decode(draw: random.Random, reqs: int, query_len: int, *, need_eager: bool = False) -> Batch:
    return Batch(
        num_reqs=reqs,
        num_tokens=reqs * query_len,
        uniform_token_count=query_len,
        max_query_len=query_len,
        num_active_loras=draw.choice([0, 0, 0, 1]),
        uniform_decode=draw.random() < 0.9,
        need_eager=need_eager,
        allow_ubatching=draw.random() < 0.9,
        allow_skip_drafts=draw.random() < 0.5,
    )
