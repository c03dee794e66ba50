"""Microbatches (dual-batch overlap): when a step is cut, and which graphs have a twin for it.

Source: vLLM 0.33, microbatch thresholds and the V2 graph manager's twins (rules 5.4 and 6.3).
"""

from __future__ import annotations

from attrs import evolve

from planner.descriptors import PlanEntry
from planner.documents.plan import Microbatching
from planner.modes import CUDAGraphMode


def passes_threshold(microbatching: Microbatching | None, num_tokens: int, uniform_decode: bool) -> bool:
    """Whether a step of ``num_tokens`` tokens on its smallest rank may be cut into microbatches."""
    if microbatching is None:
        return False
    if uniform_decode:
        return num_tokens >= microbatching.decode_token_threshold
    return num_tokens >= microbatching.prefill_token_threshold


def microbatch_twin(entry: PlanEntry, microbatching: Microbatching | None) -> PlanEntry | None:
    """The entry that serves the same batch in microbatches, or ``None`` where there is none."""
    if microbatching is None or entry.mode is not CUDAGraphMode.FULL or not entry.num_reqs:
        return None
    query_len, remainder = divmod(entry.num_tokens, entry.num_reqs)
    if (
        remainder
        or entry.uniform_token_count not in (None, query_len)
        or entry.num_tokens < microbatching.num_ubatches
        or not passes_threshold(microbatching, entry.num_tokens, uniform_decode=True)
    ):
        return None
    return evolve(entry, num_ubatches=microbatching.num_ubatches, uniform_token_count=query_len)
