"""Regions: finding addresses in them, and naming what models and buffers keep."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import define
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from executor.materialize.regions import AddressMap, Region, static_regions, static_tensors

CPU = torch.device("cpu")


@st.composite
def regions(draw: Any) -> list[Region]:
    """Regions that do not overlap, in any order, some of them end to end."""
    at, found = draw(st.integers(0, 10)), []
    for number in range(draw(st.integers(0, 6))):
        at += draw(st.integers(0, 5))
        size = draw(st.integers(1, 6))
        found.append(Region(str(number), at, size))
        at += size
    return list(draw(st.permutations(found)))


@given(regions(), st.lists(st.integers(-5, 80)))
def test_an_address_is_found_where_it_lies(known: list[Region], addresses: list[int]) -> None:
    by_hand = [
        next((number for number, each in enumerate(known) if each.start <= address < each.end), -1)
        for address in addresses
    ]
    places = AddressMap(known)
    assert places.find(torch.tensor(addresses, dtype=torch.int64)).tolist() == by_hand
    assert places.starts().tolist() == [each.start for each in known]


def test_addresses_of_both_halves_of_all_memory_are_told_apart() -> None:
    places = AddressMap([Region("high", 0x7FFF_0000_0000, 1 << 32)])
    words = torch.tensor([0x7FFF_0000_0000, -1, -(1 << 63), 0x7FFF_FFFF_FFFF, 1 << 62])
    assert places.find(words).tolist() == [0, -1, -1, 0, -1]


def test_tensors_of_one_storage_are_one_region_by_the_first_name() -> None:
    base = torch.zeros(4, 6)
    found = static_regions({"whole": base, "row": base[1], "same": base.view(24), "other": torch.zeros(2)})
    assert [each.name for each in found] == ["whole", "other"]
    assert found[0] == Region("whole", base.data_ptr(), 96, "float32 [4, 6] [6, 1]")


def test_a_part_stands_for_its_whole_storage() -> None:
    base = torch.zeros(4, 6)
    (found,) = static_regions({"column": base[:, 2]})
    assert (found.start, found.num_bytes) == (base.data_ptr(), 96)
    assert found.layout == "float32 [4] [6]"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(4), torch.zeros(4, dtype=torch.int32)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(2, 3), torch.zeros(3, 2).T),
    ],
)
def test_other_types_shapes_and_strides_are_other_layouts(one: torch.Tensor, other: torch.Tensor) -> None:
    (first,), (second,) = static_regions({"x": one}), static_regions({"x": other})
    assert first.layout != second.layout


def test_empty_tensors_have_no_region() -> None:
    assert static_regions({"none": torch.zeros(0, 4)}) == ()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 3, bias=False)
        self.again = self.inner
        self.register_buffer("table", torch.zeros(2), persistent=False)


@define
class Holder:
    rows: list[torch.Tensor]
    inner: dict[str, Any]
    label: str = "label"
    count: int = 3
    nothing: None = None


class Ordinary:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.method = tensor.add


def test_static_tensors_are_named_by_where_they_are_found() -> None:
    rows = [torch.zeros(1), torch.zeros(2)]
    table = torch.zeros(3)
    found = static_tensors(
        CPU,
        model=Tied(),
        holder=Holder(rows, {"deep": (Ordinary(table), {"none": None})}),
        single=rows[0],
    )
    assert sorted(found) == [
        "holder.inner.deep.0.tensor",
        "holder.rows.0",
        "holder.rows.1",
        "model.inner.weight",
        "model.table",
        "single",
    ]
    assert found["holder.inner.deep.0.tensor"] is table
    assert found["single"] is rows[0]


def test_tensors_elsewhere_are_not_static() -> None:
    assert static_tensors(CPU, it=[torch.zeros(2, device="meta")]) == {}


def test_holders_that_hold_each_other_are_walked_to_an_end() -> None:
    one, other = Ordinary(torch.zeros(1)), Ordinary(torch.zeros(1))
    one.other, other.other = other, one  # type: ignore[attr-defined]
    found = static_tensors(CPU, one=one)
    assert found["one.tensor"] is one.tensor
    assert found["one.other.tensor"] is other.tensor
    assert len(static_regions(found)) == 2


def test_names_are_the_same_in_another_process() -> None:
    names = [list(static_tensors(CPU, model=Tied(), more=[torch.zeros(1)])) for _ in range(2)]
    assert names[0] == names[1]
