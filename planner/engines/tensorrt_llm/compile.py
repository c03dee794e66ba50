"""TensorRT-LLM: deployment -> settings -> captured sizes -> the target's family.

Drafts run inside the target's graphs, as in the engine's one-model speculation.
Source: TensorRT-LLM's PyTorch backend as of its 1.3.0rc series, capture and keys of its graph
runner (rules 4 to 6).
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.descriptors import PlanEntry
from planner.documents.deployment import Deployment
from planner.documents.plan import TARGET, Decision, Finding, Lookup, ResolvedFamily, Severity
from planner.engines.compiled import Compiled
from planner.engines.lookup_families import decode_entries, mode_of_phases, prefill_entries, with_sizes
from planner.engines.tensorrt_llm.settings import (
    MAX_FIELD,
    PADDING_FIELD,
    PREFILL_SIZES_FIELD,
    SIZES_FIELD,
    Settings,
    settle,
)
from planner.engines.tensorrt_llm.sizes import held_sizes, prefill_sizes
from planner.modes import CUDAGraphMode, Runner
from planner.rules.family import Family


def compile_tensorrt_llm(deployment: Deployment) -> Compiled:
    """What a TensorRT-LLM server would capture.

    Raises:
        PlanError: the engine would refuse to start, or its graphs cannot be planned.
    """
    settings = settle(deployment)
    sizes: tuple[int, ...] = ()
    if settings.batch_sizes is not None:
        sizes = held_sizes(settings.batch_sizes, settings.limit, padding=settings.padding)
    prefill = prefill_sizes(
        settings.prefill_sizes,
        max_num_tokens=settings.max_num_tokens,
        max_batch_size=settings.max_batch_size,
        max_seq_len=settings.max_seq_len,
    )
    return Compiled(
        families=(_target(settings, sizes, prefill),),
        decisions=(*settings.decisions, *_filtered(settings, sizes, prefill)),
        findings=tuple(_findings(deployment, settings)),
    )


def _target(settings: Settings, sizes: tuple[int, ...], prefill: tuple[int, ...]) -> Family:
    decode = _decode_entries(settings, sizes)
    entries = (*prefill_entries(CUDAGraphMode.PIECEWISE, prefill), *decode)
    mode = mode_of_phases(
        CUDAGraphMode.FULL if decode else CUDAGraphMode.NONE,
        CUDAGraphMode.PIECEWISE if prefill else CUDAGraphMode.NONE,
    )
    lengths = {settings.query_len(settings.draft_len)}
    if settings.schedule:
        lengths = {settings.query_len(length) for length in (0, *(length for _, length in settings.schedule))}
    resolved = ResolvedFamily(
        runner=Runner.TENSORRT_LLM,
        cudagraph_mode=mode,
        max_num_seqs=settings.max_batch_size,
        max_num_batched_tokens=settings.max_num_tokens,
        max_num_active_seqs=settings.limit if 0 < settings.limit < settings.max_batch_size else None,
        data_parallel_size=settings.attention_ranks,
        decode_query_len=settings.query_len(settings.draft_len),
        uniform_query_lens=tuple(sorted(lengths)) if decode else (),
        lookup=Lookup(pads_decode=settings.padding, shares_decode_size=settings.attention_ranks > 1),
    )
    return Family(name=TARGET, resolved=with_sizes(resolved, entries), entries=entries)


def _decode_entries(settings: Settings, sizes: tuple[int, ...]) -> tuple[PlanEntry, ...]:
    """The graphs of each size and its draft length, both descending.

    Under a schedule the largest size is captured with the most drafts too, for its workspace.
    """
    pairs = {(size, settings.draft_len_of(size)) for size in sizes}
    if settings.schedule and sizes:
        pairs.add((sizes[-1], settings.draft_len))
    return tuple(
        entry
        for size, length in sorted(pairs, reverse=True)
        for entry in decode_entries(
            CUDAGraphMode.FULL, (size,), settings.query_len(length), fields=(SIZES_FIELD, MAX_FIELD)
        )
    )


def _filtered(settings: Settings, sizes: tuple[int, ...], prefill: tuple[int, ...]) -> Iterator[Decision]:
    asked = settings.batch_sizes
    if asked is not None and sizes != tuple(dict.fromkeys(asked)):
        because = f"a batch of decode has at most {settings.limit} requests"
        if settings.padding:
            because += ", for which padding wants a graph"
        yield Decision(path=SIZES_FIELD, became=list(sizes), rule="captured-sizes", because=because)
    if prefill != tuple(sorted(set(settings.prefill_sizes))):
        because = f"no step has more than {settings.max_num_tokens} tokens or more than its requests can have"
        yield Decision(
            path=PREFILL_SIZES_FIELD, became=list(prefill), rule="captured-prefill-sizes", because=because
        )


def _findings(deployment: Deployment, settings: Settings) -> Iterator[Finding]:
    yield Finding(
        severity=Severity.INFO,
        code="unpinned-rules",
        message="the rules are those read in TensorRT-LLM's sources of the 1.3.0rc series; no release was "
        "run to confirm them",
    )
    if deployment.speculative is not None:
        yield Finding(
            severity=Severity.INFO,
            code="assumed-draft-layout",
            message="the drafts are taken to be made inside the target's graphs, as in one-model speculation",
        )
    if settings.batch_sizes is not None and settings.attention_ranks > 1 and not settings.padding:
        yield Finding(
            severity=Severity.WARNING,
            code="ranks-need-equal-batches",
            message=f"without padding, the {settings.attention_ranks} ranks of data-parallel attention "
            "replay a graph only in steps in which all have the same number of requests",
            fix=f"{PADDING_FIELD}: true",
        )
    if deployment.lora is not None:
        yield Finding(
            severity=Severity.ERROR,
            code="unplanned-family",
            message="the server captures graphs with LoRA adapters, which this plan does not tell apart",
            fix="leave lora out",
        )
