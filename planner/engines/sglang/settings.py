"""SGLang's settings: a deployment with every open value filled in, in the engine's own order.

Later steps overwrite earlier ones, so their order decides; each change is recorded as a decision.
Source: SGLang 0.5.23, resolution pipeline of its arguments (rules 0 to 9).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from planner.documents.deployment import Deployment
from planner.documents.engine_sections import SglangSection
from planner.documents.plan import Decision
from planner.engines.sglang.config import FULL, PREFILL, GraphConfig, graph_config
from planner.engines.sglang.defaults import (
    PrefillLimits,
    with_decode_sizes,
    with_deepep_sizes,
    with_prefill_sizes,
    within_chunk_of_rank,
)
from planner.engines.sglang.downgrades import (
    by_all_to_all,
    by_attention_backend,
    by_role,
    within_cascade,
)
from planner.engines.sglang.parallel import Layout, layout_of
from planner.engines.sglang.speculation import (
    MAX_RUNNING_REQUESTS,
    Speculation,
    dp_lm_head_of,
    speculation_of,
)
from planner.engines.sglang.tiers import Tier, tier_of
from planner.engines.shared import TOKENS_FIELD
from planner.rules.devices import device_of

if TYPE_CHECKING:
    from planner.models.facts import ModelFacts

SEQS_FIELD = "scheduler.max_num_seqs"
LLAMA_2 = "llama-2"
TOKENS_OF_FULL_PREFILL = 512
"""A prefill graph over whole forwards has a slot for each of so many tokens of the chunk."""

_POOL_LEAST, _POOL_MOST = 2048, 4096


@frozen(kw_only=True)
class Settings:
    """What the captures of a server follow from; requests and tokens are those of one rank.

    ``request_pool`` is the number of requests that a rank can run, ``kv_tokens`` the tokens of its KV
    cache and ``context_len`` those of the longest sequence, ``None`` where they are not known.
    ``chunked_prefill_size`` is -1 where prefill is not cut.
    """

    config: GraphConfig
    layout: Layout
    speculation: Speculation | None
    facts: ModelFacts | None
    chunked_prefill_size: int
    request_pool: int
    kv_tokens: int | None
    context_len: int | None
    padding: bool
    decisions: tuple[Decision, ...]

    @property
    def query_len(self) -> int:
        """Tokens of a decode request in the target."""
        return self.speculation.verify_len if self.speculation else 1

    @property
    def alignment(self) -> int:
        """What the tokens of a graph have to be a multiple of."""
        return self.layout.alignment(gathers_for_mlp=self.layout.gathers_for_mlp)


def settle(deployment: Deployment) -> Settings:
    """The settings of ``deployment``.

    Raises:
        PlanError: the engine would refuse a value, or dies of it at its start.
    """
    section = deployment.sglang or SglangSection()
    speculation = speculation_of(deployment, section)
    ranks = deployment.parallel.data_parallel_size or 1
    attn_dp = ranks if deployment.parallel.enable_dp_attention else 1
    dp_lm_head, head_decisions = dp_lm_head_of(section, speculation, attn_dp=attn_dp)
    layout = layout_of(deployment, section, dp_lm_head=dp_lm_head)
    facts = _facts(deployment)
    config = within_cascade(graph_config(section), layout, facts)
    config = by_role(with_deepep_sizes(config, layout), section)
    tier, because = _tier(deployment)
    asked_chunk, asked_seqs = deployment.scheduler.max_num_batched_tokens, deployment.scheduler.max_num_seqs
    chunk, chunk_decisions = _chunk(asked_chunk, tier, because)
    padding = not section.disable_cuda_graph_padding
    config = with_decode_sizes(
        config,
        tier,
        tier_because=because,
        tp=layout.tp,
        max_running_requests=asked_seqs,
        speculative=speculation is not None,
        padding=padding,
    )
    limits = PrefillLimits(
        chunked_prefill_size=chunk,
        is_mla=facts is not None and facts.mla is not None,
        is_llama_2=LLAMA_2 in (section.model_path or "").casefold(),
        max_total_tokens=section.max_total_tokens,
    )
    config = with_prefill_sizes(config, layout, limits)
    config = by_attention_backend(config, deployment, section, facts)
    chunk, rank_decisions = _chunk_of_rank(chunk, layout.attn_dp, asked_chunk)
    config = within_chunk_of_rank(config, chunk, layout.attn_dp)
    config = by_all_to_all(config, layout, section)
    seqs, seqs_decisions = _max_running_requests(asked_seqs, speculation)
    kv_tokens = _kv_tokens(deployment, section)
    context_len = deployment.model.max_model_len or (facts and facts.max_position_embeddings) or None
    pool, because = _request_pool(seqs, layout.attn_dp, kv_tokens, context_len)
    if pool != seqs:
        limited = Decision(
            path=SEQS_FIELD, asked=asked_seqs, became=pool, rule="request-pool", because=because
        )
        seqs_decisions = (*seqs_decisions, limited)
    config = _with_full_prefill_slots(config, chunk, pool)
    return Settings(
        config=config,
        layout=layout,
        speculation=speculation,
        facts=facts,
        chunked_prefill_size=chunk,
        request_pool=pool,
        kv_tokens=kv_tokens,
        context_len=context_len,
        padding=padding,
        decisions=(
            *head_decisions,
            *chunk_decisions,
            *rank_decisions,
            *seqs_decisions,
            *config.decisions,
        ),
    )


def _facts(deployment: Deployment) -> ModelFacts | None:
    config = deployment.model.config
    if config is None:
        return None
    from planner.models.facts import model_facts

    return model_facts(config.facts)


def _tier(deployment: Deployment) -> tuple[Tier, str]:
    memory = device_of(deployment.device).memory_gib
    if memory is None:
        return tier_of(None), "device memory not given: the engine's choice where it cannot read it"
    return tier_of(memory), f"a device of {memory:g} GiB"


def _chunk(asked: int | None, tier: Tier, because: str) -> tuple[int, tuple[Decision, ...]]:
    if asked is not None:
        return asked, ()
    chunk = tier.chunked_prefill_size
    return chunk, (Decision(path=TOKENS_FIELD, became=chunk, rule="device-default", because=because),)


def _chunk_of_rank(chunk: int, attn_dp: int, asked: int | None) -> tuple[int, tuple[Decision, ...]]:
    of_rank = chunk // attn_dp
    if of_rank == chunk:
        return chunk, ()
    because = f"{attn_dp} ranks of data-parallel attention share a chunk"
    decision = Decision(path=TOKENS_FIELD, asked=asked, became=of_rank, rule="chunk-of-rank", because=because)
    return of_rank, (decision,)


def _max_running_requests(
    asked: int | None, speculation: Speculation | None
) -> tuple[int | None, tuple[Decision, ...]]:
    if asked is not None or speculation is None:
        return asked, ()
    because = f"SGLang's default with method {speculation.method}"
    became = MAX_RUNNING_REQUESTS
    return became, (Decision(path=SEQS_FIELD, became=became, rule="speculative-default", because=because),)


def _kv_tokens(deployment: Deployment, section: SglangSection) -> int | None:
    """Tokens of a rank's KV cache: as measured, or else at most what the user allows."""
    model = deployment.model
    if model.num_kv_blocks is not None:
        return model.num_kv_blocks * (model.block_size or 1)
    return section.max_total_tokens


