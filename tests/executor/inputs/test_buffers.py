"""Input buffers: sized by the plan, filled in place, padded to the end."""

from __future__ import annotations

import pytest
import torch

from executor.errors import InputError
from executor.inputs.batch import ScheduledBatch
from executor.inputs.buffers import InputBuffers, family_limits
from planner import load_plan
from planner.errors import FamilyError

BATCH = ScheduledBatch(((7, 8, 9), (5,)), (2, 6), ((1, 2), (3, 4)))


@pytest.mark.parametrize(
    ("path", "family", "limits"),
    [
        ("plans/small-decode.yaml", "target", (64, 64)),
        ("plans/dflash-prologue.yaml", "draft", (4, 32)),
        ("plans/compiled/qwen3-8b-dflash.yaml", "target", (128, 512)),
        ("plans/compiled/qwen3-8b-dflash.yaml", "draft", (32, 512)),
    ],
)
def test_buffers_hold_the_largest_entry_of_the_family(
    path: str, family: str, limits: tuple[int, int]
) -> None:
    plan = load_plan(path)
    assert family_limits(plan, family) == limits
    buffers = InputBuffers.for_plan(plan, family, "cpu")
    assert (len(buffers.seq_lens), len(buffers.input_ids)) == limits
    larger = InputBuffers.for_plan(plan, family, "cpu", max_num_tokens=1000)
    assert len(larger.positions) == 1000


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(FamilyError):
        family_limits(load_plan("plans/small-decode.yaml"), "draft")


def test_a_batch_is_written_and_everything_behind_it_is_padding() -> None:
    buffers = InputBuffers(4, 8, "cpu")
    for tensor in (buffers.input_ids, buffers.positions, buffers.query_start_loc, buffers.seq_lens):
        tensor.fill_(99)
    buffers.write(BATCH)
    assert buffers.input_ids.tolist() == [7, 8, 9, 5, 0, 0, 0, 0]
    assert buffers.positions.tolist() == [2, 3, 4, 6, 0, 0, 0, 0]
    assert buffers.query_start_loc.tolist() == [0, 3, 4, 4, 4]
    assert buffers.seq_lens.tolist() == [5, 7, 0, 0]
    assert buffers.is_padding.tolist() == [False] * 4 + [True] * 4


def test_addresses_stay_and_types_are_those_that_graphs_read() -> None:
    buffers = InputBuffers(4, 8, "cpu")
    before = [
        tensor.data_ptr() for tensor in (buffers.input_ids, buffers.query_start_loc, buffers.is_padding)
    ]
    buffers.write(BATCH)
    buffers.write(ScheduledBatch((), (), ()))
    after = [tensor.data_ptr() for tensor in (buffers.input_ids, buffers.query_start_loc, buffers.is_padding)]
    assert before == after
    assert buffers.input_ids.dtype is buffers.positions.dtype is torch.int64
    assert buffers.query_start_loc.dtype is buffers.seq_lens.dtype is torch.int32
    assert buffers.is_padding.all()
    assert not buffers.seq_lens.any()


@pytest.mark.parametrize("sizes", [(1, 8), (4, 3)])
def test_a_batch_beyond_the_buffers_is_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="2 requests and 4 tokens"):
        InputBuffers(*sizes, "cpu").write(BATCH)
