"""Entries in capture order and dispatch: the worked examples that were run on the real engine (rules 5.9)."""

from __future__ import annotations

import re

import pytest
from attrs import evolve

from planner import CUDAGraphMode, DispatchTable, Plan, PlanEntry, PlanError
from planner.documents.plan import Microbatching
from planner.rules.entries import EntryRequest, family_entries
from tests.planner.runs import sizes

MODES = {
    "FAP": CUDAGraphMode.FULL_AND_PIECEWISE,
    "FULL": CUDAGraphMode.FULL,
    "FDO": CUDAGraphMode.FULL_DECODE_ONLY,
}
TO_512 = "1, 2, 4, 8..256/8, 272..512/16"


def family(
    mode: str,
    capture_sizes: str,
    max_num_seqs: int,
    query_len: int = 1,
    *,
    lens: tuple[int, ...] | None = None,
    loras: tuple[int, ...] = (0,),
    varlen: bool = False,
    microbatching: Microbatching | None = None,
) -> DispatchTable:
    request = EntryRequest(
        mode=MODES[mode],
        sizes=sizes(capture_sizes),
        max_num_seqs=max_num_seqs,
        decode_query_len=query_len,
        query_lens=lens or (query_len,),
        lora_cases=loras,
        varlen_decode=varlen,
        microbatching=microbatching,
    )
    return DispatchTable(
        family_entries(request), lora_cases=loras, microbatching=microbatching, decode_query_len=query_len
    )


def short(entry: PlanEntry) -> str:
    """An entry as ``8/4u2`` (tokens, requests, uniform), with ``q3`` for a bound, ``x2`` for a twin."""
    text = f"{entry.num_tokens}" + (f"/{entry.num_reqs}" if entry.num_reqs else "")
    text += f"u{entry.uniform_token_count}" if entry.uniform_token_count else ""
    text += f"q{entry.max_query_len}" if entry.max_query_len else ""
    text += f"l{entry.num_active_loras}" if entry.num_active_loras else ""
    return text + (f"x{entry.num_ubatches}" if entry.num_ubatches > 1 else "")


def captured(table: DispatchTable, mode: str) -> str:
    return ", ".join(short(entry) for entry in table.entries if str(entry.mode) == mode)


def answer(table: DispatchTable, batch: str) -> str:
    """The answer to ``R,T,uniform`` with optional ``q`` (longest query), ``l`` and ``x`` parts."""
    match = re.fullmatch(r"(\d+),(\d+),(\d+|-)(?: q(\d+))?(?: l(\d+))?(?: x(\d+))?", batch)
    assert match, batch
    reqs, tokens, uniform, longest, loras, ubatches = match.groups()
    found = table.dispatch(
        num_reqs=int(reqs),
        num_tokens=int(tokens),
        uniform_token_count=None if uniform == "-" else int(uniform),
        num_active_loras=int(loras or 0),
        max_query_len=None if longest is None else int(longest),
        num_ubatches=int(ubatches or 1),
    )
    name = {"PIECEWISE": "PW"}.get(str(found.cg_mode), str(found.cg_mode))
    text = f"{name} {found.num_tokens}" + (f"/{found.num_reqs}" if name == "FULL" else "")
    return text + (f" l{found.num_active_loras}" if found.num_active_loras else "")


PLAIN = "1, 2, 4, 8, 16"
EIGHT = family("FAP", PLAIN, 8)
THREE = family("FAP", "1, 2, 4, 8, 16, 24", 8, 3)
TIERS = family("FDO", "2, 4, 6, 8", 8, 4, lens=(1, 2, 3, 4))
VARLEN = family("FAP", "1, 2, 4, 8, 16, 24, 32", 8, 3, varlen=True)
LORA = family("FAP", "1, 8", 8, loras=(0, 1, 2, 4, 5))
OVERLAP = Microbatching(num_ubatches=2, decode_token_threshold=8, prefill_token_threshold=32)
SPLIT = family("FDO", "1, 2, 4, 8, 16, 32", 32, microbatching=OVERLAP)
SPLIT_FULL = family("FULL", "1, 2, 4, 8, 16, 32", 16, microbatching=OVERLAP)

