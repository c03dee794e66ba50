"""Every answer of SGLang 0.5.23: captured sizes, refusals, settings behind flags, dispatch."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from planner import Batch, Plan, PlanError, agree, compile_plan, load_deployment
from planner.descriptors import PlanEntry
from planner.documents.plan import Lookup
from planner.engines.lookup import LookupTable
from planner.engines.lookup_families import decode_entries, prefill_entries
from planner.engines.sglang.settings import settle
from planner.modes import CUDAGraphMode, Runner
from tests.planner.engines.sglang_lines import deployment_of, sglang_lines

SIZES = sglang_lines("sizes")
ERRORS = sglang_lines("errors")
KNOBS = sglang_lines("knobs")
RESOLVED = [line for line in KNOBS if "error" not in line["expect"]]
REFUSED = [deployment_of(line) for line in KNOBS if "error" in line["expect"]] + [
    line["deployment"] for line in ERRORS
]
DECODE = [line for line in sglang_lines("dispatch") if line["phase"] == "decode"]
PREFILL = [line for line in sglang_lines("dispatch") if line["phase"] == "prefill"]

FULL, PIECEWISE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE


def test_the_files_have_lines_of_every_kind() -> None:
    assert min(map(len, (SIZES, ERRORS, RESOLVED, REFUSED, DECODE, PREFILL))) > 0


def requests_of(plan: Plan, family: str) -> list[int] | None:
    """The sizes of decode graphs, ascending, ``None`` without any."""
    sizes = [entry.num_reqs for entry in plan.graphs.get(family, ()) if entry.uniform_token_count]
    return sorted(size for size in sizes if size) or None


def tokens_of(plan: Plan) -> list[int] | None:
    """The sizes of the target's prefill graphs, ascending, ``None`` without any."""
    return sorted(entry.num_tokens for entry in plan.entries() if not entry.uniform_token_count) or None


@pytest.mark.parametrize("line", SIZES)
def test_captured_sizes_are_the_engines(line: dict[str, Any]) -> None:
    plan = compile_plan(load_deployment(line["deployment"]))
    assert requests_of(plan, "target") == line["expect"]["decode_bs"]
    assert tokens_of(plan) == line["expect"]["prefill_tokens"]
    assert plan.resolved["target"].decode_query_len == line["trace"]["tokens_per_request"]
    assert plan.resolved["target"].max_num_seqs == line["trace"]["request_pool_size"]


@pytest.mark.parametrize("line", [line for line in SIZES if line["trace"].get("draft_runners")])
def test_draft_graphs_are_the_engines(line: dict[str, Any]) -> None:
    plan = compile_plan(load_deployment(line["deployment"]))
    runners = dict(line["trace"]["draft_runners"])
    if line["trace"]["resolved"]["speculative_num_steps"] == 1:
        # The line has the sizes that this runner would have; it is only built for more steps.
        runners.pop("draft_decode", None)
    names = {"draft_verify": "draft"}
    captured = {
        name: {
            "bs": requests_of(plan, names.get(name, name)),
            "tokens_per_request": plan.resolved[names.get(name, name)].decode_query_len,
        }
        for name in runners
    }
    assert captured == runners
    decode = {family for family in plan.graphs if family not in ("target", "draft_prefill")}
    assert decode == {names.get(name, name) for name in runners}


@pytest.mark.parametrize("document", REFUSED)
def test_what_kills_the_engine_is_refused_with_the_fields(document: dict[str, Any]) -> None:
    with pytest.raises(PlanError) as refusal:
        compile_plan(load_deployment(document))
    assert "scheduler.max_num_seqs" in refusal.value.fields
    assert all(field in str(refusal.value) for field in refusal.value.fields)


