"""The DFlash draft family: its mode, its entries, and the prologue recorded in each.

Source: vLLM 0.33, DFlash speculator (rules 7.1 and 7.2). Its query pass has ``1 + k`` tokens a
request, the anchor and k masks; the prologue computes the context K/V of one full verification.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve

from planner.descriptors import DFLASH_CONTEXT_KV, PlanEntry, Prologue
from planner.documents.plan import Decision
from planner.modes import AttentionSupport, CUDAGraphMode


def draft_mode(target_mode: CUDAGraphMode, support: AttentionSupport) -> tuple[CUDAGraphMode, Decision]:
    """The draft family's mode and why; a draft pass is never recorded in pieces."""
    if target_mode.decode_mode() is not CUDAGraphMode.FULL:
        mode, because = CUDAGraphMode.NONE, f"the target decodes without FULL graphs ({target_mode})"
    elif support < AttentionSupport.UNIFORM_BATCH:
        mode = CUDAGraphMode.NONE
        because = f"the draft's attention cannot replay {AttentionSupport.UNIFORM_BATCH} ({support})"
    else:
        mode, because = CUDAGraphMode.FULL_DECODE_ONLY, "the draft pass is uniform and decodes only"
    decision = Decision(
        path="resolved.draft.cudagraph_mode", became=str(mode), rule="dflash-draft-mode", because=because
    )
    return mode, decision


def with_prologue(
    entries: Iterable[PlanEntry], *, query_len: int, max_num_batched_tokens: int
) -> tuple[PlanEntry, ...]:
    """``entries`` with the context-KV prologue that each records ahead of its query pass."""
    return tuple(
        evolve(entry, prologue=Prologue(DFLASH_CONTEXT_KV, tokens))
        for entry in entries
        if (tokens := min((entry.num_reqs or 0) * query_len, max_num_batched_tokens))
    )