def _request_pool(
    seqs: int | None, attn_dp: int, kv_tokens: int | None, context_len: int | None
) -> tuple[int, str]:
    """Requests that one rank can run, and why (rules 8.1)."""
    if seqs is not None:
        pool, because = max(1, seqs // attn_dp), f"{seqs} requests over {attn_dp} ranks of attention"
    elif kv_tokens is None or context_len is None:
        pool, because = _POOL_MOST, "the engine's most; it may be less where the KV cache is small"
    else:
        pool = min(max(int(kv_tokens / context_len * 512), _POOL_LEAST), _POOL_MOST)
        because = f"{kv_tokens} tokens of KV cache for sequences of up to {context_len}"
    if kv_tokens is not None and kv_tokens // 2 < pool:
        return max(kv_tokens // 2, 1), f"half of the {kv_tokens} tokens of KV cache"
    return pool, because


def _with_full_prefill_slots(config: GraphConfig, chunk: int, pool: int) -> GraphConfig:
    """The requests of a prefill graph over whole forwards (rules 10)."""
    if config.prefill.backend != FULL:
        return config
    slots = config.prefill.full_prefill_max_req or max(chunk // TOKENS_OF_FULL_PREFILL, 1)
    because = f"a slot for each {TOKENS_OF_FULL_PREFILL} tokens of {chunk}, and no more than {pool} requests"
    return config.changed(PREFILL, "full-prefill-slots", because, full_prefill_max_req=min(slots, pool))
