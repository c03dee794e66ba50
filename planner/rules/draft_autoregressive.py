"""The draft families of EAGLE, EAGLE3 and MTP: one pass over the target's batch, then token by token.

Source: vLLM 0.33, target-dependent speculators and multi-module MTP of the V2 runner (rules 7.7).
The captured graphs know no adapters and no microbatches.
"""

from __future__ import annotations

from collections.abc import Iterable

from planner.documents.plan import DRAFT, ResolvedFamily
from planner.modes import CUDAGraphMode
from planner.rules.family import Family, draft_graphs, mode_decision
from planner.rules.settings import Settings

DRAFT_PREFILL = "draft_prefill"
DRAFT_DECODE = "draft_decode"


def autoregressive_families(settings: Settings, target: ResolvedFamily) -> tuple[Family, ...]:
    """The first pass over the target's batch, and the passes of one token a request after it.

    Under a schedule the latter are captured anew for each number of draft tokens; with a single
    draft token there are none.
    """
    prefill = _families(
        (DRAFT_PREFILL,),
        settings,
        target,
        mode=target.cudagraph_mode,
        query_len=settings.query_len,
        because="the first draft pass runs on the target's batch, in the target's mode",
    )
    mode = _decode_only(target.cudagraph_mode)
    because = "later draft passes have one token a request and are never recorded in pieces"
    names = _decode_names(settings)
    decodes = _families(names, settings, target, mode=mode, query_len=1, because=because)
    return (*prefill, *decodes)


def multi_module_family(settings: Settings, target: ResolvedFamily) -> Family:
    """The one family of a draft with several MTP modules; pieces do not tell the modules apart."""
    mode = target.cudagraph_mode
    because = "the modules run on the target's batch, in the target's mode"
    if settings.breakable_because is None and mode is not CUDAGraphMode.NONE:
        mode = _decode_only(mode)
        because = "compiled pieces are not told apart by MTP module, so only decode is recorded"
    (family,) = _families(
        (DRAFT,), settings, target, mode=mode, query_len=settings.query_len, because=because
    )
    return family


def _decode_only(mode: CUDAGraphMode) -> CUDAGraphMode:
    """What is left of ``mode`` where only uniform decode is recorded, and that as a whole."""
    if mode.decode_mode() is CUDAGraphMode.FULL:
        return CUDAGraphMode.FULL_DECODE_ONLY
    return CUDAGraphMode.NONE


def _decode_names(settings: Settings) -> tuple[str, ...]:
    if not settings.follows_schedule:
        return (DRAFT_DECODE,) if settings.num_speculative_tokens > 1 else ()
    lengths = [query_len - 1 for query_len in settings.query_lens if query_len > 2]
    return tuple(f"{DRAFT_DECODE}_{length}" for length in lengths)


def _families(
    names: Iterable[str],
    settings: Settings,
    target: ResolvedFamily,
    *,
    mode: CUDAGraphMode,
    query_len: int,
    because: str,
) -> tuple[Family, ...]:
    """Families that have the same graphs and share their entries."""
    query_lens = settings.query_lens if query_len > 1 else (1,)
    resolved, entries = draft_graphs(target, mode=mode, query_len=query_len, query_lens=query_lens)
    return tuple(
        Family(
            name=name,
            resolved=resolved,
            entries=entries,
            decisions=(mode_decision(name, mode, "draft-mode", because),),
        )
        for name in names
    )
