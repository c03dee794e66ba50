"""Decoding by data-parallel ranks: each has prompts of its own, and all of them run every step."""

from __future__ import annotations

from typing import Any

from executor.dispatching import table_of
from executor.distributed.steps import StepAgreement, dummy_batch
from executor.draft_runner import DraftRunner
from executor.inputs.batch import ScheduledBatch
from executor.runner import TargetRunner
from executor.speculate import SpeculativeDecoder
from executor.steps import StepOutput
from planner.batches import Agreement, Batch
from planner.dispatch import DispatchTable
from planner.dispatch_v1 import V1DispatchTable


class DataParallelDecoder(SpeculativeDecoder):
    """Decodes this rank's prompts in steps that ``steps`` agrees on.

    A rank that has finished takes part with dummy runs until every rank has. The drafter pads to the
    requests that the target's step agreed on. ``options`` are those of SpeculativeDecoder.
    """

    def __init__(
        self, target: TargetRunner, draft: DraftRunner | None, steps: StepAgreement, **options: Any
    ) -> None:
        super().__init__(target, draft, **options)
        self.steps = steps

    @property
    def table(self) -> DispatchTable | V1DispatchTable:
        """Over the graphs that the target has."""
        target = self.target
        if target.manager is None:
            return table_of(target.plan, target.family, ())
        return target.manager.table

    def goes_on(self, has_work: bool) -> bool:
        """Until no rank has requests left."""
        return self.steps.any_has_work(has_work)

    def run_target(self, batch: ScheduledBatch) -> tuple[StepOutput, int | None]:
        """The target's step as all ranks agreed on it."""
        agreement = self.agree(batch)
        return self.target.step(batch, agreement), agreement.num_reqs

    def agree(self, batch: ScheduledBatch) -> Agreement:
        """What this rank runs for ``batch``."""
        query_len = 1 if self.draft is None else self.draft.query_len
        return self.steps.agree(self.table, described(batch, query_len))


def described(batch: ScheduledBatch, query_len: int) -> Batch:
    """What a rank tells the others about ``batch``; without requests it brings a dummy run.

    ``query_len`` is how many tokens a request has that only decodes.
    """
    if not batch.num_reqs:
        return dummy_batch(query_len)
    count = batch.uniform_token_count
    return Batch(
        num_reqs=batch.num_reqs,
        num_tokens=batch.num_tokens,
        uniform_token_count=count,
        max_query_len=batch.max_query_len,
        num_active_loras=batch.num_active_loras,
        allow_ubatching=True,
        uniform_decode=count == query_len,
    )
