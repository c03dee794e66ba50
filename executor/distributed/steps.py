"""A step of data-parallel ranks: one small all-reduce, and the planner's own decision from it.

Each rank fills in its column of a matrix that is zero elsewhere. The sum is every rank's column as it
was told: no rank's numbers are ever added to another's. What follows is ``planner.decide``, which the
verifier of plans calls as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from attrs import define, field

from executor.distributed.ranks import Ranks
from planner.agreement import column, decide
from planner.batches import Agreement, Batch
from planner.dispatch import DispatchTable
from planner.dispatch_v1 import V1DispatchTable

WHAT = "step agreement"


@define(eq=False)
class StepAgreement:
    """Agrees on the steps of one data-parallel rank with the ``ranks`` of its group.

    Every rank calls ``agree`` for every step: one without requests brings an empty batch, or a dummy
    batch of one request, with which a step of the others may keep its graph.
    """

    ranks: Ranks
    _matrices: dict[int, tuple[torch.Tensor, Any]] = field(factory=dict, init=False)

    def agree(self, table: DispatchTable | V1DispatchTable, batch: Mapping[str, Any] | object) -> Agreement:
        """What this rank runs; ``table`` is over the entries that every rank has captured.

        A rank by itself agrees with nobody, and no message is sent.

        Raises:
            BatchError: no rank forms such a batch.
            RanksError: a rank ended, came late or did not answer in time.
        """
        own = column(table, batch)
        if self.ranks.size == 1:
            return decide(table, (own,), 0, batch)
        matrix, numbers = self._matrix(len(own))
        numbers.fill(0)
        numbers[self.ranks.rank] = own
        self.ranks.add_up(matrix, WHAT)
        return decide(table, numbers.tolist(), self.ranks.rank, batch)

    def any_has_work(self, has_work: bool) -> bool:
        """Whether some rank has requests left, in which case all of them go on.

        Raises:
            RanksError: as ``agree``.
        """
        if self.ranks.size == 1:
            return has_work
        flags = torch.zeros(self.ranks.size, dtype=torch.int64)
        flags[self.ranks.rank] = int(has_work)
        self.ranks.add_up(flags, "agreement on the end")
        return any(flags.tolist())

    def _matrix(self, num_rows: int) -> tuple[torch.Tensor, Any]:
        """The matrix of a runner whose columns have ``num_rows`` numbers, and NumPy's view of it.

        Each rank's column lies in one piece. NumPy reads and writes a few numbers sooner than PyTorch.
        """
        if num_rows not in self._matrices:
            matrix = torch.zeros(self.ranks.size, num_rows, dtype=torch.int64)
            self._matrices[num_rows] = matrix, matrix.numpy()
        return self._matrices[num_rows]


def dummy_batch(query_len: int = 1) -> Batch:
    """What a rank without requests brings where the others are to keep their graphs: one request."""
    return Batch(
        num_reqs=1,
        num_tokens=query_len,
        uniform_token_count=query_len,
        max_query_len=query_len,
        uniform_decode=True,
        allow_ubatching=True,
        allow_skip_drafts=True,
    )