CAPTURED = [
    (EIGHT, "8/8u1, 4/4u1, 2/2u1, 1/1u1", "16, 8, 4, 2, 1"),
    (family("FULL", PLAIN, 8), "16/8, 8/8, 4/4, 2/2, 1/1", ""),
    (family("FDO", PLAIN, 8), "8/8u1, 4/4u1, 2/2u1, 1/1u1", ""),
    (THREE, "24/8u3, 18/6u3, 9/3u3, 6/2u3, 3/1u3", "24, 16, 8, 4, 2, 1"),
    (
        family("FDO", "1, 2, 4, 8..256/8", 8, 16),
        "128/8u16, 112/7u16, 96/6u16, 80/5u16, 64/4u16, 48/3u16, 32/2u16, 16/1u16",
        "",
    ),
    (
        TIERS,
        "8/2u4, 8/8u1, 8/4u2, 6/2u3, 6/6u1, 6/3u2, 4/1u4, 4/4u1, 4/2u2, 3/1u3, 2/2u1, 2/1u2",
        "",
    ),
    (VARLEN, "24/8q3, 16/8q3, 8/8q3, 4/4q3, 2/2q3, 1/1q3", "32, 24, 16, 8, 4, 2, 1"),
    (
        LORA,
        "8/8u1, 8/8u1l1, 8/8u1l2, 8/8u1l4, 8/8u1l5, 1/1u1, 1/1u1l1, 1/1u1l2, 1/1u1l4, 1/1u1l5",
        "8, 8l1, 8l2, 8l4, 8l5, 1, 1l1, 1l2, 1l4, 1l5",
    ),
    (SPLIT, "32/32u1, 32/32u1x2, 16/16u1, 16/16u1x2, 8/8u1, 8/8u1x2, 4/4u1, 2/2u1, 1/1u1", ""),
    (SPLIT_FULL, "32/16, 32/16u2x2, 16/16, 16/16u1x2, 8/8, 8/8u1x2, 4/4, 2/2, 1/1", ""),
]


@pytest.mark.parametrize(("table", "full", "piecewise"), CAPTURED)
def test_entries_are_captured_in_the_engines_order(table: DispatchTable, full: str, piecewise: str) -> None:
    assert captured(table, "FULL") == full
    assert captured(table, "PIECEWISE") == piecewise
    modes = [str(entry.mode) for entry in table.entries]
    assert modes == sorted(modes, reverse=True), "PIECEWISE comes before FULL"


def test_seventeen_tokens_a_request_are_captured_for_every_count_up_to_the_ceiling() -> None:
    table = family(
        "FDO",
        "1, 2, 4, 8, 16, 17, 24, 32, 34, 40..64/8, 68, 72..256/8, 272..400/16, 408, 416..512/16",
        32,
        17,
    )
    assert [entry.num_reqs for entry in table.entries] == list(range(30, 0, -1))
    assert answer(table, "31,527,17") == "NONE 527"


ANSWERS = [
    (EIGHT, "3,3,1", "FULL 4/4"),
    (EIGHT, "3,3,-", "PW 4"),
    (EIGHT, "8,8,1", "FULL 8/8"),
    (EIGHT, "9,9,1", "PW 16"),
    (EIGHT, "2,16,-", "PW 16"),
    (EIGHT, "5,10,2", "PW 16"),
    (EIGHT, "1,17,-", "NONE 17"),
    (EIGHT, "0,0,-", "NONE 0"),
    (family("FULL", PLAIN, 8), "3,3,1", "FULL 4/4"),
    (family("FULL", PLAIN, 8), "2,16,-", "FULL 16/8"),
    (family("FULL", PLAIN, 8), "8,15,-", "FULL 16/8"),
    (family("FULL", PLAIN, 8), "9,9,1", "NONE 9"),
    (family("FULL", PLAIN, 8), "9,16,-", "NONE 16"),
    (family("FDO", PLAIN, 8), "3,3,1", "FULL 4/4"),
    (family("FDO", PLAIN, 8), "3,3,-", "NONE 3"),
    (THREE, "4,12,3", "FULL 18/6"),
    (THREE, "3,9,3", "FULL 9/3"),
    (THREE, "5,15,3", "FULL 18/6"),
    (THREE, "6,18,3", "FULL 18/6"),
    (THREE, "7,21,3", "FULL 24/8"),
    (THREE, "8,24,3", "FULL 24/8"),
    (THREE, "2,12,-", "PW 16"),
    (THREE, "1,1,1", "PW 1"),
    (THREE, "9,27,3", "NONE 27"),
    (TIERS, "2,8,4", "FULL 8/2"),
    (TIERS, "2,6,3", "FULL 6/2"),
    (TIERS, "4,8,2", "FULL 8/4"),
    (TIERS, "8,8,1", "FULL 8/8"),
    (TIERS, "1,4,4", "FULL 4/1"),
    (TIERS, "3,9,3", "NONE 9"),
    (VARLEN, "3,6,- q3", "FULL 8/8"),
    (VARLEN, "3,6,- q1", "FULL 8/8"),
    (VARLEN, "3,6,-", "PW 8"),
    (VARLEN, "3,6,- q4", "PW 8"),
    (VARLEN, "8,30,- q4", "PW 32"),
    (LORA, "1,1,1 l3", "FULL 1/1 l4"),
    (LORA, "1,1,1 l6", "FULL 1/1 l5"),
    (LORA, "1,1,1 l100", "FULL 1/1 l5"),
    (LORA, "9,9,1 l3", "NONE 9 l4"),
    (family("FAP", "1, 8", 8, loras=(0, 5)), "1,1,1 l1", "FULL 1/1 l5"),
    (family("FAP", "1, 8", 8, loras=(0, 5)), "9,9,1 l1", "NONE 9 l5"),
    (SPLIT, "8,8,1 x2", "FULL 8/8"),
    (SPLIT, "9,9,1 x2", "FULL 16/16"),
    (SPLIT, "4,4,1 x2", "NONE 4"),
    (SPLIT, "33,33,1 x2", "NONE 33"),
    (SPLIT_FULL, "16,32,2 x2", "FULL 32/16"),
    (SPLIT_FULL, "16,32,- x2", "NONE 32"),
    # Published unit tests of the engine: exact fits for short query lengths (rules 11.2 and 11.3).
    (family("FAP", "1, 2, 4, 8", 8), "3,3,1", "FULL 4/4"),
    (family("FAP", "2, 4, 8, 16", 8, 2), "3,6,2", "FULL 8/4"),
    (family("FAP", "8, 16, 32, 64", 8, 8), "3,24,8", "FULL 32/4"),
]


