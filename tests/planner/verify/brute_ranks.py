"""Whether two data-parallel ranks can part, by trying every pair of batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement

from planner import BatchError, CUDAGraphMode, Plan, column, decide
from planner.batches import Batch
from planner.documents.plan import TARGET
from tests.planner.verify.brute import Tried, domain


def parting_pair(plan: Plan) -> tuple[Batch, Batch] | None:
    """Two batches whose ranks run different modes or padded tokens, None where there are none."""
    table = plan.dispatch_table(TARGET)
    # What each rank tells of a batch is the same in every pair: asked for once, not once a pair.
    told = [(batch, column(table, batch)) for batch in sorted(set(_batches(plan)), key=repr)]
    for (one, ones), (other, others) in combinations_with_replacement(told, 2):
        pair = (one, other)
        try:
            answers = [decide(table, (ones, others), rank, batch) for rank, batch in enumerate(pair)]
        except BatchError:
            return pair
        graphs = {
            (answer.descriptor.cg_mode, answer.descriptor.num_tokens)
            if answer.descriptor.cg_mode is not CUDAGraphMode.NONE
            else None
            for answer in answers
        }
        if len(graphs) > 1:
            return pair
    return None


def _batches(plan: Plan) -> Iterator[Batch]:
    """Every batch that a rank may bring, the dummy ones of an idle rank with LoRA included."""
    resolved, lora = plan.resolved[TARGET], plan.deployment.lora
    for tried in domain(plan):
        yield from _both(plan, tried, tried.num_active_loras)
        if lora is not None and max(resolved.lora_cases) and tried.num_active_loras == 0:
            yield from _both(plan, tried, (lora.max_loras or 1) + 1)


def _both(plan: Plan, tried: Tried, num_active_loras: int) -> Iterator[Batch]:
    """The batch whole, and where steps are cut at all, the batch that may be."""
    resolved = plan.resolved[TARGET]
    for allow_ubatching in (False, True) if resolved.microbatching else (False,):
        yield Batch(
            num_reqs=tried.num_reqs,
            num_tokens=tried.num_tokens,
            uniform_token_count=tried.query_len,
            max_query_len=tried.longest,
            num_active_loras=num_active_loras,
            allow_ubatching=allow_ubatching,
            uniform_decode=tried.query_len == max(resolved.uniform_query_lens),
        )
