"""Dispatch by requests and by tokens, and what verification says of it, against every batch tried out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import (
    Deployment,
    Plan,
    PlanEntry,
    PlanError,
    compile_plan,
    load_deployment,
    load_plan,
)
from planner.documents.plan import Finding
from planner.explain import explain
from planner.modes import CUDAGraphMode, Runner
from planner.queries import Query
from planner.verify import verify
from planner.verify.lookup_fixes import WITH_PADDING
from tests.planner.engines.documents import sglang, tensorrt

FULL, PIECEWISE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE

sizes = st.lists(st.integers(1, 40), min_size=1, max_size=3)
drafts = st.none() | st.builds(
    lambda method, k: {"method": method, "num_speculative_tokens": k},
    st.sampled_from(("eagle", "dflash", "ngram")),
    st.integers(1, 4),
)
schedulers = st.fixed_dictionaries(
    {"max_num_seqs": st.integers(1, 40), "max_num_batched_tokens": st.integers(1, 300)}
)


@st.composite
def sglang_deployments(draw: st.DrawFn) -> Deployment:
    backend = st.sampled_from(("full", "breakable", "disabled"))
    own = st.fixed_dictionaries(
        {"cuda_graph_bs_decode": sizes},
        optional={
            "cuda_graph_bs_prefill": sizes,
            "cuda_graph_backend_decode": backend,
            "cuda_graph_backend_prefill": backend,
            "disable_cuda_graph_padding": st.booleans(),
        },
    )
    sections: dict[str, Any] = {"scheduler": draw(schedulers)}
    if speculative := draw(drafts):
        sections["speculative"] = speculative
    elif draw(st.booleans()):
        sections["parallel"] = {
            "tensor_parallel_size": 4,
            "data_parallel_size": draw(st.sampled_from((2, 4))),
            "enable_dp_attention": True,
        }
    return sglang(draw(own), **sections)


@st.composite
def tensorrt_deployments(draw: st.DrawFn) -> Deployment:
    config = {"batch_sizes": draw(sizes), "enable_padding": draw(st.booleans())}
    own: dict[str, Any] = {"cuda_graph_config": config}
    if draw(st.booleans()):
        own |= {"prefill_cuda_graph_backend": "piecewise", "prefill_capture_num_tokens": draw(sizes)}
    sections: dict[str, Any] = {"scheduler": draw(schedulers)}
    if draw(st.booleans()):
        sections["speculative"] = {"method": "mtp", "num_speculative_tokens": draw(st.integers(1, 4))}
    return tensorrt(own, **sections)


def compiled(deployment: Deployment) -> Plan | None:
    try:
        return compile_plan(deployment)
    except PlanError:
        return None


plans = (sglang_deployments() | tensorrt_deployments()).map(compiled).filter(lambda plan: plan is not None)


def expected(plan: Plan, reqs: int, tokens: int, length: int | None) -> PlanEntry | None:
    """The graph for a batch, by looking through all of them."""
    lookup = plan.resolved["target"].lookup
    assert lookup is not None
    alike = [entry for entry in plan.entries() if entry.uniform_token_count == length]
    nearest = min(
        (one for one in alike if one.num_tokens >= tokens), key=lambda one: one.num_tokens, default=None
    )
    if nearest is None or (nearest.num_reqs is not None and reqs > nearest.num_reqs):
        return None
    if length is not None:
        return nearest if lookup.pads_decode or nearest.num_reqs == reqs else None
    factor = lookup.max_prefill_factor
    return nearest if factor is None or nearest.num_tokens <= factor * tokens else None


def batches(plan: Plan) -> Iterator[tuple[int, int, int | None]]:
    resolved = plan.resolved["target"]
    most = min(resolved.max_num_seqs or 0, resolved.max_num_active_seqs or 10**9)
    length = resolved.decode_query_len or 1
    for reqs in range(1, most + 1):
        if resolved.uniform_query_lens:
            yield reqs, reqs * length, length
        for tokens in range(reqs, (resolved.max_num_batched_tokens or 0) + 1, 7):
            yield reqs, tokens, None


@given(plans)
def test_the_nearest_graph_of_its_kind_serves_a_batch(plan: Plan) -> None:
    table = plan.dispatch_table()
    for reqs, tokens, length in batches(plan):
        entry = expected(plan, reqs, tokens, length)
        answer = table.dispatch(reqs, tokens, length)
        if entry is None:
            assert (answer.cg_mode, answer.num_tokens) == (CUDAGraphMode.NONE, tokens)
        else:
            assert answer == entry.execution_descriptor


@given(plans)
def test_explanations_and_answers_agree(plan: Plan) -> None:
    for reqs, tokens, length in [*batches(plan)][:60]:
        explanation = explain(plan, Query(num_reqs=reqs, num_tokens=tokens, uniform_token_count=length))
        entry = expected(plan, reqs, tokens, length)
        assert explanation.entry == entry
        assert [one.entry for one in explanation.candidates if not one.obstacles] == (
            [entry] if entry else []
        )
        if entry is None and plan.entries():
            assert explanation.notes


@given(plans)
def test_holes_are_exactly_the_decode_batches_without_a_graph(plan: Plan) -> None:
    table, eager = plan.dispatch_table(), set()
    for reqs, tokens, length in batches(plan):
        if length is not None and not table.dispatch(reqs, tokens, length).cg_mode:
            eager.add(reqs)
    assert {reqs for finding in holes(plan) for reqs in requests_of(finding)} == eager


@given(plans)
def test_entries_called_unreachable_serve_nothing_and_others_something(plan: Plan) -> None:
    resolved = plan.resolved["target"]
    most = min(resolved.max_num_seqs or 0, resolved.max_num_active_seqs or 10**9)
    # Without a budget for a step, a prefill may have as many tokens as the largest graph.
    largest = max((entry.num_tokens for entry in plan.entries()), default=0)
    most_tokens = resolved.max_num_batched_tokens or largest
    used = set()
    for reqs in range(1, most + 1):
        length = resolved.decode_query_len or 1
        used.add(expected(plan, reqs, reqs * length, length))
        for tokens in range(reqs, most_tokens + 1):
            used.add(expected(plan, reqs, tokens, None))
    told = [
        one for one in plan.findings if one.code == "unreachable-entry" and "graphs.target" in one.message
    ]
    assert bool(told) == (not set(plan.entries()) <= used)


@settings(max_examples=300)
@given(plans)
def test_a_fix_closes_all_holes(plan: Plan) -> None:
    fixes = {finding.fix for finding in holes(plan)}
    assert len(fixes) <= 1
    for fix in fixes:
        assert fix is not None
        assert not [one for one in compile_plan(with_setting(plan.deployment, fix)).findings if is_hole(one)]


@given(plans)
def test_compiling_finds_nothing_wrong_with_the_list_of_entries(plan: Plan) -> None:
    wrong = {"duplicate-entry", "duplicate-descriptor", "capture-order", "impossible-entry", "unverified"}
    assert not wrong & {finding.code for finding in plan.findings}
    assert set(verify(plan)) <= set(plan.findings)


def is_hole(finding: Finding) -> bool:
    return finding.code in ("decode-hole", "no-exact-size")


def holes(plan: Plan) -> list[Finding]:
    """The holes of the target, and those that it shares with drafts."""
    found = [finding for finding in plan.findings if is_hole(finding)]
    return [one for one in found if "graphs." not in one.message or "graphs.target" in one.message]


def requests_of(finding: Finding) -> set[int]:
    words = re.search(r"uniform decode of (.*?) requests?\b", finding.message)
    assert words is not None
    assert "more ranges" not in words[1]
    spans = re.findall(r"(\d+)(?: to (\d+))?", words[1])
    return {reqs for first, last in spans for reqs in range(int(first), int(last or first) + 1)}


def with_setting(deployment: Deployment, fix: str) -> Deployment:
    """``deployment`` with what a fix says, as a user would type it."""
    if fix.startswith(WITH_PADDING):
        assert deployment.sglang is not None
        deployment = evolve(deployment, sglang=evolve(deployment.sglang, disable_cuda_graph_padding=None))
        fix = fix.removeprefix(WITH_PADDING).removeprefix(", ")
        if not fix:
            return deployment
    path, _, value = fix.partition(": ")
    section, key = path.split(".", 1)
    header = f"apiVersion: graphplan/v1\nkind: Deployment\nengine: {{name: {deployment.engine.name}}}\n"
    typed = load_deployment(f"{header}{section}: {{{key}: {value}}}\n")
    before, after = getattr(deployment, section), getattr(typed, section)
    changed = getattr(after, key)
    if key == "cuda_graph_config" and section == "tensorrt_llm":
        given_keys = {
            name: given
            for name in ("batch_sizes", "max_batch_size", "enable_padding")
            if (given := getattr(changed, name)) is not None
        }
        changed = evolve(before.cuda_graph_config, **given_keys)
    return evolve(deployment, **{section: evolve(before, **{key: changed})})


BY_HAND = """
apiVersion: graphplan/v1
kind: Plan
deployment: {engine: {name: ENGINE}}
graphs:
  target:
  - {mode: PIECEWISE, num_tokens: 64}
  - {mode: FULL, num_tokens: 8, num_reqs: 8, uniform_token_count: 1}
