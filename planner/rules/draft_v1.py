"""The draft family of the V1 runner: one set of graphs in pieces, captured along with the target's.

Source: vLLM 0.33, drafters of the V1 runner (rules 3.5 and 4.7).
"""

from __future__ import annotations

from attrs import evolve

from planner.descriptors import PlanEntry
from planner.documents.plan import Decision, ResolvedFamily
from planner.modes import CUDAGraphMode
from planner.rules.entries import EntryRequest
from planner.rules.entries_v1 import v1_family_entries


def v1_draft_mode(target_mode: CUDAGraphMode, *, enforce_eager: bool) -> tuple[CUDAGraphMode, str]:
    """The mode that a V1 draft dispatches in, and why."""
    if enforce_eager:
        return CUDAGraphMode.NONE, "speculative.enforce_eager is true"
    if target_mode.mixed_mode() is CUDAGraphMode.NONE:
        return CUDAGraphMode.NONE, f"the target runs mixed batches without graphs ({target_mode})"
    return CUDAGraphMode.PIECEWISE, "the v1 runner records drafts in pieces only"


def v1_draft_family(
    target: ResolvedFamily, *, enforce_eager: bool
) -> tuple[ResolvedFamily, tuple[PlanEntry, ...], Decision]:
    """What a V1 draft captures beside ``target``: the target's sizes, in pieces, without LoRA.

    It does so while the target captures pieces for batches without LoRA; a target that captures
    none leaves the draft without graphs, whatever the draft's mode is.
    """
    mode, because = v1_draft_mode(target.cudagraph_mode, enforce_eager=enforce_eager)
    sizes = target.cudagraph_capture_sizes
    if mode and not target.cudagraph_mode.has_piecewise_cudagraphs():
        sizes, because = (), f"{because}, and only while the target is, but that is {target.cudagraph_mode}"
    elif mode and 0 not in target.lora_cases:
        sizes, because = (), f"{because}, and without LoRA only, but cudagraph_specialize_lora is false"
    entries = v1_family_entries(
        EntryRequest(
            mode=mode,
            sizes=sizes if mode else (),
            max_num_seqs=target.max_num_seqs or 1,
            decode_query_len=1,
            query_lens=(),
        )
    )
    resolved = evolve(
        target,
        cudagraph_mode=mode,
        uniform_query_lens=(),
        lora_cases=(0,),
        attention_support=None,
        attention_groups=(),
        microbatching=None,
    )
    decision = Decision(
        path="resolved.draft.cudagraph_mode", became=str(mode), rule="v1-draft-mode", because=because
    )
    return resolved, entries, decision
