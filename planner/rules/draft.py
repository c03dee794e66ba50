"""The draft families of DFlash and DSpark: mode, entries, and the prologue recorded in each graph.

Source: vLLM 0.33, DFlash and DSpark speculators (rules 7.1, 7.2, 7.7). The query pass of DFlash
has ``1 + k`` tokens a request, the anchor and k masks; DSpark samples from the anchor and has k.
The prologue computes the context K/V of one full verification of every request.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve

from planner.descriptors import DFLASH_CONTEXT_KV, PlanEntry, Prologue
from planner.documents.plan import DRAFT, ResolvedFamily
from planner.modes import AttentionSupport, CUDAGraphMode
from planner.rules.attention import Attention
from planner.rules.family import Family, draft_graphs, mode_decision
from planner.rules.settings import Settings


def block_draft_family(
    settings: Settings,
    target: ResolvedFamily,
    attention: Attention,
    *,
    from_anchor: bool,
    as_drafted: bool = False,
) -> Family:
    """The family of a draft that proposes whole blocks; ``from_anchor`` is DSpark's layout.

    The engine makes its graphs for the lengths of the target's schedule, among which the draft's own
    may not be; ``as_drafted`` has them made for that one instead.
    """
    mode, because = draft_mode(target.cudagraph_mode, attention.draft_support)
    query_len = settings.num_speculative_tokens if from_anchor else settings.query_len
    query_lens = (query_len,) if from_anchor or as_drafted else settings.query_lens
    resolved, entries = draft_graphs(target, mode=mode, query_len=query_len, query_lens=query_lens)
    return Family(
        name=DRAFT,
        resolved=evolve(
            resolved, attention_support=attention.draft_support, attention_groups=attention.draft_groups
        ),
        entries=with_prologue(
            entries,
            rows_per_request=settings.query_len,
            max_num_batched_tokens=settings.max_num_batched_tokens,
        ),
        decisions=(mode_decision(DRAFT, mode, "dflash-draft-mode", because),),
    )


def draft_mode(target_mode: CUDAGraphMode, support: AttentionSupport) -> tuple[CUDAGraphMode, str]:
    """The draft family's mode and why; a draft pass is never recorded in pieces."""
    if target_mode.decode_mode() is not CUDAGraphMode.FULL:
        return CUDAGraphMode.NONE, f"the target decodes without FULL graphs ({target_mode})"
    if support < AttentionSupport.UNIFORM_BATCH:
        needed = AttentionSupport.UNIFORM_BATCH
        return CUDAGraphMode.NONE, f"the draft's attention cannot replay {needed} ({support})"
    return CUDAGraphMode.FULL_DECODE_ONLY, "the draft pass is uniform and decodes only"


def with_prologue(
    entries: Iterable[PlanEntry], *, rows_per_request: int, max_num_batched_tokens: int
) -> tuple[PlanEntry, ...]:
    """``entries`` with the context-KV prologue that each records ahead of its query pass."""
    return tuple(
        evolve(entry, prologue=Prologue(DFLASH_CONTEXT_KV, tokens))
        for entry in entries
        if (tokens := min((entry.num_reqs or 0) * rows_per_request, max_num_batched_tokens))
    )
