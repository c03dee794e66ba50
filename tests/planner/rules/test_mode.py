"""Mode resolution: the decision tables that were run on the real engine (rules 3.3), and the steps before."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from planner import AttentionSupport, CompilationMode, CUDAGraphMode, PlanError, compile_plan, load_deployment
from planner.rules.mode import (
    ModeRequest,
    ModeState,
    SplittingRequest,
    SupportRequest,
    mode_after_splitting,
    mode_before_sizes,
    mode_for_adaptive_verification,
    mode_within_support,
)

REFUSED = "refused"
SHORT = {
    "NONE": CUDAGraphMode.NONE,
    "PW": CUDAGraphMode.PIECEWISE,
    "FULL": CUDAGraphMode.FULL,
    "FDO": CUDAGraphMode.FULL_DECODE_ONLY,
    "FAP": CUDAGraphMode.FULL_AND_PIECEWISE,
}
SUPPORTS = (
    AttentionSupport.ALWAYS,
    AttentionSupport.UNIFORM_BATCH,
    AttentionSupport.UNIFORM_SINGLE_TOKEN_DECODE,
    AttentionSupport.NEVER,
)

# asked, query length -> the mode by support: ALWAYS, UNIFORM_BATCH, single-token decode, NEVER
USUAL = {
    ("NONE", 1): ("NONE", "NONE", "NONE", "NONE"),
    ("NONE", 4): ("NONE", "NONE", "NONE", "NONE"),
    ("PW", 1): ("PW", "PW", "PW", "PW"),
    ("PW", 4): ("PW", "PW", "PW", "PW"),
    ("FULL", 1): ("FULL", "FAP", "FAP", REFUSED),
    ("FULL", 4): ("FULL", "FAP", "PW", REFUSED),
    ("FDO", 1): ("FDO", "FDO", "FDO", "PW"),
    ("FDO", 4): ("FDO", "FDO", "PW", "PW"),
    ("FAP", 1): ("FAP", "FAP", "FAP", "PW"),
    ("FAP", 4): ("FAP", "FAP", "PW", "PW"),
}
# What differs from the usual where compilation cuts elsewhere: no attention among the splitting
# operations (B), that with inductor partition (C), no compilation (D), that with a full list (E).
ENVIRONMENTS = {
    "A": ((CompilationMode.VLLM_COMPILE, True, False), {}),
    "B": (
        (CompilationMode.VLLM_COMPILE, False, False),
        {
            ("FULL", 1): ("FULL", "FDO", "FDO", REFUSED),
            ("FULL", 4): ("FULL", "FDO", "NONE", REFUSED),
            ("FDO", 1): ("FDO", "FDO", "FDO", "NONE"),
            ("FDO", 4): ("FDO", "FDO", "NONE", "NONE"),
            ("FAP", 1): ("FAP", "FAP", "FAP", "NONE"),
            ("FAP", 4): ("FAP", "FAP", "NONE", "NONE"),
        },
    ),
    "C": (
        (CompilationMode.VLLM_COMPILE, False, True),
        {
            ("FULL", 1): ("FULL", "FDO", "FDO", REFUSED),
            ("FULL", 4): ("FULL", "FDO", "NONE", REFUSED),
            ("FDO", 4): ("FDO", "FDO", "NONE", "PW"),
            ("FAP", 4): ("FAP", "FAP", "NONE", "PW"),
        },
    ),
}
UNCOMPILED = {
    "D": (
        False,
        {
            ("FULL", 1): ("FULL", "FDO", "FDO", REFUSED),
            ("FULL", 4): ("FULL", "FDO", "NONE", REFUSED),
            ("FDO", 1): ("FDO", "FDO", "FDO", "NONE"),
            ("FDO", 4): ("FDO", "FDO", "NONE", "NONE"),
            ("FAP", 1): ("FAP", "FAP", "FAP", "NONE"),
            ("FAP", 4): ("FAP", "FAP", "NONE", "NONE"),
        },
    ),
    "E": (
        True,
        {
            ("FDO", 1): ("FDO", "FDO", "FDO", "NONE"),
            ("FDO", 4): ("FDO", "FDO", "PW", "NONE"),
            ("FAP", 1): ("FAP", "FAP", "FAP", "NONE"),
            ("FAP", 4): ("FAP", "FAP", "PW", "NONE"),
        },
    ),
}


def table_rows() -> list[Any]:
    rows = []
    for name, ((compile_mode, splits, partition), differing) in ENVIRONMENTS.items():
        for (asked, query_len), results in (USUAL | differing).items():
            for support, result in zip(SUPPORTS, results, strict=True):
                case = (asked, query_len, support, compile_mode, splits, partition, False, result)
                rows.append(pytest.param(*case, id=f"{name}-{asked}-{query_len}-{support}"))
    for name, (splits, differing) in UNCOMPILED.items():
        for (asked, query_len), results in (USUAL | differing).items():
            for support, result in zip(SUPPORTS, results, strict=True):
                # Breakable graphs keep pieces available without compilation; without them each
                # result loses its pieces.
                for breakable in (True, False):
                    final = result
                    if not breakable and result != REFUSED:
                        final = {"PW": "NONE", "FAP": "FDO"}.get(result, result)
                    case = (asked, query_len, support, CompilationMode.NONE, splits, False, breakable, final)
                    rows.append(pytest.param(*case, id=f"{name}-{asked}-{query_len}-{support}-{breakable}"))
    return rows


@pytest.mark.parametrize(
    ("asked", "query_len", "support", "compile_mode", "splits", "partition", "breakable", "result"),
    table_rows(),
)
def test_resolved_modes_are_the_engines(
    asked: str,
    query_len: int,
    support: AttentionSupport,
    compile_mode: CompilationMode,
    splits: bool,
    partition: bool,
    breakable: bool,
    result: str,
) -> None:
    state = ModeState(cudagraph_mode=SHORT[asked], compile_mode=compile_mode, splits_attention=splits)
    request = SupportRequest(
        support=support,
        backend="SOME_BACKEND",
        query_len=query_len,
        inductor_partition=partition,
        breakable_graphs=breakable,
    )
    if result == REFUSED:
        with pytest.raises(PlanError, match="FULL is asked for but SOME_BACKEND supports graphs NEVER"):
            mode_within_support(state, request)
        return
    resolved = mode_within_support(state, request)
    assert resolved.cudagraph_mode is SHORT[result]
    steps = [(decision.asked, decision.became) for decision in resolved.decisions]
    assert bool(steps) is (asked != result)
    for (_, became), (asked_next, _) in pairwise(steps):
        assert became == asked_next


@pytest.mark.parametrize(
    ("level", "mode", "compile_mode"),
    [(0, "NONE", "NONE"), (1, "PW", "VLLM_COMPILE"), (2, "FAP", "VLLM_COMPILE"), (3, "FAP", "VLLM_COMPILE")],
)
def test_the_optimisation_level_gives_the_defaults(level: int, mode: str, compile_mode: str) -> None:
    state = mode_before_sizes(ModeRequest(optimization_level=level))
    assert state.cudagraph_mode is SHORT[mode]
    assert state.compile_mode is CompilationMode[compile_mode]
    assert {decision.rule for decision in state.decisions} == {"level-default"}


@pytest.mark.parametrize(
    ("request_", "mode", "compile_mode"),
    [
        (ModeRequest(enforce_eager=True), "NONE", "NONE"),
        (ModeRequest(torch_compile_disabled=True), "FDO", "NONE"),
        (ModeRequest(breakable_because="the switch is on"), "FAP", "NONE"),
        (ModeRequest(compile_mode=CompilationMode.NONE), "FDO", "NONE"),
        (ModeRequest(compile_mode=CompilationMode.DYNAMO_TRACE_ONCE), "FDO", "DYNAMO_TRACE_ONCE"),
        (
            ModeRequest(cudagraph_mode=CUDAGraphMode.PIECEWISE, compile_mode=CompilationMode.NONE),
            "NONE",
            "NONE",
        ),
        (ModeRequest(cudagraph_mode=CUDAGraphMode.FULL, compile_mode=CompilationMode.NONE), "FULL", "NONE"),
    ],
)
def test_settings_before_the_sizes_lower_the_mode(
    request_: ModeRequest, mode: str, compile_mode: str
) -> None:
    state = mode_before_sizes(request_)
    assert state.cudagraph_mode is SHORT[mode]
    assert state.compile_mode is CompilationMode[compile_mode]


@pytest.mark.parametrize(
    ("asked", "request_", "mode", "splits"),
    [
        ("FAP", SplittingRequest(), "FAP", True),
        ("PW", SplittingRequest(splitting_ops=()), "NONE", False),
        ("FAP", SplittingRequest(splitting_ops=()), "FULL", False),
        ("FDO", SplittingRequest(splitting_ops=()), "FDO", False),
        ("PW", SplittingRequest(splitting_ops=("x",)), "PW", False),
        ("PW", SplittingRequest(splitting_ops=("x",), names_attention=True), "PW", True),
        ("PW", SplittingRequest(fuse_attention_quant=True), "FULL", False),
        ("FDO", SplittingRequest(fuse_attention_quant=True), "FDO", False),
        ("PW", SplittingRequest(fuse_attention_quant=True, inductor_partition=True), "PW", True),
        ("FAP", SplittingRequest(expert_backend="deepep_high_throughput"), "NONE", True),
        ("FAP", SplittingRequest(expert_backend="deepep_low_latency"), "FAP", True),
    ],
)
def test_splitting_operations_change_the_mode(
    asked: str, request_: SplittingRequest, mode: str, splits: bool
) -> None:
    state = ModeState(cudagraph_mode=SHORT[asked], compile_mode=CompilationMode.VLLM_COMPILE)
    after = mode_after_splitting(state, request_)
    assert (after.cudagraph_mode, after.splits_attention) == (SHORT[mode], splits)


def test_fused_attention_cannot_also_be_a_place_to_cut() -> None:
    state = ModeState(cudagraph_mode=CUDAGraphMode.PIECEWISE, compile_mode=CompilationMode.VLLM_COMPILE)
    request = SplittingRequest(splitting_ops=("x",), names_attention=True, fuse_attention_quant=True)
    with pytest.raises(PlanError, match="fuse_attn_quant true"):
        mode_after_splitting(state, request)


def test_without_compilation_deepep_is_never_looked_at() -> None:
    state = ModeState(cudagraph_mode=CUDAGraphMode.FULL_DECODE_ONLY, compile_mode=CompilationMode.NONE)
    after = mode_after_splitting(state, SplittingRequest(expert_backend="deepep_high_throughput"))
    assert after.cudagraph_mode is CUDAGraphMode.FULL_DECODE_ONLY


@pytest.mark.parametrize(
    ("asked", "available", "mode"),
    [
        ("FULL", True, "FAP"),
        ("FULL", False, "FDO"),
        ("FAP", True, "FAP"),
        ("FAP", False, "FDO"),
        ("FDO", True, "FDO"),
    ],
)
def test_adaptive_verification_separates_decode_from_mixed(asked: str, available: bool, mode: str) -> None:
    state = ModeState(cudagraph_mode=SHORT[asked], compile_mode=CompilationMode.VLLM_COMPILE)
    assert mode_for_adaptive_verification(state, piecewise_available=available).cudagraph_mode is SHORT[mode]


ADAPTIVE = {"method": "mtp", "num_speculative_tokens": 7, "enable_adaptive_verification": True}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"compilation": {"cudagraph_mode": "PIECEWISE"}}, "needs FULL graphs but the mode is PIECEWISE"),
        ({"lora": {"max_loras": 2}}, "LoRA exclude each other"),
        ({"parallel": {"pipeline_parallel_size": 2}}, "1 pipeline stage, not 2"),
        ({"model": {"attention_support": "UNIFORM_BATCH"}}, "allows none"),
        (
            {"model": {"attention_support": "UNIFORM_BATCH", "varlen_max_query_len": 7}},
            "1 to 8 tokens a request, but attention .UNIFORM_BATCH. allows at most 7",
        ),
    ],
)
def test_adaptive_verification_is_refused_with_the_reason(sections: dict[str, Any], message: str) -> None:
    document = {"apiVersion": "graphplan/v1", "kind": "Deployment", "speculative": ADAPTIVE, **sections}
    with pytest.raises(PlanError, match=message):
        compile_plan(load_deployment(document))


def test_adaptive_verification_runs_where_attention_replays_the_whole_width() -> None:
    model = {"attention_support": "UNIFORM_BATCH", "varlen_max_query_len": 8}
    document = {"apiVersion": "graphplan/v1", "kind": "Deployment", "speculative": ADAPTIVE, "model": model}
    full = [entry for entry in compile_plan(load_deployment(document)).entries() if entry.num_reqs]
    assert full
    assert {entry.max_query_len for entry in full} == {8}


@pytest.mark.parametrize(
    ("sections", "rule"),
    [
        ({"compilation": {"mode": "STOCK_TORCH_COMPILE"}}, "stock-torch-compile"),
        (
            {
                "parallel": {
                    "data_parallel_size": 2,
                    "enable_expert_parallel": True,
                    "all2all_backend": "moonep",
                }
            },
            "moonep",
        ),
        (
            {"parallel": {"data_parallel_size": 2, "all2all_backend": "deepep_high_throughput"}},
            "deepep-high-throughput",
        ),
    ],
)
def test_settings_that_end_all_graphs_say_so(sections: dict[str, Any], rule: str) -> None:
    plan = compile_plan(load_deployment({"apiVersion": "graphplan/v1", "kind": "Deployment", **sections}))
    assert plan.resolved["target"].cudagraph_mode is CUDAGraphMode.NONE
    assert plan.entries() == ()
    assert rule in {decision.rule for decision in plan.decisions}
