"""Marking gaps: every call is preceded by a mark, and computes what it does without."""

from __future__ import annotations

import torch

from executor.materialize.gaps import MarkedGaps
from executor.materialize.native import NativeCode
from executor.materialize.plain import PlainCode


def test_every_call_is_marked_and_computes_the_same() -> None:
    marks: list[int] = []
    inputs = torch.arange(6.0).view(2, 3)
    expected = torch.cat([inputs * 2, inputs], dim=1).sum()
    with MarkedGaps(lambda: marks.append(len(marks))):
        found = torch.cat([inputs * 2, inputs], dim=1).sum()
    assert torch.equal(found, expected)
    assert len(marks) == 3


def test_either_half_marks_without_harm(native: NativeCode, plain: PlainCode) -> None:
    inputs = torch.arange(6.0)
    for half in (native, plain):
        with MarkedGaps(half.mark_stack):
            assert (inputs * 2).sum() == 30
