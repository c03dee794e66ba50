"""V1's keys and their capture order (rules 4.3, 4.4, 4.7 and 11.1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import BatchDescriptor, CUDAGraphMode
from planner.documents.plan import Microbatching
from planner.rules.entries import EntryRequest
from planner.rules.entries_v1 import v1_family_entries

MODES = {
    "NONE": CUDAGraphMode.NONE,
    "PIECEWISE": CUDAGraphMode.PIECEWISE,
    "FULL": CUDAGraphMode.FULL,
    "FDO": CUDAGraphMode.FULL_DECODE_ONLY,
    "FAP": CUDAGraphMode.FULL_AND_PIECEWISE,
}
SPECIALIZED = (0, 1, 2, 4, 5)


def request(
    mode: str,
    sizes: tuple[int, ...],
    max_num_seqs: int,
    query_len: int = 1,
    lora_cases: tuple[int, ...] = (0,),
    microbatching: Microbatching | None = None,
) -> EntryRequest:
    return EntryRequest(
        mode=MODES[mode],
        sizes=sizes,
        max_num_seqs=max_num_seqs,
        decode_query_len=query_len,
        query_lens=(query_len,),
        lora_cases=lora_cases,
        microbatching=microbatching,
    )


@pytest.mark.parametrize("cases", [(0,), SPECIALIZED])
@pytest.mark.parametrize("mode", MODES)
def test_each_mode_has_a_key_of_its_kind_for_every_size_and_lora_case(
    mode: str, cases: tuple[int, ...]
) -> None:
    entries = v1_family_entries(request(mode, (1, 8), 8, lora_cases=cases))
    of_mode = [str(entry.mode) for entry in entries]
    every = 2 * len(cases)
    assert of_mode.count("PIECEWISE") == (every if mode in ("PIECEWISE", "FAP") else 0)
    assert of_mode.count("FULL") == (every if mode in ("FULL", "FDO", "FAP") else 0)


@pytest.mark.parametrize(
    ("mode", "keys"),
    [
        ("NONE", []),
        ("PIECEWISE", [BatchDescriptor(16), BatchDescriptor(4)]),
        ("FULL", [BatchDescriptor(16, 8), BatchDescriptor(4, 4)]),
        ("FDO", [BatchDescriptor(16, 4, True), BatchDescriptor(4, 1, True)]),
        (
            "FAP",
            [
                BatchDescriptor(16),
                BatchDescriptor(4),
                BatchDescriptor(16, 4, True),
                BatchDescriptor(4, 1, True),
            ],
        ),
    ],
)
def test_keys_are_the_engines(mode: str, keys: list[BatchDescriptor]) -> None:
    entries = v1_family_entries(request(mode, (4, 16), 8, query_len=4))
    assert [entry.batch_descriptor for entry in entries] == keys


def test_decode_keys_reach_from_one_request_to_all_of_them() -> None:
    entries = v1_family_entries(request("FDO", (4, 8, 32, 36), 8, query_len=4))
    assert [(entry.num_tokens, entry.num_reqs) for entry in entries] == [(32, 8), (8, 2), (4, 1)]


@pytest.mark.parametrize("mode", ["PIECEWISE", "FULL", "FDO", "FAP"])
def test_groups_are_captured_pieces_first_and_largest_first(mode: str) -> None:
    entries = v1_family_entries(request(mode, (1, 4, 8, 16), 16))
    groups = [
        [entry.num_tokens for entry in entries if str(entry.mode) == kind] for kind in ("PIECEWISE", "FULL")
    ]
    assert all(group in ([], [16, 8, 4, 1]) for group in groups)
    assert [entry.num_tokens for entry in entries] == groups[0] + groups[1]


def test_equal_sizes_are_captured_from_the_most_loras_down() -> None:
    entries = v1_family_entries(request("PIECEWISE", (1, 8), 8, lora_cases=SPECIALIZED))
    order = [(entry.num_tokens, entry.num_active_loras) for entry in entries]
    assert order == sorted(order, reverse=True)
    assert entries[0].batch_descriptor == BatchDescriptor(8, None, False, True, 5)
    assert entries[-1].batch_descriptor == BatchDescriptor(1)


def test_decode_graphs_from_the_threshold_on_are_captured_in_microbatches() -> None:
    split = Microbatching(num_ubatches=2, decode_token_threshold=8, prefill_token_threshold=32)
    entries = v1_family_entries(request("FAP", (4, 8, 16), 16, microbatching=split))
    cut = {(str(entry.mode), entry.num_tokens): entry.num_ubatches for entry in entries}
    assert cut == {
        ("PIECEWISE", 16): 1,
        ("PIECEWISE", 8): 1,
        ("PIECEWISE", 4): 1,
        ("FULL", 16): 2,
        ("FULL", 8): 2,
        ("FULL", 4): 1,
    }
    whole = v1_family_entries(request("FULL", (4, 8, 16), 16, microbatching=split))
    assert {entry.num_ubatches for entry in whole} == {1}


@given(
    st.sampled_from(sorted(MODES)),
    st.sets(st.integers(1, 64), min_size=1, max_size=8),
    st.integers(1, 16),
    st.integers(1, 5),
    st.sampled_from([(0,), (0, 5), (5,), SPECIALIZED]),
)
def test_no_two_graphs_have_the_same_key(
    mode: str, requests: set[int], max_num_seqs: int, query_len: int, cases: tuple[int, ...]
) -> None:
    sizes = tuple(sorted(query_len * count for count in requests))
    entries = v1_family_entries(request(mode, sizes, max_num_seqs, query_len, cases))
    keys = [(entry.mode, entry.batch_descriptor) for entry in entries]
    assert len(set(keys)) == len(keys)
    assert all(key.has_lora == (key.num_active_loras > 0) for _, key in keys)
