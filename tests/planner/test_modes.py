"""The CUDA-graph modes and their predicates (vLLM 0.33, rules 1)."""

from __future__ import annotations

import pytest

from planner import CUDAGraphMode

NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL
DECODE_ONLY, BOTH = CUDAGraphMode.FULL_DECODE_ONLY, CUDAGraphMode.FULL_AND_PIECEWISE

#       mode         decode     mixed      has PIECEWISE  without     strongest  separate runtime
ROWS = [
    (NONE, NONE, NONE, False, NONE, NONE, False, True),
    (PIECEWISE, PIECEWISE, PIECEWISE, True, NONE, PIECEWISE, False, True),
    (FULL, FULL, FULL, False, FULL, FULL, False, True),
    (DECODE_ONLY, FULL, NONE, False, DECODE_ONLY, FULL, True, False),
    (BOTH, FULL, PIECEWISE, True, DECODE_ONLY, FULL, True, False),
]


@pytest.mark.parametrize(
    ("mode", "decode", "mixed", "pieces", "without", "strongest", "separate", "runtime"), ROWS
)
def test_predicates_are_the_engines(
    mode: CUDAGraphMode,
    decode: CUDAGraphMode,
    mixed: CUDAGraphMode,
    pieces: bool,
    without: CUDAGraphMode,
    strongest: CUDAGraphMode,
    separate: bool,
    runtime: bool,
) -> None:
    assert mode.decode_mode() is decode
    assert mode.mixed_mode() is mixed
    assert mode.has_piecewise_cudagraphs() is pieces
    assert mode.requires_piecewise_compilation() is pieces
    assert mode.without_piecewise() is without
    assert mode.max_cudagraph_mode() is strongest
    assert mode.has_full_cudagraphs() is (strongest is FULL)
    assert mode.separate_routine() is separate
    assert mode.is_valid_runtime_mode() is runtime
    assert bool(mode) is (mode is not NONE)
    for plain in (NONE, PIECEWISE, FULL):
        assert mode.has_mode(plain) is (plain in (decode, mixed))


def test_a_pair_is_no_runtime_mode_and_has_no_strength() -> None:
    assert CUDAGraphMode.valid_runtime_modes() == {NONE, PIECEWISE, FULL}
    assert [mode.strength for mode in (NONE, PIECEWISE, FULL)] == [0, 1, 2]
    with pytest.raises(ValueError, match="pair"):
        FULL.has_mode(BOTH)
    with pytest.raises(ValueError, match="pair"):
        _ = DECODE_ONLY.strength
