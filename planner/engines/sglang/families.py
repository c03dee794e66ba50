"""SGLang's families of graphs: the target's prefill and decode, and those of its drafts.

A breakable graph is recorded in pieces between the operations that stay eager; it is PIECEWISE
here. Prefill is captured before decode, drafts after the target, each largest first.
Source: SGLang 0.5.23, runners of the target and of its speculative workers (rules 9 to 11).
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from planner.documents.deployment import Deployment
from planner.documents.plan import DRAFT, TARGET, Lookup, ResolvedFamily
from planner.engines.lookup_families import decode_entries, mode_of_phases, prefill_entries, with_sizes
from planner.engines.sglang.captures import Captured, decode_captures, decode_sizes, prefill_captures
from planner.engines.sglang.config import BREAKABLE, DECODE, DISABLED, FULL
from planner.engines.sglang.settings import SEQS_FIELD, Settings
from planner.engines.sglang.speculation import DRAFT_WITH_PREFILL, Speculation
from planner.modes import CUDAGraphMode, Runner
from planner.rules.draft_autoregressive import DRAFT_DECODE, DRAFT_PREFILL
from planner.rules.family import Family

DRAFT_EXTEND = "draft_extend"

MAX_PREFILL_FACTOR = 2
"""A prefill graph has at most so many times the tokens of the batch."""

NO_DRAFT_EXTEND = "SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH"

_MODES = {FULL: CUDAGraphMode.FULL, BREAKABLE: CUDAGraphMode.PIECEWISE, DISABLED: CUDAGraphMode.NONE}


def families_of(deployment: Deployment, settings: Settings) -> tuple[Family, ...]:
    """All families of the server.

    Raises:
        PlanError: one of them would have no graph, of which the server dies at its start, or more
            than a plan takes.
    """
    prefill = prefill_captures(settings)
    target = _target(settings, decode_captures(settings), prefill)
    if settings.speculation is None:
        return (target,)
    drafts = _drafts(deployment, settings, settings.speculation, target.resolved, prefill)
    return (target, *drafts)


def _target(settings: Settings, decode: Captured, prefill: Captured) -> Family:
    config, length = settings.config, settings.query_len
    decode_mode = _MODES[config.decode.backend]
    prefill_mode = _MODES[config.prefill.backend] if prefill.sizes else CUDAGraphMode.NONE
    slots = config.prefill.full_prefill_max_req if config.prefill.backend == FULL else None
    entries = (
        *prefill_entries(prefill_mode, prefill.sizes, slots=slots),
        *decode_entries(decode_mode, decode.sizes, length, fields=_size_fields(settings)),
    )
    resolved = ResolvedFamily(
        runner=Runner.SGLANG,
        cudagraph_mode=mode_of_phases(decode_mode, prefill_mode),
        max_num_seqs=settings.request_pool,
        max_num_batched_tokens=settings.chunked_prefill_size if settings.chunked_prefill_size > 0 else None,
        data_parallel_size=settings.layout.attn_dp,
        decode_query_len=length,
        uniform_query_lens=(length,) if decode.sizes else (),
        lookup=Lookup(
            pads_decode=settings.padding,
            max_prefill_factor=MAX_PREFILL_FACTOR,
            max_prefill_seq_len=_longest_prefill(settings),
            shares_decode_size=settings.layout.gathers_for_mlp,
        ),
    )
    return Family(
        name=TARGET,
        resolved=with_sizes(resolved, entries),
        entries=entries,
        decisions=(*decode.decisions, *prefill.decisions),
    )


def _size_fields(settings: Settings) -> tuple[str, str]:
    return settings.config.path(DECODE, "bs"), SEQS_FIELD


def _longest_prefill(settings: Settings) -> int | None:
    phase = settings.config.prefill
    bounds = [bound for bound in (phase.max_context_size, phase.max_seq_len) if bound is not None]
    return min(bounds, default=None)


def _drafts(
    deployment: Deployment,
    settings: Settings,
    speculation: Speculation,
    target: ResolvedFamily,
    prefill: Captured,
) -> Iterator[Family]:
    """The families of the draft; a server without decode graphs makes none of decode for it either."""
    if speculation.method in DRAFT_WITH_PREFILL and prefill.sizes:
        mode = _MODES[settings.config.prefill.backend]
        slots = settings.config.prefill.full_prefill_max_req if mode is CUDAGraphMode.FULL else None
        entries = prefill_entries(mode, prefill.sizes, slots=slots)
        resolved = evolve(target, cudagraph_mode=mode, uniform_query_lens=())
        yield Family(name=DRAFT_PREFILL, resolved=with_sizes(resolved, entries), entries=entries)
    if settings.config.decode.backend == DISABLED:
        return
    if speculation.is_eagle:
        if speculation.num_steps > 1:
            yield _draft(settings, target, DRAFT_DECODE, speculation.topk, width=1)
        if not _is_set(deployment, NO_DRAFT_EXTEND):
            yield _draft(settings, target, DRAFT_EXTEND, speculation.verify_len, width=1)
    elif speculation.method == "dflash" and settings.layout.attn_dp == 1:
        yield _draft(settings, target, DRAFT, speculation.verify_len, width=speculation.verify_len)
    elif speculation.method == "dspark":
        yield _dspark_draft(settings, target, speculation.verify_len - 1)


def _draft(
    settings: Settings,
    target: ResolvedFamily,
    name: str,
    length: int,
    *,
    width: int,
    alignment: int | None = None,
) -> Family:
    """A draft's decode graphs for ``length`` tokens a request; ``width`` is what is aligned."""
    aligned = settings.alignment if alignment is None else alignment
    sizes = decode_sizes(settings, name, width=width, alignment=aligned)
    mode = _MODES[settings.config.decode.backend]
    entries = decode_entries(mode, sizes, length, fields=_size_fields(settings))
    resolved = evolve(
        target,
        cudagraph_mode=mode_of_phases(mode, CUDAGraphMode.NONE),
        max_num_batched_tokens=None,
        decode_query_len=length,
        uniform_query_lens=(length,),
    )
    return Family(name=name, resolved=with_sizes(resolved, entries), entries=entries)


def _dspark_draft(settings: Settings, target: ResolvedFamily, length: int) -> Family:
    """The dense draft of DSpark, whose batches are each rank's own."""
    alignment = settings.layout.alignment(gathers_for_mlp=False)
    alone = evolve(target, lookup=evolve(target.lookup or Lookup(), shares_decode_size=False))
    return _draft(settings, alone, DRAFT, length, width=length, alignment=alignment)


def _is_set(deployment: Deployment, name: str) -> bool:
    return deployment.engine.env.get(name, "").strip().casefold() in ("1", "true", "yes", "y")
