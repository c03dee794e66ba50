"""Numbers whose unit is fixed, written with one."""

from __future__ import annotations

import pytest

from planner import DocumentError, load_deployment
from planner.documents.units import GIB, SECONDS, SHARE, in_unit

HEADER = "apiVersion: graphplan/v1\nkind: Deployment\n"


@pytest.mark.parametrize(
    ("setting", "key", "what"),
    [
        ("capture: {memory_budget: 1MiB}", "capture.memory_budget", "the unit is GiB: write 0.000977"),
        ("capture: {memory_budget: 2 GiB}", "capture.memory_budget", "the unit is GiB: write 2"),
        ("capture: {memory_budget: much}", "capture.memory_budget", "found 'much'; the unit is GiB"),
        ("capture: {memory_budget: [1]}", "capture.memory_budget", "found a list; the unit is GiB"),
        ("capture: {startup_budget: 2min}", "capture.startup_budget", "the unit is seconds: write 120"),
        ("capture: {max_padding: 5%}", "capture.max_padding", "the unit is a share from 0 to 1: write 0.05"),
        ("device: {memory_gib: 80GB}", "device.memory_gib", "the unit is GiB: write 74.5"),
    ],
)
def test_a_number_with_a_unit_is_told_in_the_unit_of_its_field(setting: str, key: str, what: str) -> None:
    with pytest.raises(DocumentError) as caught:
        load_deployment(HEADER + setting)
    assert caught.value.key == key
    assert caught.value.line == 3
    assert str(caught.value).endswith(what)


@pytest.mark.parametrize(
    ("text", "unit", "number"),
    [
        ("1kib", GIB, "0.000000954"),
        ("1.5 g", GIB, "1.5"),
        ("1tb", GIB, "931"),
        ("250ms", SECONDS, "0.25"),
        ("2h", SECONDS, "7200"),
        ("12 percent", SHARE, "0.12"),
        ("3 parsecs", SECONDS, None),
        ("1e3s", SECONDS, None),
        ("-1s", SECONDS, None),
    ],
)
def test_what_is_suggested_is_a_plain_number(text: str, unit: str, number: str | None) -> None:
    assert in_unit(text, unit) == number
