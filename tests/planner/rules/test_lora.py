"""LoRA cases and their rounding (rules 4.3 and 5.2)."""

from __future__ import annotations

import pytest

from planner.modes import Runner
from planner.rules.lora import lora_cases, lora_map


@pytest.mark.parametrize(
    ("max_loras", "cases"),
    [
        (1, (1, 2)),
        (2, (1, 2, 3)),
        (3, (1, 2, 4)),
        (4, (1, 2, 4, 5)),
        (5, (1, 2, 4, 6)),
        (7, (1, 2, 4, 8)),
        (8, (1, 2, 4, 8, 9)),
        (16, (1, 2, 4, 8, 16, 17)),
    ],
)
def test_specialised_counts_are_powers_of_two_and_the_largest(max_loras: int, cases: tuple[int, ...]) -> None:
    for runner in (Runner.V1, Runner.V2):
        found = lora_cases(max_loras, specialize_active_lora=True, specialize_lora=True, runner=runner)
        assert found == (0, *cases)


@pytest.mark.parametrize(
    ("specialize_lora", "specialize_active", "v1", "v2"),
    [
        (True, False, (0, 5), (0, 5)),
        (True, True, (0, 1, 2, 4, 5), (0, 1, 2, 4, 5)),
        (False, False, (5,), (0, 5)),
        (False, True, (5,), (0, 5)),
    ],
)
def test_only_the_older_runner_lacks_graphs_without_adapters(
    specialize_lora: bool, specialize_active: bool, v1: tuple[int, ...], v2: tuple[int, ...]
) -> None:
    for runner, cases in ((Runner.V1, v1), (Runner.V2, v2)):
        assert cases == lora_cases(
            4, specialize_active_lora=specialize_active, specialize_lora=specialize_lora, runner=runner
        )


def test_without_lora_there_is_one_case() -> None:
    found = lora_cases(None, specialize_active_lora=True, specialize_lora=True, runner=Runner.V2)
    assert found == (0,)


def test_the_map_rounds_up_to_a_captured_case() -> None:
    assert lora_map((0, 1, 2, 4, 5)) == (0, 1, 2, 4, 4, 5)
    assert lora_map((0, 5)) == (0, 5, 5, 5, 5, 5)
    assert lora_map((0,)) == ()
