"""Explain: which graph serves a batch, what else was looked at, and which decisions led there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from planner.describe import counted, label
from planner.descriptors import PlanEntry, fits
from planner.dispatch import DispatchTable
from planner.dispatch_v1 import V1DispatchTable
from planner.documents.plan import TARGET, AttentionGroup, Decision, Plan, ResolvedFamily
from planner.engines.explain import lookup_notes, lookup_obstacles
from planner.engines.lookup import LookupTable
from planner.engines.shared import SECTIONS
from planner.modes import AttentionSupport, CUDAGraphMode, Runner
from planner.queries import Answer, Query, Table, ask, settled

SHAPING = (
    "compilation.mode",
    "compilation.cudagraph_mode",
    "compilation.cudagraph_capture_sizes",
    "compilation.max_cudagraph_capture_size",
    "scheduler.max_num_seqs",
    "scheduler.max_num_batched_tokens",
    "speculative.num_speculative_tokens_per_batch_size",
    "engine.runner",
)
"""Settings that decide which graphs every family has; so does whatever is decided on attention."""


@frozen
class Candidate:
    """An entry that dispatch looks at, and why it cannot serve the batch (nothing: it can)."""

    entry: PlanEntry
    obstacles: tuple[str, ...]


@frozen(kw_only=True)
class Explanation:
    """Why a batch runs as it does.

    ``answer`` is what dispatch returns, ``entry`` the graph behind it, ``None`` where the batch runs
    eagerly, unpadded. ``candidates`` are in the order in which dispatch looks at them; the first
    without obstacles serves. ``lora_case`` is the captured number of adapters that the batch's own
    stands for. ``limiting_groups`` are the attention groups that set the family's support. ``notes``
    are further facts about this batch.
    """

    family: str
    runner: Runner
    query: Query
    answer: Answer
    entry: PlanEntry | None
    candidates: tuple[Candidate, ...]
    lora_case: int
    attention_support: AttentionSupport | None
    limiting_groups: tuple[AttentionGroup, ...]
    notes: tuple[str, ...]
    decisions: tuple[Decision, ...]

    @property
    def padding_tokens(self) -> int:
        """Tokens that the graph computes beyond those of the batch."""
        return 0 if self.entry is None else self.entry.num_tokens - self.query.num_tokens

    @property
    def padding_share(self) -> float:
        """The part of the graph's tokens that is padding, from 0 to 1."""
        return 0.0 if self.entry is None else self.padding_tokens / self.entry.num_tokens

    @property
    def padding_reqs(self) -> int | None:
        """Requests beyond those of the batch; ``None`` where the graph pads no requests."""
        if self.entry is None or self.entry.num_reqs is None or self.query.num_reqs is None:
            return None
        return self.entry.num_reqs - self.query.num_reqs


def explain(plan: Plan, query: Query, family: str = TARGET) -> Explanation:
    """What ``family`` of ``plan`` does with the batch, and why.

    Raises:
        FamilyError: the plan has no such family.
        BatchError: no runner can form the batch.
    """
    table = plan.dispatch_table(family)
    query = settled(query, table)
    answer = ask(table, query)
    mode = answer[0] if isinstance(answer, tuple) else answer.cg_mode
    candidates = tuple(
        Candidate(entry, tuple(_obstacles(entry, query, table)))
        for entry in table.candidates(query.num_tokens, query.num_active_loras)
    )
    resolved = plan.resolved.get(family)
    served = bool(mode)
    return Explanation(
        family=family,
        runner=_runner(table),
        query=query,
        answer=answer,
        entry=next(c.entry for c in candidates if not c.obstacles) if served else None,
        candidates=candidates,
        lora_case=table.captured_case(query.num_active_loras),
        attention_support=resolved.attention_support if resolved else None,
        limiting_groups=resolved.limiting_groups if resolved else (),
        notes=(*(() if served else _why_eager(table, query, candidates)), *_beyond_limits(query, resolved)),
        decisions=tuple(decision for decision in plan.decisions if _shapes(decision, family)),
    )


def _runner(table: Table) -> Runner:
    if isinstance(table, LookupTable):
        return table.runner
    return Runner.V1 if isinstance(table, V1DispatchTable) else Runner.V2


def _obstacles(entry: PlanEntry, query: Query, table: Table) -> Iterator[str]:
    if isinstance(table, LookupTable):
        return lookup_obstacles(entry, query, table)
    if isinstance(table, V1DispatchTable):
        return _v1_obstacles(entry, query, table.family.mode)
    return _v2_obstacles(entry, query, table.captured_case(query.num_active_loras))


