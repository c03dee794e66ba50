"""The same answers as verification gives, by trying every batch of the domain: slow, and plain."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from planner import CUDAGraphMode, DispatchTable, Plan, PlanEntry
from planner.descriptors import BatchExecutionDescriptor
from planner.dispatch_v1 import V1DispatchTable
from planner.documents.plan import TARGET


@frozen
class Tried:
    """One batch of the domain; ``query_len`` is None unless all requests are decoding that many."""

    query_len: int | None
    num_reqs: int
    num_tokens: int
    longest: int | None
    num_active_loras: int
    num_ubatches: int = 1


def widest_batches(plan: Plan) -> dict[int, int]:
    """The largest batch of each scheduled query length."""
    resolved, speculative = plan.resolved[TARGET], plan.deployment.speculative
    seqs = resolved.max_num_seqs or 0
    schedule = speculative and speculative.num_speculative_tokens_per_batch_size
    if not schedule or len(resolved.uniform_query_lens) < 2:
        return dict.fromkeys(resolved.uniform_query_lens, seqs)
    widest = {}
    drafts = 0
    for num_reqs in range(1, seqs + 1):
        for first, last, number in schedule:
            if first <= num_reqs <= last:
                drafts = min(number, speculative.num_speculative_tokens or 0) if speculative else 0
        widest[drafts + 1] = num_reqs
    return widest


def domain(plan: Plan) -> Iterator[Tried]:
    """Every batch that the server may form for the target."""
    resolved, deployment = plan.resolved[TARGET], plan.deployment
    seqs = min(resolved.max_num_seqs or 0, resolved.max_num_active_seqs or 10**9)
    budget, model_len = resolved.max_num_batched_tokens or 0, deployment.model.max_model_len or 10**9
    widest = widest_batches(plan)
    max_loras = (deployment.lora.max_loras or 1) if deployment.lora and max(resolved.lora_cases) else 0
    for active in range(max_loras + 1):
        for num_reqs in range(1, seqs + 1):
            for length, most in widest.items():
                if num_reqs <= most and length <= model_len and num_reqs * length <= budget:
                    yield Tried(length, num_reqs, num_reqs * length, length, active)
            for num_tokens in range(num_reqs, min(budget, num_reqs * model_len) + 1):
                yield Tried(None, num_reqs, num_tokens, None, active)
                for longest in range(1, min(max(widest), model_len) + 1):
                    if num_reqs + longest - 1 <= num_tokens <= num_reqs * longest:
                        yield Tried(None, num_reqs, num_tokens, longest, active)


def microbatched(plan: Plan) -> Iterator[Tried]:
    """Every batch that the ranks cut where all bring the same."""
    resolved = plan.resolved[TARGET]
    microbatching = resolved.microbatching
    if microbatching is None:
        return
    for tried in domain(plan):
        if tried.query_len is None and tried.longest is not None:
            continue
        decode = tried.query_len is not None and tried.query_len == max(resolved.uniform_query_lens)
        threshold = microbatching.decode_token_threshold if decode else microbatching.prefill_token_threshold
        if tried.num_tokens >= threshold:
            yield Tried(
                tried.query_len,
                tried.num_reqs,
                tried.num_tokens,
                None,
                tried.num_active_loras,
                microbatching.num_ubatches,
            )


def by_descriptor(plan: Plan) -> dict[BatchExecutionDescriptor, PlanEntry]:
    """The entry of each descriptor, the first where several have the same."""
    return {entry.execution_descriptor: entry for entry in reversed(plan.entries(TARGET))}


def serving(
    entries: dict[BatchExecutionDescriptor, PlanEntry],
    table: DispatchTable | V1DispatchTable,
    tried: Tried,
) -> PlanEntry | None:
    """The entry that dispatch answers with, None where the batch runs eagerly."""
    if isinstance(table, V1DispatchTable):
        return table.entry_for(
            tried.num_tokens,
            uniform_decode=tried.query_len is not None,
            num_active_loras=tried.num_active_loras,
        )
    found = table.dispatch(
        num_reqs=tried.num_reqs,
        num_tokens=tried.num_tokens,
        uniform_token_count=tried.query_len,
        num_active_loras=tried.num_active_loras,
        max_query_len=tried.longest,
        num_ubatches=tried.num_ubatches,
    )
    if found.cg_mode is CUDAGraphMode.NONE:
        return None
    if tried.num_ubatches > 1 and 2 * tried.num_tokens < found.num_tokens:
        return None
    return entries[found]


def largest_mixed_entry(plan: Plan) -> int:
    """The size of the largest entry that any batch may run in."""
    return max(
        (
            entry.num_tokens
            for entry in plan.entries(TARGET)
            if entry.uniform_token_count is None and entry.max_query_len is None
        ),
        default=0,
    )


@frozen
class Answers:
    """What a trial of the whole domain finds.

    ``decode_holes`` are (query length, requests, case, PIECEWISE size or None), ``mixed_holes``
    (requests, tokens, case).
    """

    unreached: frozenset[PlanEntry]
    decode_holes: frozenset[tuple[int, int, int, int | None]]
    mixed_holes: frozenset[tuple[int, int, int]]


def answers(plan: Plan) -> Answers:
    """Everything, by trial."""
    resolved, table = plan.resolved[TARGET], plan.dispatch_table(TARGET)
    is_v1 = isinstance(table, V1DispatchTable)
    mode = resolved.cudagraph_mode
    entries = by_descriptor(plan)
    largest = resolved.max_cudagraph_capture_size or largest_mixed_entry(plan)
    reached, decode_holes, mixed_holes = set(), set(), set()
    for tried in domain(plan):
        entry = serving(entries, table, tried)
        if entry is not None:
            reached.add(entry)
        case = table.captured_case(tried.num_active_loras)
        decode = tried.query_len is not None and mode.decode_mode() is CUDAGraphMode.FULL
        if decode and (entry is None or entry.mode is not CUDAGraphMode.FULL):
            pieces = None if entry is None else entry.num_tokens
            decode_holes.add((tried.query_len or 0, tried.num_reqs, case, pieces))
        mixed = tried.query_len is None and tried.longest is None and tried.num_tokens <= largest
        if mixed and entry is None and mode.mixed_mode() is not CUDAGraphMode.NONE:
            mixed_holes.add((tried.num_reqs, tried.num_tokens, case))
    if not is_v1:
        for tried in microbatched(plan):
            entry = serving(entries, table, tried)
            if entry is not None:
                reached.add(entry)
    unreached = frozenset(entry for entry in plan.entries(TARGET) if entry not in reached)
    return Answers(unreached, frozenset(decode_holes), frozenset(mixed_holes))
