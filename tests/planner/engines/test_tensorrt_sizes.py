"""TensorRT-LLM's batch sizes: generated for each maximum, and filtered by what the engine can hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.engines.tensorrt_llm.sizes import generated_sizes, held_sizes, prefill_sizes
from tests.planner.engines.documents import sizes

BASE = "1, 2, 4, 8..128/8"
EXACT = "1..32, 64, 128"
#  maximum, with padding, with padding in older releases, without padding
LISTS = [
    (1, "1", "1", "1"),
    (4, "1, 2, 4", "1, 2, 4", "1..4"),
    (8, "1, 2, 4, 8", "1, 2, 4, 8", "1..8"),
    (20, "1, 2, 4, 8, 16, 20", "1, 2, 4, 8, 16, 20", "1..20"),
    (64, "1, 2, 4, 8..64/8", "1, 2, 4, 8..64/8", "1..32, 64"),
    (128, BASE, BASE, EXACT),
    (256, f"{BASE}, 192, 256", f"{BASE}, 256", f"{EXACT}, 256"),
    (512, f"{BASE}, 192..512/64", f"{BASE}, 256, 512", f"{EXACT}, 256, 512"),
    (2048, f"{BASE}, 192..2048/64", f"{BASE}, 256, 512, 1024, 2048", f"{EXACT}, 256, 512, 1024, 2048"),
]


@pytest.mark.parametrize(("maximum", "padded", "older", "exact"), LISTS)
def test_the_lists_of_the_nine_maxima(maximum: int, padded: str, older: str, exact: str) -> None:
    assert list(generated_sizes(maximum, padding=True, doubling=False)) == sizes(padded)
    assert list(generated_sizes(maximum, padding=True, doubling=True)) == sizes(older)
    assert list(generated_sizes(maximum, padding=False, doubling=False)) == sizes(exact)


def test_a_maximum_between_powers_of_two_takes_those_below_it() -> None:
    assert list(generated_sizes(300, padding=False, doubling=False))[-3:] == [128, 256, 300]
    assert list(generated_sizes(300, padding=True, doubling=True))[-3:] == [128, 256, 300]


@given(st.integers(1, 5000), st.booleans(), st.booleans())
def test_generated_sizes_ascend_to_the_maximum(maximum: int, padding: bool, doubling: bool) -> None:
    found = generated_sizes(maximum, padding=padding, doubling=doubling)
    assert list(found) == sorted(set(found))
    assert found[-1] == maximum


@pytest.mark.parametrize(
    ("asked", "limit", "padding", "held"),
    [
        (EXACT, 100, False, "1..32, 64"),
        (f"{BASE}, 192, 256", 100, True, "1, 2, 4, 8..96/8, 100"),
        (BASE, 200, True, BASE),
        (BASE, 128, True, BASE),
        ("8, 16", 4, True, "4"),
    ],
)
def test_the_engine_holds_no_size_beyond_its_own_maximum(
    asked: str, limit: int, padding: bool, held: str
) -> None:
    assert list(held_sizes(sizes(asked), limit, padding=padding)) == sizes(held)


def test_without_padding_nothing_is_left_of_sizes_that_are_all_too_large() -> None:
    assert held_sizes((8, 16), 4, padding=False) == ()
    assert held_sizes((8, 16), 0, padding=True) == ()


def test_prefill_sizes_are_cut_down_to_what_a_step_can_have() -> None:
    asked = (4096, 256, 512, 512, 9000)
    found = prefill_sizes(asked, max_num_tokens=8192, max_batch_size=2, max_seq_len=501)
    assert found == (256, 512, 1000)
    assert prefill_sizes(asked, max_num_tokens=8192, max_batch_size=2, max_seq_len=None) == (256, 512, 4096)
    assert prefill_sizes(asked, max_num_tokens=8192, max_batch_size=2, max_seq_len=1) == ()