"""


def by_hand(engine: str) -> Plan:
    return load_plan(BY_HAND.replace("ENGINE", engine))


def test_a_plan_by_hand_follows_the_rules_of_the_engine_that_it_names() -> None:
    found = {engine: by_hand(engine).dispatch_table() for engine in ("vllm", "sglang", "tensorrt-llm")}
    decode = {engine: table.dispatch(3, 3, 1).num_tokens for engine, table in found.items()}
    assert decode == {"vllm": 8, "sglang": 8, "tensorrt-llm": 3}
    prefill = {engine: table.dispatch(1, 20).num_tokens for engine, table in found.items()}
    assert prefill == {"vllm": 64, "sglang": 20, "tensorrt-llm": 64}


def test_an_edited_plan_is_to_be_compiled_anew() -> None:
    plan = compile_plan(sglang({}, scheduler={"max_num_seqs": 8}))
    edited = evolve(plan, graphs={"target": plan.entries()[:-1][: len(plan.entries()) - 4]})
    (hole,) = (one for one in verify(edited) if is_hole(one))
    assert hole.fix == "planner compile PLAN -o PLAN"


def test_many_query_lengths_by_hand_are_refused_before_they_fill_memory() -> None:
    graphs = {
        "target": [
            {"mode": "FULL", "num_tokens": n, "num_reqs": 1, "uniform_token_count": n} for n in range(1, 2000)
        ]
    }
    plan = load_plan(
        {
            "apiVersion": "graphplan/v1",
            "kind": "Plan",
            "deployment": {"engine": {"name": "sglang"}},
            "graphs": graphs,
        }
    )
    with pytest.raises(PlanError, match="too many to dispatch from"):
        plan.dispatch_table()


def test_the_runner_of_a_family_is_its_engine() -> None:
    assert compile_plan(sglang()).resolved["target"].runner is Runner.SGLANG
    assert compile_plan(tensorrt()).resolved["target"].runner is Runner.TENSORRT_LLM
    assert explain(compile_plan(sglang()), Query(num_reqs=1, num_tokens=1)).runner is Runner.SGLANG
