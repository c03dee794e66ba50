"""What SGLang fills in: the largest graph and the list of sizes of each phase.

Source: SGLang 0.5.23, DeepEP adjustment, memory settings and data parallelism of its arguments
(rules 3a, 4, 6 and 7).
"""

from __future__ import annotations

from attrs import frozen

from planner.descriptors import MAX_GRAPH_TOKENS
from planner.engines.sglang.config import BREAKABLE, DECODE, DISABLED, PREFILL, GraphConfig
from planner.engines.sglang.grids import ALIGNED, aligned_up, decode_grid, prefill_grid
from planner.engines.sglang.parallel import DEEPEP, Layout
from planner.engines.sglang.tiers import Tier
from planner.engines.shared import TOKENS_FIELD
from planner.errors import PlanError

DEEPEP_MAX = 2048
LIMIT_OF_STAGES = LIMIT_OF_MLA = 8192
LIMIT_OF_LLAMA_2 = 4096
"""Tokens of the largest prefill graph that is a default, over pipeline stages and with some models."""

RULE_LIST = "sizes-default"
RULE_MAX = "max-default"


@frozen(kw_only=True)
class PrefillLimits:
    """What bounds the default of the largest prefill graph."""

    chunked_prefill_size: int
    is_mla: bool
    is_llama_2: bool
    max_total_tokens: int | None


def with_deepep_sizes(config: GraphConfig, layout: Layout) -> GraphConfig:
    """Prefill sizes as multiples of what DeepEP's kernels take."""
    prefill = config.prefill
    if layout.a2a != DEEPEP or prefill.backend != BREAKABLE:
        return config
    sizes = prefill_grid(prefill.max_bs or DEEPEP_MAX) if prefill.bs is None else prefill.bs
    aligned = aligned_up(sizes, ALIGNED)
    if aligned == sizes:
        return config
    because = f"DeepEP takes multiples of {ALIGNED} tokens"
    return config.changed(PREFILL, "deepep-alignment", because, max_bs=aligned[-1], bs=aligned)


def with_decode_sizes(
    config: GraphConfig,
    tier: Tier,
    *,
    tier_because: str,
    tp: int,
    max_running_requests: int | None,
    speculative: bool,
    padding: bool,
) -> GraphConfig:
    """The decode phase with its largest graph and its list.

    Raises:
        PlanError: the list is empty, or no graph could be as small as the maximum.
    """
    decode = config.decode
    if decode.bs is not None:
        if not decode.bs:
            raise PlanError("the list is []; give at least one size", fields=(config.path(DECODE, "bs"),))
        because = "the largest of the listed sizes"
        return config.changed(DECODE, "max-from-sizes", because, max_bs=max(decode.bs))
    if decode.max_bs is None:
        maximum = tier.decode_max_bs(tp)
        because = f"{tier_because}, tensor_parallel_size {tp}"
        if max_running_requests is not None and max_running_requests < maximum:
            maximum = max_running_requests
            because = f"no more than max_num_seqs {max_running_requests}"
        config = config.changed(DECODE, RULE_MAX, because, max_bs=maximum)
    maximum = config.decode.max_bs or 0
    if maximum < 1 and decode.backend != DISABLED:
        raise PlanError(
            f"the largest decode graph has {maximum} requests, and the server dies at its capture; give at "
            "least 1, or turn the graphs off with sglang.disable_decode_cuda_graph",
            fields=(config.path(DECODE, "max_bs"),),
        )
    kind = "every size" if not padding else f"the {'speculative' if speculative else 'plain'} grid"
    sizes = decode_grid(maximum, speculative=speculative, padding=padding)
    return config.changed(DECODE, RULE_LIST, f"{kind} up to {maximum} requests", bs=sizes)


def with_prefill_sizes(config: GraphConfig, layout: Layout, limits: PrefillLimits) -> GraphConfig:
    """The prefill phase with its largest graph and its list, even where it is turned off.

    Raises:
        PlanError: the largest graph is larger than a plan takes.
    """
    if config.prefill.max_bs is None:
        maximum, because = _prefill_maximum(config, layout, limits)
        config = config.changed(PREFILL, RULE_MAX, because, max_bs=maximum)
    if config.prefill.bs is not None:
        return config
    maximum = config.prefill.max_bs or 0
    return config.changed(
        PREFILL, RULE_LIST, f"the prefill grid up to {maximum} tokens", bs=prefill_grid(maximum)
    )


def _prefill_maximum(config: GraphConfig, layout: Layout, limits: PrefillLimits) -> tuple[int, str]:
    stages = layout.pp > 1 and config.prefill.backend == BREAKABLE and not config.is_locked(PREFILL, "bs")
    maximum, because = limits.chunked_prefill_size, "the chunked prefill size"
    for applies, bound, why in (
        (limits.is_mla, LIMIT_OF_MLA, "models with latent attention"),
        (stages, LIMIT_OF_STAGES, "pipeline stages"),
        (limits.max_total_tokens is not None, limits.max_total_tokens or 0, "max_total_tokens"),
        (limits.is_llama_2, LIMIT_OF_LLAMA_2, "models named llama-2"),
    ):
        if applies and bound < maximum:
            maximum, because = bound, f"the limit of {why}"
    if maximum > MAX_GRAPH_TOKENS:
        raise PlanError(
            f"a prefill graph of {maximum} tokens is larger than a plan takes, which is {MAX_GRAPH_TOKENS}; "
            "lower the chunk, or give the maximum",
            fields=(TOKENS_FIELD, config.path(PREFILL, "max_bs")),
        )
    return maximum, because


def within_chunk_of_rank(config: GraphConfig, chunked_prefill_size: int, attn_dp: int) -> GraphConfig:
    """The prefill phase cut down to the chunk that one rank of data-parallel attention gets."""
    prefill = config.prefill
    maximum = prefill.max_bs or 0
    if attn_dp == 1 or prefill.backend == DISABLED or maximum <= chunked_prefill_size:
        return config
    if config.is_locked(PREFILL, "max_bs"):
        return config
    because = f"each of {attn_dp} ranks prefills {chunked_prefill_size} tokens at a time"
    config = config.changed(PREFILL, "chunk-of-rank", because, max_bs=chunked_prefill_size)
    if config.is_locked(PREFILL, "bs"):
        return config
    return config.changed(PREFILL, "chunk-of-rank", because, bs=prefill_grid(chunked_prefill_size))