def _v2_obstacles(entry: PlanEntry, query: Query, lora_case: int) -> Iterator[str]:
    """Facts in which the batch does not fit.

    An entry fits the batch that it was captured for, so each fact of ``query`` is tried alone, in
    place of the entry's own: what decides is ``fits``.
    """
    own = {
        "num_reqs": entry.num_reqs or 0,
        "num_tokens": entry.num_tokens,
        "uniform_token_count": entry.uniform_token_count,
        "num_active_loras": entry.num_active_loras,
        "max_query_len": entry.max_query_len,
        "num_ubatches": entry.num_ubatches,
    }
    facts = (
        (
            "uniform_token_count",
            query.uniform_token_count,
            f"uniform token count {entry.uniform_token_count}",
        ),
        ("max_query_len", query.max_query_len, f"query length up to {entry.max_query_len}"),
        ("num_tokens", query.num_tokens, counted(entry.num_tokens, "token")),
        ("num_reqs", query.num_reqs or 0, counted(entry.num_reqs or 0, "request")),
        ("num_active_loras", lora_case, counted(entry.num_active_loras, "LoRA")),
        ("num_ubatches", query.num_ubatches, f"num_ubatches {entry.num_ubatches}"),
    )
    for name, value, captured in facts:
        if not fits(entry, **{**own, name: value}):  # type: ignore[arg-type]
            yield f"{captured}, the batch has {'none' if value is None else value}"


def _v1_obstacles(entry: PlanEntry, query: Query, mode: CUDAGraphMode) -> Iterator[str]:
    count, has_decode_graphs = entry.uniform_token_count, mode.separate_routine()
    if not mode:
        yield "the mode is NONE"
    elif count is not None and not query.uniform_decode:
        yield f"uniform token count {count}, the batch mixes lengths"
    elif count is not None and not has_decode_graphs:
        yield f"uniform token count {count}, but {mode} has no graphs apart for decode"
    elif count is None and entry.mode is CUDAGraphMode.FULL and query.uniform_decode and has_decode_graphs:
        yield f"mixed batches, but {mode} has graphs apart for decode"


def _why_eager(table: Table, query: Query, candidates: Sequence[Candidate]) -> Iterator[str]:
    """Why no entry serves the batch, and which larger one could have."""
    if not table.entries:
        yield "the family has no graphs"
        return
    if isinstance(table, LookupTable):
        yield from lookup_notes(query, table)
        return
    if not candidates:
        case = table.captured_case(query.num_active_loras)
        of_case = [entry.num_tokens for entry in table.entries if entry.num_active_loras == case]
        with_loras = f" with {counted(case, 'LoRA')}" if case else ""
        if not of_case:
            yield f"no graph was captured{with_loras or ' without LoRA'}"
        elif max(of_case) < query.num_tokens:
            yield f"the largest graph{with_loras} has {counted(max(of_case), 'token')}"
        else:
            yield f"no graph{with_loras} has the size that the batch is padded to"
    larger = _larger_that_fits(table, query)
    if larger is not None:
        yield f"{label(larger)} would fit, but dispatch looks at the nearest size only"


def _larger_that_fits(table: Table, query: Query) -> PlanEntry | None:
    if not isinstance(table, DispatchTable):
        return None
    case = table.captured_case(query.num_active_loras)
    fitting = [entry for entry in table.entries if not any(_v2_obstacles(entry, query, case))]
    return min(fitting, key=lambda entry: entry.num_tokens, default=None)


def _beyond_limits(query: Query, resolved: ResolvedFamily | None) -> Iterator[str]:
    """Limits of the scheduler that such a batch breaks: its server never forms it."""
    if resolved is None:
        return
    # Where decode is looked up by requests, the token budget is that of prefill.
    budget = None if resolved.lookup and query.uniform_decode else resolved.max_num_batched_tokens
    limits = (
        (query.num_reqs, resolved.max_num_seqs, "requests", "max_num_seqs"),
        (query.num_tokens, budget, "tokens", "max_num_batched_tokens"),
    )
    for value, limit, noun, name in limits:
        if value is not None and limit is not None and value > limit:
            yield f"no step has {value} {noun}: {name} is {limit}"


def _shapes(decision: Decision, family: str) -> bool:
    path = decision.path
    return (
        path in SHAPING
        or path.startswith((f"resolved.{family}.", *(f"{section}." for section in SECTIONS)))
        or path.split(".")[-1].startswith("attention_")
    )
