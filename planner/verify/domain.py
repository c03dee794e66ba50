"""The batches that a server may form for one family of graphs, as ranges of requests and tokens.

Verification decides everything over these: 1 to ``min(max_num_seqs, max_num_active_seqs)``
requests of 1 to ``max_model_len`` tokens each, together at most ``max_num_batched_tokens``, with 0
to ``max_loras`` active adapters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from attrs import evolve, frozen

from planner.descriptors import PlanEntry
from planner.documents.deployment import Deployment
from planner.documents.plan import DRAFT, TARGET, Lookup, Microbatching, Plan, ResolvedFamily
from planner.engines.lookup import is_decode, lookup_table
from planner.engines.shared import lookup_runner
from planner.methods import DFLASH_METHODS, method_kind
from planner.modes import CUDAGraphMode, Runner
from planner.rules.draft_autoregressive import DRAFT_DECODE
from planner.rules.schedule import Tier, dense_schedule, schedule_fault, tiers_of


@frozen(kw_only=True)
class BatchClass:
    """Batches that dispatch tells apart by nothing but their requests and tokens.

    A batch of R requests, at most ``most_reqs``, has ``R * shortest + surplus`` to ``R * longest``
    tokens, from ``first_tokens`` to ``last_tokens``. ``uniform_token_count``, ``max_query_len`` and
    ``num_ubatches`` are what dispatch is asked with; ``query_len`` is the tokens of each request
    where all have the same number.
    """

    query_len: int | None = None
    uniform_token_count: int | None = None
    max_query_len: int | None = None
    num_ubatches: int = 1
    shortest: int = 1
    surplus: int = 0
    longest: int
    most_reqs: int
    first_tokens: int = 1
    last_tokens: int

    def requests(self, first: int, last: int) -> tuple[int, int]:
        """The fewest and the most requests of batches of ``first`` to ``last`` tokens.

        Every number in between occurs too; without any batch the fewest exceed the most.
        """
        first, last = max(first, self.first_tokens), min(last, self.last_tokens)
        if first > last:
            return 1, 0
        return -(-first // self.longest), min(self.most_reqs, (last - self.surplus) // self.shortest)


@frozen(kw_only=True)
class Domain:
    """What bounds the batches of one family; counts are those of one rank.

    ``tiers`` are the scheduled query lengths, shortest first, each with its widest batch.
    ``has_mixed`` says that batches with prefill reach the family at all. ``max_num_seqs`` is
    ``None`` where a plan written by hand does not say it; the plan's largest entries are then taken
    as the bounds. ``lookup`` is there for engines other than vLLM, whose steps do not mix decode with
    prefill: ``max_mixed_tokens`` bounds prefill alone.
    """

    runner: Runner
    mode: CUDAGraphMode
    max_num_seqs: int | None
    max_num_reqs: int
    max_num_tokens: int
    max_model_len: int
    tiers: tuple[Tier, ...]
    max_loras: int
    microbatchings: tuple[Microbatching, ...] = ()
    has_mixed: bool = True
    lookup: Lookup | None = None
    max_mixed_tokens: int | None = None

    @property
    def decode_query_len(self) -> int:
        """Tokens of the longest decode request; 1 where nothing tells."""
        return max((tier.query_len for tier in self.tiers), default=1)

    @property
    def last_tokens(self) -> int:
        """Tokens of the largest batch."""
        return min(self.max_num_tokens, self.max_num_reqs * self.max_model_len)

    @property
    def last_mixed_tokens(self) -> int:
        """Tokens of the largest batch that is no uniform decode."""
        return min(self.last_tokens, self.max_mixed_tokens or self.last_tokens)


def domain_of(plan: Plan, family: str) -> Domain:
    """The domain of ``family``, from what was resolved for it or else from its entries."""
    entries, deployment = plan.entries(family), plan.deployment
    if (runner := lookup_runner(plan, family)) is not None:
        return lookup_domain(plan, family, runner)
    resolved = plan.resolved.get(family) or _unresolved(entries)
    scheduler = deployment.scheduler
    max_num_seqs = resolved.max_num_seqs or scheduler.max_num_seqs
    tiers = _tiers(plan, family, resolved, max_num_seqs)
    max_num_tokens = resolved.max_num_batched_tokens or scheduler.max_num_batched_tokens
    if not max_num_tokens:
        decode = (tier.query_len * tier.max_num_reqs for tier in tiers)
        max_num_tokens = max((*decode, *(entry.num_tokens for entry in entries)), default=0) or 1
    active = resolved.max_num_active_seqs or scheduler.max_num_active_seqs
    return Domain(
        runner=resolved.runner,
        mode=resolved.cudagraph_mode,
        max_num_seqs=max_num_seqs,
        max_num_reqs=min(bound for bound in (max_num_seqs, active, max_num_tokens) if bound),
        max_num_tokens=max_num_tokens,
        max_model_len=deployment.model.max_model_len or max_num_tokens,
        tiers=tiers,
        max_loras=_max_loras(deployment, resolved),
        microbatchings=_microbatchings(resolved, entries, known=family in plan.resolved),
        has_mixed=family == TARGET or resolved.cudagraph_mode.mixed_mode() is not CUDAGraphMode.NONE,
    )


def lookup_domain(plan: Plan, family: str, runner: Runner) -> Domain:
    """The domain of a family whose decode is looked up by requests, whatever tokens those have."""
    entries, deployment = plan.entries(family), plan.deployment
    resolved = plan.resolved.get(family) or _unresolved(entries)
    seqs = resolved.max_num_seqs or max((entry.num_reqs or 1 for entry in entries), default=1)
    reqs = min(seqs, resolved.max_num_active_seqs or seqs)
    tiers = _lookup_tiers(deployment, resolved, entries, reqs)
    largest = max((entry.num_tokens for entry in entries if not is_decode(entry)), default=0)
    mixed = resolved.max_num_batched_tokens or largest or 1
    most = max((mixed, *(tier.query_len * tier.max_num_reqs for tier in tiers)))
    return Domain(
        runner=runner,
        mode=resolved.cudagraph_mode,
        max_num_seqs=resolved.max_num_seqs,
        max_num_reqs=reqs,
        max_num_tokens=most,
        max_model_len=deployment.model.max_model_len or most,
        tiers=tiers,
        max_loras=_max_loras(deployment, resolved),
        has_mixed=largest > 0,
        lookup=lookup_table(plan, family, runner).lookup,
        max_mixed_tokens=mixed,
    )


def _lookup_tiers(
    deployment: Deployment, resolved: ResolvedFamily, entries: Iterable[PlanEntry], num_reqs: int
) -> tuple[Tier, ...]:
    """The query lengths of decode, each with its widest batch."""
    lengths = set(resolved.uniform_query_lens) or {
        entry.uniform_token_count for entry in entries if entry.uniform_token_count is not None
    }
    widest = dict.fromkeys(lengths, num_reqs)
    section = deployment.tensorrt_llm
    if section is not None and section.speculative_config is not None:
        from planner.engines.tensorrt_llm.settings import widest_batches

        scheduled = widest_batches(section, num_reqs)
        widest = {length: min(num_reqs, scheduled.get(length, num_reqs)) for length in lengths}
    return tuple(Tier(length, widest[length]) for length in sorted(widest))


def batch_classes(domain: Domain, entries: Iterable[PlanEntry]) -> tuple[BatchClass, ...]:
    """The classes of batches that ``entries`` can tell apart."""
    uniform = [_uniform(domain, tier) for tier in domain.tiers]
    mixed = [_mixed(domain)] if domain.has_mixed else []
    if domain.runner is Runner.V1:
        # V1 never tells the longest query, and only where decode has a routine of its own, the count.
        alone = domain.mode.separate_routine()
        keyed = (evolve(one, max_query_len=None) for one in uniform)
        return (*(one if alone else evolve(one, uniform_token_count=None) for one in keyed), *mixed)
    bounds = {entry.max_query_len for entry in entries if entry.max_query_len is not None}
    return (
        *uniform,
        *mixed,
        *(_ragged(domain, bounds) if bounds else ()),
        *(
            _microbatched(domain, one, microbatching)
            for microbatching in domain.microbatchings
            for one in (*uniform, *mixed)
        ),
    )


def _uniform(domain: Domain, tier: Tier) -> BatchClass:
    """Decode with ``tier.query_len`` tokens in every request."""
    length = tier.query_len
    most = min(tier.max_num_reqs, domain.max_num_reqs, domain.max_num_tokens // length)
    if length > domain.max_model_len:
        most = 0
    return BatchClass(
        query_len=length,
        uniform_token_count=length,
        max_query_len=length,
        shortest=length,
        longest=length,
        most_reqs=most,
        last_tokens=most * length,
    )


def _mixed(domain: Domain) -> BatchClass:
    """Some request is in prefill, so neither a common nor a longest decode length is told."""
    return BatchClass(
        longest=domain.max_model_len, most_reqs=domain.max_num_reqs, last_tokens=domain.last_mixed_tokens
    )


def _ragged(domain: Domain, bounds: Iterable[int]) -> Iterator[BatchClass]:
    """Decode of unequal lengths, by ranges of the longest between the bounds of the entries."""
    longest_of_all = min(domain.decode_query_len, domain.max_model_len)
    below = 0
    for longest in sorted({min(bound, longest_of_all) for bound in bounds} | {longest_of_all}):
        yield BatchClass(
            max_query_len=longest,
            surplus=below,
            longest=longest,
            most_reqs=domain.max_num_reqs,
            last_tokens=min(domain.max_num_tokens, domain.max_num_reqs * longest),
        )
        below = longest


def _microbatched(domain: Domain, whole: BatchClass, microbatching: Microbatching) -> BatchClass:
    """The batches of ``whole`` that are cut where all ranks bring the same (rules 6.1)."""
    decode = whole.query_len is not None and whole.query_len == domain.decode_query_len
    threshold = microbatching.decode_token_threshold if decode else microbatching.prefill_token_threshold
    return evolve(
        whole, max_query_len=None, num_ubatches=microbatching.num_ubatches, first_tokens=max(threshold, 1)
    )


def _unresolved(entries: Sequence[PlanEntry]) -> ResolvedFamily:
    """What a family written by hand amounts to."""
    return ResolvedFamily(
        runner=Runner.V2,
        cudagraph_mode=_mode_of(entries),
        lora_cases=tuple(sorted({entry.num_active_loras for entry in entries})),
    )


def _mode_of(entries: Sequence[PlanEntry]) -> CUDAGraphMode:
    full = [entry for entry in entries if entry.mode is CUDAGraphMode.FULL]
    if not full:
        return CUDAGraphMode.PIECEWISE if entries else CUDAGraphMode.NONE
    if len(full) < len(entries):
        return CUDAGraphMode.FULL_AND_PIECEWISE
    mixed = any(entry.uniform_token_count is None and entry.max_query_len is None for entry in full)
    return CUDAGraphMode.FULL if mixed else CUDAGraphMode.FULL_DECODE_ONLY


def _tiers(plan: Plan, family: str, resolved: ResolvedFamily, max_num_seqs: int | None) -> tuple[Tier, ...]:
    """The scheduled query lengths of ``family``, each with its widest batch."""
    entries = plan.entries(family)
    lengths = set(resolved.uniform_query_lens)
    scheduled = {tier.query_len: tier.max_num_reqs for tier in scheduled_tiers(plan, max_num_seqs)}
    follows_schedule = lengths == scheduled.keys()
    if resolved.decode_query_len and (not lengths or _is_block_draft(plan, family)):
        # A block draft has one length, however many of its tokens the schedule lets be verified.
        lengths = {resolved.decode_query_len}
    if not lengths:
        lengths = {entry.uniform_token_count for entry in entries if entry.uniform_token_count} or {1}
    widest = dict.fromkeys(lengths, max_num_seqs) if max_num_seqs else _widest_entries(entries, lengths)
    drafting = {length - 1: num_reqs for length, num_reqs in scheduled.items() if length > 1}
    # Captured anew for each number of draft tokens, and run only where that many are drafted.
    decode_passes = {f"{DRAFT_DECODE}_{draft_tokens}": most for draft_tokens, most in drafting.items()}
    if family in decode_passes:
        widest = dict.fromkeys(lengths, decode_passes[family])
    elif follows_schedule and lengths == scheduled.keys():
        widest = scheduled
    elif follows_schedule and drafting:
        widest = dict.fromkeys(lengths, max(drafting.values()))
    return tuple(Tier(length, widest[length]) for length in sorted(widest))


def _is_block_draft(plan: Plan, family: str) -> bool:
    speculative = plan.deployment.speculative
    return family == DRAFT and speculative is not None and method_kind(speculative.method) in DFLASH_METHODS


def _widest_entries(entries: Iterable[PlanEntry], lengths: Iterable[int]) -> dict[int, int]:
    """Requests of the widest FULL entry for decode of each length."""
    widest: dict[int | None, int] = {}
    for entry in entries:
        if entry.mode is CUDAGraphMode.FULL:
            count = entry.uniform_token_count
            widest[count] = max(widest.get(count, 0), entry.num_reqs or 0)
    return {length: max(widest.get(length, 0), widest.get(None, 0)) for length in lengths}


def scheduled_tiers(plan: Plan, max_num_seqs: int | None) -> tuple[Tier, ...]:
    """What the schedule of draft tokens asks for; none without one that the engine takes."""
    speculative = plan.deployment.speculative
    schedule = speculative.num_speculative_tokens_per_batch_size if speculative else None
    draft_tokens = speculative.num_speculative_tokens if speculative else None
    if schedule is None or not draft_tokens or not max_num_seqs or schedule_fault(schedule):
        return ()
    return tiers_of(dense_schedule(schedule, max_num_seqs, draft_tokens))


def _max_loras(deployment: Deployment, resolved: ResolvedFamily) -> int:
    if max(resolved.lora_cases, default=0) == 0:
        return 0
    if deployment.lora is None:
        return max(resolved.lora_cases)
    return deployment.lora.max_loras or 1


def _microbatchings(
    resolved: ResolvedFamily, entries: Iterable[PlanEntry], *, known: bool
) -> tuple[Microbatching, ...]:
    if known:
        return (resolved.microbatching,) if resolved.microbatching else ()
    return tuple(
        Microbatching(num_ubatches=number, decode_token_threshold=1, prefill_token_threshold=1)
        for number in sorted({entry.num_ubatches for entry in entries} - {1})
    )
