"""A plan's families as they would be under other settings, so that a fix is tried before it is told.

Only what capture sizes decide is planned anew, for batches without adapters and whole steps: the
entries of one LoRA case are those of the others, and microbatches follow the whole step's graphs.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, frozen

from planner.descriptors import MAX_GRAPH_TOKENS
from planner.documents.plan import TARGET, Plan, ResolvedFamily
from planner.engines.shared import lookup_runner
from planner.errors import PlanError
from planner.modes import CUDAGraphMode, Runner
from planner.rules.encoder import ENCODER
from planner.rules.entries import EntryRequest, family_entries
from planner.rules.entries_v1 import v1_family_entries
from planner.rules.rounding import rounded_to_query_len
from planner.rules.schedule import Tier
from planner.rules.settings import dropped_schedule
from planner.rules.sizes import CaptureSizes, SizeRequest, capture_sizes, size_request
from planner.verify.coverage import TooManyRangesError, cover
from planner.verify.domain import batch_classes, domain_of, scheduled_tiers
from planner.verify.ladders import rules_of
from planner.verify.survey import CaseGroup, Survey

TRIED_SHAPES = 1 << 14
"""Up to how many pairs of a size and a query length settings are tried out."""


@frozen
class Settings:
    """What the graphs of a plan follow from: its capture sizes, and the target's mode."""

    sizes: SizeRequest
    mode: CUDAGraphMode


def settings_behind(plan: Plan) -> Settings | None:
    """What the graphs of ``plan`` followed from, ``None`` where the plan does not say."""
    resolved = plan.resolved.get(TARGET)
    if resolved is None or not resolved.max_num_seqs or not resolved.max_num_batched_tokens:
        return None
    if TARGET not in plan.graphs or lookup_runner(plan, TARGET) is not None:
        return None
    try:
        request = size_request(
            plan.deployment,
            max_num_seqs=resolved.max_num_seqs,
            max_num_batched_tokens=resolved.max_num_batched_tokens,
            query_len=resolved.decode_query_len or 1,
            tiers=_tiers_of_sizes(plan, resolved),
        )
    except PlanError:  # Nothing compiles the deployment of a plan that was written by hand.
        return None
    return Settings(request, resolved.cudagraph_mode)


def _tiers_of_sizes(plan: Plan, resolved: ResolvedFamily) -> tuple[Tier, ...]:
    """The query lengths that the capture sizes are made for; V1 makes no graphs of the scheduled ones."""
    speculative = plan.deployment.speculative
    if resolved.runner is Runner.V1 and speculative is not None:
        ranks = plan.deployment.parallel.data_parallel_size or 1
        dropped, _ = dropped_schedule(speculative.method, ranks, Runner.V1)
        if not dropped and (scheduled := scheduled_tiers(plan, resolved.max_num_seqs)):
            return scheduled
    return domain_of(plan, TARGET).tiers


def tried(surveys: Sequence[Survey], settings: Settings) -> tuple[Survey, ...] | None:
    """The surveys of a plan's families under other settings.

    ``None`` where the engine refuses them, or where they ask for more graphs than are tried out.
    """
    sizes = _sizes_in_force(settings, surveys[0].plan.resolved[TARGET].runner)
    if sizes is None or sizes.maximum > MAX_GRAPH_TOKENS:
        return None
    found = []
    for survey in surveys:
        if survey.resolved is None or survey.family == ENCODER:
            continue
        if len(sizes.sizes) * max(len(survey.resolved.uniform_query_lens), 1) > TRIED_SHAPES:
            return None
        try:
            found.append(_tried_family(survey, survey.resolved, settings, sizes))
        except TooManyRangesError:
            return None
    return tuple(found)


def _sizes_in_force(settings: Settings, runner: Runner) -> CaptureSizes | None:
    """The capture sizes as ``runner`` takes them, ``None`` if the engine refuses the settings."""
    try:
        sizes = capture_sizes(settings.sizes)
        if runner is Runner.V1 and settings.mode.decode_mode() is CUDAGraphMode.FULL:
            return rounded_to_query_len(sizes, settings.sizes.query_len)
    except PlanError:
        return None
    return sizes


def _tried_family(survey: Survey, before: ResolvedFamily, settings: Settings, sizes: CaptureSizes) -> Survey:
    """``survey`` with the entries that follow from ``sizes``."""
    budget = settings.sizes.max_num_batched_tokens
    resolved = evolve(
        before,
        cudagraph_mode=settings.mode if survey.family == TARGET else before.cudagraph_mode,
        cudagraph_capture_sizes=sizes.sizes,
        max_cudagraph_capture_size=sizes.maximum,
        max_num_batched_tokens=budget,
        # A block draft lets fewer requests run where the budget is small.
        max_num_active_seqs=before.max_num_active_seqs if budget == before.max_num_batched_tokens else None,
        lora_cases=(0,),
        microbatching=None,
    )
    wanted = EntryRequest(
        mode=resolved.cudagraph_mode,
        sizes=sizes.sizes,
        max_num_seqs=settings.sizes.max_num_seqs,
        decode_query_len=resolved.decode_query_len or 1,
        query_lens=resolved.uniform_query_lens,
        varlen_decode=survey.family == TARGET and survey.plan.deployment.verifies_adaptively,
    )
    entries = (v1_family_entries if resolved.runner is Runner.V1 else family_entries)(wanted)
    plan = evolve(
        survey.plan,
        graphs={survey.family: entries},
        resolved={**survey.plan.resolved, survey.family: resolved},
    )
    domain = domain_of(plan, survey.family)
    ladders = rules_of(plan, survey.family).ladders(entries, 0)
    coverages = tuple(cover(batches, ladders) for batches in batch_classes(domain, entries))
    only = CaseGroup((0,), (0,), (0,), (), {0: entries}, coverages)
    return Survey(plan, survey.family, domain, (only,))