@pytest.mark.parametrize("line", RESOLVED)
def test_settings_are_resolved_as_in_the_engine(line: dict[str, Any]) -> None:
    settings = settle(load_deployment(deployment_of(line)))
    expect = line["expect"]
    for name in ("decode", "prefill"):
        phase = settings.config.phase(name)
        assert phase.backend == expect[name]["backend"]
        assert phase.max_bs == expect[name]["max_bs"]
        assert list(phase.bs or ()) == expect[name]["bs"]
    assert {tuple(key) for key in expect["locked"]} == set(settings.config.locked)
    assert settings.chunked_prefill_size == expect["chunk"]
    assert settings.request_pool == expect["pool"]
    assert settings.alignment == expect["align"]
    assert settings.query_len == expect["width"]
    assert settings.layout.gathers_for_mlp == expect["mlp_gather"]
    assert settings.layout.gathers_for_attention == expect["attn_gather"]


@pytest.mark.parametrize("line", RESOLVED)
def test_flags_lead_to_the_engines_graphs(line: dict[str, Any]) -> None:
    plan = compile_plan(load_deployment(deployment_of(line)))
    expect = line["expect"]
    assert requests_of(plan, "target") == expect["decode_bs"]
    assert tokens_of(plan) == expect["prefill_tokens"]
    assert requests_of(plan, "draft_extend") == expect["draft_bs"]
    if expect["decode"]["backend"] == "breakable" and expect["decode_bs"]:
        assert {entry.mode for entry in plan.entries() if entry.uniform_token_count} == {PIECEWISE}


@pytest.mark.parametrize("line", DECODE)
def test_decode_is_dispatched_as_in_the_engine(line: dict[str, Any]) -> None:
    asked, expect = line["batch"], line["expect"]
    width = asked["tokens_per_request"]
    table = LookupTable(
        decode_entries(FULL, asked["capture_bs"], width, fields=()),
        Lookup(pads_decode=not asked["disable_padding"], shares_decode_size=asked["dp_gather"]),
        runner=Runner.SGLANG,
        decode_query_len=width,
    )
    length = asked["batch_width"] if (asked["batch_width"] or -1) > 0 else width
    reqs = asked["batch_size"]
    tokens = asked["input_tokens"] if asked["ngram"] else reqs * length
    own = Batch(
        num_reqs=reqs,
        num_tokens=tokens,
        uniform_token_count=length if tokens == reqs * length else None,
        max_query_len=max(length, -(-tokens // reqs)) if reqs else None,
        need_eager=asked["embedding_override"] or asked["can_run_tbo"] is False,
    )
    ranks = [own]
    if asked["dp_gather"]:
        others = asked["rank_batch_sizes"][1:]
        ranks += [Batch(num_reqs=n, num_tokens=n * width, uniform_token_count=width) for n in others]
    if asked["dp_vote"] is False:
        ranks[-1] = evolve(ranks[-1], need_eager=True)
    descriptor = agree(table, ranks)[0].descriptor
    assert bool(descriptor.cg_mode) == expect["graph"]
    if expect["graph"]:
        assert (descriptor.num_reqs, descriptor.num_tokens) == (expect["key_size"], expect["padded_tokens"])


@pytest.mark.parametrize("line", PREFILL)
def test_prefill_is_dispatched_as_in_the_engine(line: dict[str, Any]) -> None:
    asked, expect = line["batch"], line["expect"]
    mode = FULL if asked["backend"] == "full" else PIECEWISE
    entries: tuple[PlanEntry, ...] = prefill_entries(
        mode, asked["capture_num_tokens"], slots=asked["full_prefill_max_req"]
    )
    lookup = Lookup(max_prefill_factor=2, max_prefill_seq_len=asked["max_seq_len"])
    table = LookupTable(entries, lookup, runner=Runner.SGLANG)
    reasons = ("target_verify", "input_embeds", "lora_ineligible")
    is_eager = any(asked[reason] for reason in reasons)
    if is_eager or not table.admits_sequence(asked["longest_sequence"]):
        assert not expect["graph"]
        return
    # The lines have batches of fewer tokens than requests, which no server forms: tokens decide there.
    descriptor = table.dispatch(num_reqs=asked["batch_size"], num_tokens=asked["num_tokens"])
    assert bool(descriptor.cg_mode) == expect["graph"]
    if expect["graph"]:
        assert descriptor.num_tokens == expect["key_size"]
