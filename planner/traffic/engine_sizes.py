"""The decode graphs that vLLM captures by itself, as a measure for others."""

from __future__ import annotations

from planner.compile import compile_plan
from planner.documents.deployment import Deployment, SchedulerSection, SpeculativeSection
from planner.documents.plan import Plan


def vllm_default_plan(max_num_seqs: int, max_num_batched_tokens: int, query_len: int) -> Plan:
    """The plan of a server where nothing but its limits is set, and speculation for longer queries."""
    speculative = SpeculativeSection(method="ngram", num_speculative_tokens=query_len - 1)
    return compile_plan(
        Deployment(
            scheduler=SchedulerSection(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max(max_num_batched_tokens, max_num_seqs * query_len),
            ),
            speculative=speculative if query_len > 1 else None,
        )
    )
