"""Small plans, most of them wrong in some way: compiled ones, and ones that a careless hand changed."""

from __future__ import annotations

import random

from attrs import evolve

from planner import CUDAGraphMode, Deployment, Plan, PlanEntry
from planner.documents.deployment import LoraSection, ModelSection, SchedulerSection, SpeculativeSection
from planner.documents.plan import TARGET, Microbatching, ResolvedFamily
from planner.modes import Runner
from planner.rules.entries import EntryRequest, family_entries
from planner.rules.entries_v1 import v1_family_entries
from planner.rules.lora import lora_cases
from planner.rules.schedule import dense_schedule, tiers_of

FULL, PIECEWISE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE
MODES = [CUDAGraphMode.FULL_AND_PIECEWISE, CUDAGraphMode.FULL_DECODE_ONLY, FULL, PIECEWISE]


def random_plan(seed: int, runner: Runner = Runner.V2, *, ranks: int = 1) -> Plan:
    """The plan of a seed: four in five have been changed by hand. With several ranks it is smaller."""
    draw = random.Random(seed)
    seqs, budget = draw.randint(1, 9), draw.randint(1, 45)
    if ranks > 1:
        seqs, budget = draw.randint(1, 3), draw.randint(1, 7)
    drafts = draw.choice([0, 0, 1, 2, 3])
    deployment = Deployment(
        model=ModelSection(max_model_len=draw.choice([None, None, 1, 3, 12])),
        scheduler=SchedulerSection(max_num_seqs=seqs, max_num_batched_tokens=budget),
        speculative=_speculative(draw, seqs, drafts, runner),
        lora=draw.choice([None, None, LoraSection(max_loras=draw.randint(1, 4 if ranks == 1 else 2))]),
    )
    resolved = _resolved(draw, deployment, drafts, runner, ranks)
    request = EntryRequest(
        mode=resolved.cudagraph_mode,
        sizes=resolved.cudagraph_capture_sizes,
        max_num_seqs=seqs,
        decode_query_len=drafts + 1,
        query_lens=resolved.uniform_query_lens,
        lora_cases=resolved.lora_cases,
        varlen_decode=runner is Runner.V2 and draw.random() < 0.2,
        microbatching=resolved.microbatching,
    )
    entries = list(v1_family_entries(request) if runner is Runner.V1 else family_entries(request))
    for _ in range(draw.choice([0, 1, 2, 4, 8])):
        _spoil(draw, entries, drafts + 1, request.max_num_seqs)
    return Plan(deployment=deployment, resolved={TARGET: resolved}, graphs={TARGET: tuple(entries)})


def _speculative(draw: random.Random, seqs: int, drafts: int, runner: Runner) -> SpeculativeSection | None:
    if not drafts:
        return None
    schedule = None
    if runner is Runner.V2 and draw.random() < 0.5:
        middle = draw.randint(1, seqs)
        schedule = ((1, middle, draw.randint(0, drafts)), (middle + 1, middle + 3, draw.randint(0, drafts)))
    return SpeculativeSection(
        method="mtp", num_speculative_tokens=drafts, num_speculative_tokens_per_batch_size=schedule
    )


def _resolved(
    draw: random.Random, deployment: Deployment, drafts: int, runner: Runner, ranks: int
) -> ResolvedFamily:
    seqs, budget = deployment.scheduler.max_num_seqs or 1, deployment.scheduler.max_num_batched_tokens or 1
    speculative, lora = deployment.speculative, deployment.lora
    lengths = (drafts + 1,)
    if speculative and speculative.num_speculative_tokens_per_batch_size:
        dense = dense_schedule(speculative.num_speculative_tokens_per_batch_size, seqs, drafts)
        lengths = tuple(tier.query_len for tier in tiers_of(dense))
    sizes = sorted({draw.randint(1, budget) for _ in range(draw.randint(0, 7))})
    if runner is Runner.V1:
        sizes = sorted({-(-size // lengths[0]) * lengths[0] for size in sizes})
    cases = lora_cases(
        lora.max_loras if lora else None,
        specialize_active_lora=draw.random() < 0.5,
        specialize_lora=draw.random() < 0.8,
        runner=runner,
    )
    cut = runner is Runner.V2 and draw.random() < 0.3
    return ResolvedFamily(
        runner=runner,
        cudagraph_mode=draw.choice(MODES),
        cudagraph_capture_sizes=tuple(sizes),
        max_cudagraph_capture_size=sizes[-1] if sizes else 0,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        max_num_active_seqs=draw.choice([None, None, draw.randint(1, seqs)]),
        data_parallel_size=ranks,
        decode_query_len=drafts + 1,
        uniform_query_lens=lengths,
        lora_cases=cases,
        microbatching=Microbatching(
            num_ubatches=2,
            decode_token_threshold=draw.randint(2, 9),
            prefill_token_threshold=draw.randint(2, 20),
        )
        if cut
        else None,
    )


def _spoil(draw: random.Random, entries: list[PlanEntry], query_len: int, seqs: int) -> None:
    """One careless change: an entry dropped, repeated, moved, altered or made up."""
    change = draw.choice(["drop", "repeat", "move", "alter", "alter", "make up", "make up"])
    if not entries or change == "make up":
        return entries.insert(draw.randint(0, len(entries)), _made_up(draw, query_len, seqs))
    place = draw.randrange(len(entries))
    entry = entries[place]
    if change == "drop":
        del entries[place]
    elif change == "repeat":
        entries.insert(draw.randint(0, len(entries)), entry)
    elif change == "move":
        entries.insert(draw.randint(0, len(entries) - 1), entries.pop(place))
    else:
        field = draw.choice(
            ["num_tokens", "num_reqs", "uniform_token_count", "max_query_len", "num_active_loras"]
        )
        value = draw.choice([entry.num_tokens, 1, 2, 3, 5, seqs])
        if field in ("uniform_token_count", "max_query_len") and draw.random() < 0.4:
            value = None
        entries[place] = evolve(entry, **{field: value})
    return None


def _made_up(draw: random.Random, query_len: int, seqs: int) -> PlanEntry:
    num_reqs = draw.randint(1, seqs + 1)
    mode = draw.choice([FULL, FULL, PIECEWISE])
    length = draw.choice([None, query_len, query_len, 1, 2])
    return PlanEntry(
        mode=mode,
        num_tokens=num_reqs * (length or draw.randint(1, 4)),
        num_reqs=num_reqs if mode is FULL else None,
        uniform_token_count=length if mode is FULL else None,
        max_query_len=draw.choice([None, None, None, query_len, 2]) if length is None else None,
        num_active_loras=draw.choice([0, 0, 0, 1, 3]),
        num_ubatches=draw.choice([1, 1, 1, 1, 2]),
    )