@pytest.mark.parametrize(
    ("table", "batch", "expected"), ANSWERS, ids=[f"{row[1]}={row[2]}" for row in ANSWERS]
)
def test_dispatch_answers_as_the_engine(table: DispatchTable, batch: str, expected: str) -> None:
    assert answer(table, batch) == expected


def test_full_is_tried_before_piecewise_each_at_its_nearest_size() -> None:
    assert [short(entry) for entry in THREE.candidates(12)] == ["18/6u3", "16"]
    assert THREE.candidates(25) == THREE.candidates(0) == ()


def test_batches_below_every_full_size_still_find_the_smallest_piece() -> None:
    for tokens in (3, 6, 9, 18):
        assert answer(THREE, f"1,{tokens},-").startswith("PW")


def test_a_batch_that_no_graph_serves_stays_unpadded_and_keeps_its_shape() -> None:
    found = SPLIT.dispatch(num_reqs=33, num_tokens=33, uniform_token_count=1, num_ubatches=2)
    assert (found.num_tokens, found.num_reqs, found.uniform_token_count, found.num_ubatches) == (
        33,
        33,
        None,
        2,
    )


def test_a_table_of_one_huge_graph_stays_small() -> None:
    entry = evolve(EIGHT.entries[0], num_tokens=1 << 20)
    assert answer(DispatchTable([entry]), "1,1000000,-") == f"PW {1 << 20}"


def test_dummy_graphs_of_every_length_serve_each_batch_exactly() -> None:
    """A schedule over all query lengths 1 to 8 with every size: nothing is padded (rules 11.3)."""
    table = family("FAP", "1..4096/1", 512, 8, lens=tuple(range(1, 9)))
    for query_len in range(1, 9):
        for reqs in (1, 2, 3, 31, 255, 256, 511, 512):
            tokens = reqs * query_len
            assert answer(table, f"{reqs},{tokens},{query_len}") == f"FULL {tokens}/{reqs}"


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (
            tuple(PlanEntry(CUDAGraphMode.PIECEWISE, 1 << 20, num_active_loras=case) for case in range(40)),
            "40 LoRA cases with graphs of up to 1048576 tokens",
        ),
        (
            tuple(PlanEntry(CUDAGraphMode.FULL, 5_000, 1, count) for count in range(1, 5_000)),
            "4999 graphs of the same mode, tokens and LoRAs",
        ),
    ],
)
def test_a_plan_of_few_bytes_makes_no_table_of_gigabytes(entries: tuple[PlanEntry, ...], words: str) -> None:
    with pytest.raises(PlanError, match=words) as refusal:
        Plan(graphs={"draft": entries}).dispatch_table("draft")
    assert refusal.value.fields == ("graphs.draft",)


def test_many_sizes_for_many_adapters_still_have_a_table() -> None:
    entries = tuple(
        PlanEntry(CUDAGraphMode.PIECEWISE, tokens, num_active_loras=case)
        for tokens in (1 << 20, 1)
        for case in range(19)
    )
    table = Plan(graphs={"target": entries}).dispatch_table()
    assert isinstance(table, DispatchTable)
    assert table.dispatch(1, 2, num_active_loras=18) == entries[18].execution_descriptor
