"""V1 dispatch: the worked examples that were run on the real engine (rules 4.2 to 4.6, 11.1)."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from planner import BatchDescriptor, BatchError, CUDAGraphMode, Plan, PlanEntry
from planner.dispatch_v1 import V1DispatchTable, V1Family
from planner.documents.plan import ResolvedFamily
from planner.modes import Runner
from planner.rules.entries import EntryRequest
from planner.rules.entries_v1 import v1_family_entries
from planner.rules.lora import lora_cases
from tests.planner.rules.test_entries_v1 import MODES

NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL


def table(
    mode: str,
    sizes: tuple[int, ...],
    max_num_seqs: int = 8,
    query_len: int = 1,
    cases: tuple[int, ...] = (0,),
    specialize: bool = False,
) -> V1DispatchTable:
    family = V1Family(
        mode=MODES[mode],
        sizes=sizes,
        max_num_seqs=max_num_seqs,
        decode_query_len=query_len,
        lora_cases=cases,
        specialize_active_lora=specialize,
    )
    request = EntryRequest(
        mode=family.mode,
        sizes=sizes,
        max_num_seqs=max_num_seqs,
        decode_query_len=query_len,
        query_lens=(query_len,),
        lora_cases=cases,
    )
    return V1DispatchTable(v1_family_entries(request), family)


def short(answer: tuple[CUDAGraphMode, BatchDescriptor]) -> str:
    """An answer as ``FULL 8/8u``: mode, tokens, requests, ``u`` where uniform, ``l`` and the LoRA case."""
    mode, key = answer
    text = f"{'PW' if mode is PIECEWISE else mode} {key.num_tokens}" + (
        f"/{key.num_reqs}" if key.num_reqs else ""
    )
    return text + ("u" if key.uniform else "") + (f"l{key.num_active_loras}" if key.has_lora else "")


PLAIN = (1, 2, 4, 8, 16)
#                 3 uniform    3 mixed     8 uniform    9 uniform    9 mixed      16 mixed     17 uniform
WORKED = {
    "FULL": ["FULL 4/4", "FULL 4/4", "FULL 8/8", "FULL 16/8", "FULL 16/8", "FULL 16/8", "NONE 17"],
    "FAP": ["FULL 4/4u", "PW 4", "FULL 8/8u", "PW 16", "PW 16", "PW 16", "NONE 17"],
    "FDO": ["FULL 4/4u", "NONE 3", "FULL 8/8u", "NONE 9", "NONE 9", "NONE 16", "NONE 17"],
    "PIECEWISE": ["PW 4", "PW 4", "PW 8", "PW 16", "PW 16", "PW 16", "NONE 17"],
    "NONE": ["NONE 3", "NONE 3", "NONE 8", "NONE 9", "NONE 9", "NONE 16", "NONE 17"],
}
ASKED = [(3, True), (3, False), (8, True), (9, True), (9, False), (16, False), (17, True)]


@pytest.mark.parametrize("mode", WORKED)
def test_batches_are_dispatched_as_by_the_engine(mode: str) -> None:
    found = table(mode, PLAIN)
    assert [short(found.dispatch(tokens, uniform)) for tokens, uniform in ASKED] == WORKED[mode]


def test_the_padding_table_is_the_engines() -> None:
    found = table("PIECEWISE", PLAIN)
    padded = [found.dispatch(tokens)[1].num_tokens for tokens in range(17)]
    assert padded == [0, 1, 2, 4, 4, 8, 8, 8, 8, *[16] * 8]


@pytest.mark.parametrize(
    ("mode", "tokens", "uniform", "limits", "expected"),
    [
        ("FULL", 5, False, {"valid_modes": {FULL}}, "FULL 8/8"),
        ("FULL", 5, True, {"invalid_modes": {FULL}}, "NONE 5"),
        ("FAP", 5, True, {"invalid_modes": {FULL}}, "PW 8"),
        ("FAP", 8, False, {"valid_modes": {NONE}}, "NONE 8"),
        ("FAP", 8, True, {"valid_modes": set()}, "FULL 8/8u"),
        ("FAP", 17, True, {"valid_modes": {FULL}}, "NONE 17"),
        ("NONE", 3, True, {"valid_modes": {FULL}}, "NONE 3"),
        ("FAP", 0, True, {}, "NONE 0"),
    ],
)
def test_modes_may_be_restricted(
    mode: str, tokens: int, uniform: bool, limits: dict[str, Any], expected: str
) -> None:
    assert short(table(mode, PLAIN).dispatch(tokens, uniform, **limits)) == expected


@pytest.mark.parametrize(
    ("mode", "limits", "message"),
    [
        ("FAP", {"valid_modes": {FULL}}, "have no FULL graph"),
        ("FDO", {"valid_modes": {PIECEWISE}}, "have no PIECEWISE graph"),
        ("FDO", {"valid_modes": {FULL}, "invalid_modes": [FULL]}, "no mode is left"),
    ],
)
def test_a_batch_that_no_allowed_mode_serves_is_refused(
    mode: str, limits: dict[str, Any], message: str
) -> None:
    with pytest.raises(BatchError, match=message):
        table(mode, PLAIN).dispatch(5, **limits)


def test_the_callers_sets_of_modes_are_left_alone() -> None:
    valid = {NONE, FULL}
    table("FULL", PLAIN).dispatch(5, valid_modes=valid, invalid_modes={FULL})
    assert valid == {NONE, FULL}


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (4, "FULL 4/1u"),
        (12, "FULL 16/4u"),
        (16, "FULL 16/4u"),
        (20, "FULL 24/6u"),
        (28, "FULL 32/8u"),
        (36, "PW 40"),
    ],
)
def test_speculative_decode_is_padded_to_whole_requests(tokens: int, expected: str) -> None:
    found = table("FAP", (4, 8, 16, 24, 32, 40), query_len=4)
    assert short(found.dispatch(tokens, uniform_decode=True)) == expected


def decode_in_lora_case(found: V1DispatchTable, num_active_loras: int, has_lora: bool | None = None) -> str:
    return short(found.dispatch(5, True, num_active_loras, has_lora))


@pytest.mark.parametrize(
    ("specialize_lora", "specialize_active", "answers"),
    [
        (True, True, {1: "FULL 5/5ul1", 3: "FULL 5/5ul4", 4: "FULL 5/5ul4", 5: "FULL 5/5ul5", 6: "NONE 5"}),
        (True, False, {0: "FULL 5/5u", 1: "FULL 5/5ul5", 3: "FULL 5/5ul5", 6: "FULL 5/5ul5"}),
        (False, False, {0: "NONE 5", 1: "FULL 5/5ul5", 6: "FULL 5/5ul5"}),
        (False, True, {0: "NONE 5", 1: "FULL 5/5ul5", 5: "FULL 5/5ul5", 6: "NONE 5"}),
    ],
)
def test_loras_are_rounded_to_a_captured_case(
    specialize_lora: bool, specialize_active: bool, answers: dict[int, str]
) -> None:
    cases = lora_cases(
        4, specialize_active_lora=specialize_active, specialize_lora=specialize_lora, runner=Runner.V1
    )
    found = table("FAP", (5, 8), cases=cases, specialize=specialize_active)
    assert {active: decode_in_lora_case(found, active) for active in answers} == answers


def test_the_lora_flag_has_to_agree_with_the_number_of_adapters() -> None:
    found = table("FAP", (5, 8), cases=(0, 1, 2, 4, 5), specialize=True)
    assert decode_in_lora_case(found, 0, has_lora=True) == "NONE 5"
    assert decode_in_lora_case(found, 4, has_lora=False) == "NONE 5"
    assert decode_in_lora_case(found, 4, has_lora=True) == "FULL 5/5ul4"


#          published unit tests of the engine: sizes [1, 8] (rules 11.1)
PUBLISHED = [
    ("FULL", (8, False), "FULL 8/8"),
    ("FAP", (8, False), "PW 8"),
    ("PIECEWISE", (8, False), "PW 8"),
    ("FDO", (8, False), "NONE 8"),
    ("FULL", (8, True), "FULL 8/8"),
    ("FDO", (8, True), "FULL 8/8u"),
    ("FAP", (8, True), "FULL 8/8u"),
    ("PIECEWISE", (8, True), "PW 8"),
    *((mode, (15, False), "NONE 15") for mode in ("FULL", "FDO", "FAP", "PIECEWISE")),
]


@pytest.mark.parametrize("cases", [(0,), (0, 1, 2, 4, 5)])
@pytest.mark.parametrize(("mode", "batch", "expected"), PUBLISHED)
def test_published_examples_hold_with_and_without_lora(
    mode: str, batch: tuple[int, bool], expected: str, cases: tuple[int, ...]
) -> None:
    assert short(table(mode, (1, 8), cases=cases, specialize=True).dispatch(*batch)) == expected


@pytest.mark.parametrize("mode", ["FULL", "FDO", "FAP", "PIECEWISE"])
def test_without_full_a_batch_runs_in_pieces_or_eagerly(mode: str) -> None:
    expected = "PW 8" if mode in ("FAP", "PIECEWISE") else "NONE 8"
    for uniform in (False, True):
        assert short(table(mode, (1, 8)).dispatch(8, uniform, invalid_modes={FULL})) == expected


def test_candidates_are_what_stands_at_the_padded_size() -> None:
    found = table("FAP", PLAIN)
    assert [short((entry.mode, entry.batch_descriptor)) for entry in found.candidates(3)] == [
        "FULL 4/4u",
        "PW 4",
    ]
    assert [entry.num_tokens for entry in found.candidates(9)] == [16]
    assert found.candidates(17) == found.candidates(0) == found.candidates(3, 1) == ()


def plan(resolved: dict[str, Any], *entries: PlanEntry) -> Plan:
    return Plan(graphs={"target": entries}, resolved={"target": ResolvedFamily(runner=Runner.V1, **resolved)})


def test_a_plan_written_by_hand_needs_runner_and_mode_alone() -> None:
    written = table("FAP", (4, 8, 16, 24, 32, 40), query_len=4, cases=(0, 1, 2, 4, 5), specialize=True)
    by_hand = plan({"cudagraph_mode": written.family.mode}, *written.entries).dispatch_table()
    for tokens in range(45):
        for batch in ((tokens, False, 0), (tokens, True, 0), (tokens, True, 3), (tokens, False, 6)):
            assert by_hand.dispatch(*batch) == written.dispatch(*batch)


def test_padding_passes_by_a_size_whose_graph_was_taken_out() -> None:
    """V1 pads before it looks: without the graph of 8 tokens, 5 run eagerly and not in that of 16."""
    whole = table("PIECEWISE", PLAIN)
    kept = [entry for entry in whole.entries if entry.num_tokens != 8]
    edited = plan({"cudagraph_mode": PIECEWISE, "cudagraph_capture_sizes": PLAIN}, *kept).dispatch_table()
    assert short(edited.dispatch(5)) == "NONE 5"
    assert short(edited.dispatch(9)) == "PW 16"


@pytest.mark.parametrize(
    "entry",
    [
        PlanEntry(PIECEWISE, 8, 8),
        PlanEntry(FULL, 8, 4),
        PlanEntry(FULL, 8, 8, max_query_len=4),
        PlanEntry(FULL, 8, 4, uniform_token_count=2),
        PlanEntry(FULL, 8, 1, uniform_token_count=4),
        PlanEntry(FULL, 6, 6),
    ],
)
def test_an_entry_that_is_no_key_of_v1_serves_nothing(entry: PlanEntry) -> None:
    resolved = {
        "cudagraph_mode": CUDAGraphMode.FULL_AND_PIECEWISE,
        "cudagraph_capture_sizes": (4, 8),
        "max_num_seqs": 8,
        "decode_query_len": 4,
    }
    found = plan(resolved, entry).dispatch_table()
    for tokens in range(10):
        assert short(found.dispatch(tokens)) == short(found.dispatch(tokens, True)) == f"NONE {tokens}"


def test_sizes_that_cut_a_decode_request_are_refused_at_dispatch() -> None:
    resolved = {
        "cudagraph_mode": CUDAGraphMode.FULL_DECODE_ONLY,
        "cudagraph_capture_sizes": (4, 10),
        "decode_query_len": 4,
    }
    found = plan(resolved, PlanEntry(FULL, 4, 1, 4)).dispatch_table()
    assert short(found.dispatch(4, uniform_decode=True)) == "FULL 4/1u"
    with pytest.raises(BatchError, match="8 tokens is padded to 10, but decode requests have 4"):
        found.dispatch(8, uniform_decode=True)


def test_sizes_beyond_all_bounds_cost_nothing() -> None:
    resolved = {"cudagraph_mode": PIECEWISE, "cudagraph_capture_sizes": (8, 10**15)}
    found = plan(resolved, PlanEntry(PIECEWISE, 8)).dispatch_table()
    assert short(found.dispatch(7)) == "PW 8"
    assert short(found.dispatch(9)) == "NONE 9"


@given(st.data(), st.sampled_from(["FULL", "FDO", "FAP", "PIECEWISE"]), st.integers(1, 5))
def test_every_key_dispatches_to_itself(data: st.DataObject, mode: str, query_len: int) -> None:
    requests = data.draw(st.sets(st.integers(1, 40), min_size=1, max_size=8))
    sizes = tuple(sorted(query_len * count for count in requests))
    max_loras, specialize = data.draw(st.sampled_from([None, 1, 4])), data.draw(st.booleans())
    specialize_lora = data.draw(st.booleans())
    cases = lora_cases(
        max_loras, specialize_active_lora=specialize, specialize_lora=specialize_lora, runner=Runner.V1
    )
    found = table(mode, sizes, data.draw(st.integers(1, 16)), query_len, cases, specialize)
    for entry in found.entries:
        key = entry.batch_descriptor
        answer = found.dispatch(
            key.num_tokens, key.uniform, key.num_active_loras, key.has_lora, valid_modes={entry.mode}
        )
        assert answer == (entry.mode, key)


@given(st.data(), st.sampled_from(["FULL", "FDO", "FAP", "PIECEWISE"]), st.integers(0, 250), st.booleans())
def test_an_answer_fits_the_batch_or_is_the_batch_itself(
    data: st.DataObject, mode: str, tokens: int, uniform: bool
) -> None:
    sizes = tuple(sorted(data.draw(st.sets(st.integers(1, 200), min_size=1, max_size=8))))
    found = table(mode, sizes)
    runtime, key = found.dispatch(tokens, uniform)
    if runtime is NONE:
        assert key == BatchDescriptor(tokens)
    else:
        assert tokens <= key.num_tokens == min(size for size in sizes if size >= tokens)
        assert any((entry.mode, entry.batch_descriptor) == (runtime, key) for entry in found.entries)


def test_of_two_entries_with_one_key_the_first_captured_is_replayed() -> None:
    first = PlanEntry(PIECEWISE, 8)
    found = plan({"cudagraph_mode": PIECEWISE}, first, evolve(first)).dispatch_table()
    assert found.entry_for(8) is first
