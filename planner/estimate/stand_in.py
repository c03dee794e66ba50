"""How long requests are in a capture with the project's reference models, which estimates go by as well."""

from __future__ import annotations

from planner.documents.plan import Plan

CONTEXT_TOKENS = 256
"""Tokens of a request beyond its query that ``planner capture`` has room for."""


def gathered_tokens(plan: Plan) -> int:
    """Tokens of each request that attention of a FULL graph copies: the longest query, and its context."""
    longest = 1
    for entries in plan.graphs.values():
        for entry in entries:
            own = entry.max_query_len or entry.uniform_token_count
            longest = max(longest, own or -(-entry.num_tokens // (entry.num_reqs or entry.num_tokens)))
    return longest + CONTEXT_TOKENS
