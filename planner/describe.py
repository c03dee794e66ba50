"""Plain words for the parts of a plan, for messages and summaries."""

from __future__ import annotations

from planner.descriptors import PlanEntry


def label(entry: PlanEntry) -> str:
    """``FULL 512 tokens, 32 requests of 16``: an entry in one short phrase."""
    parts = [f"{entry.mode} {entry.num_tokens} token{'s' if entry.num_tokens != 1 else ''}"]
    if entry.num_reqs is not None:
        requests = f"{entry.num_reqs} request{'s' if entry.num_reqs != 1 else ''}"
        if entry.uniform_token_count is not None:
            requests += f" of {entry.uniform_token_count}"
        elif entry.max_query_len is not None:
            requests += f" of up to {entry.max_query_len}"
        parts.append(requests)
    if entry.num_active_loras:
        parts.append(f"{entry.num_active_loras} LoRA{'s' if entry.num_active_loras != 1 else ''}")
    if entry.num_ubatches > 1:
        parts.append(f"{entry.num_ubatches} microbatches")
    return ", ".join(parts)
