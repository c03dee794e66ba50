"""Microbatches: the parts of a uniform step together hold what the step holds."""

from __future__ import annotations

import pytest

from executor.inputs.batch import ScheduledBatch
from executor.inputs.buffers import InputBuffers
from executor.inputs.microbatches import Microbatches


def parts_of(padded: int, real: int, length: int, num_ubatches: int = 2) -> tuple[Microbatches, InputBuffers]:
    buffers = InputBuffers(8, 8 * length, "cpu")
    buffers.write(ScheduledBatch(((1,) * length,) * real, (10,) * real, ((1,),) * real))
    parts = Microbatches.of(padded, padded * length, num_ubatches, "cpu")
    parts.refresh(buffers)
    return parts, buffers


def test_a_decode_step_is_cut_between_requests() -> None:
    parts, _ = parts_of(8, 8, 1)
    assert [(part.request_start, part.request_stop) for part in parts.slices] == [(0, 4), (4, 8)]
    assert [buffer.query_start_loc.tolist() for buffer in parts.buffers] == [[0, 1, 2, 3, 4]] * 2
    assert [buffer.seq_lens.tolist() for buffer in parts.buffers] == [[11] * 4] * 2


def test_a_request_that_is_cut_through_ends_in_the_earlier_part_where_that_does() -> None:
    parts, _ = parts_of(3, 3, 4)
    first, second = parts.buffers
    assert [(part.request_start, part.request_stop) for part in parts.slices] == [(0, 2), (1, 3)]
    assert first.query_start_loc.tolist() == [0, 4, 6]
    assert first.seq_lens.tolist() == [14, 12]
    assert second.query_start_loc.tolist() == [0, 2, 6]
    assert second.seq_lens.tolist() == [14, 14]


@pytest.mark.parametrize("real", [0, 1, 4, 5])
def test_padding_requests_have_no_sequence_in_any_part(real: int) -> None:
    parts, _ = parts_of(8, real, 2)
    lengths = [length for buffer in parts.buffers for length in buffer.seq_lens.tolist()]
    assert lengths == [12] * real + [0] * (8 - real)
