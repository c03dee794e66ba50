"""Defaults of what a deployment leaves open (rules 10.1), and what is refused before any rule runs."""

from __future__ import annotations

from typing import Any

import pytest

from planner import Deployment, PlanError, compile_plan, load_deployment
from planner.rules.devices import device_of
from planner.rules.settings import settle


def deployment(**sections: Any) -> Deployment:
    return load_deployment({"apiVersion": "graphplan/v1", "kind": "Deployment", **sections})


@pytest.mark.parametrize(
    ("device", "usage", "seqs", "tokens"),
    [
        ({"memory_gib": 178}, "offline", 1024, 16384),
        ({"memory_gib": 178}, "api_server", 1024, 16384),
        ({"memory_gib": 160}, "api_server", 1024, 16384),
        ({"memory_gib": 139}, "offline", 1024, 16384),
        ({"memory_gib": 139}, "api_server", 1024, 8192),
        ({"memory_gib": 70}, "api_server", 1024, 8192),
        ({"memory_gib": 79, "name": "NVIDIA A100-SXM4-80GB"}, "api_server", 256, 2048),
        ({"memory_gib": 119, "compute_capability": "12.1"}, "offline", 256, 8192),
        ({"memory_gib": 23}, "offline", 256, 8192),
        ({"memory_gib": 23}, "api_server", 256, 2048),
        ({}, "api_server", 256, 2048),
        ({"name": "H200"}, "api_server", 1024, 8192),
        ({"name": "B200"}, "api_server", 1024, 16384),
        ({"name": "A100"}, "api_server", 256, 2048),
    ],
)
def test_limits_of_a_step_follow_device_and_usage(
    device: dict[str, Any], usage: str, seqs: int, tokens: int
) -> None:
    settings = settle(deployment(device=device, engine={"usage": usage}))
    assert (settings.max_num_seqs, settings.max_num_batched_tokens) == (seqs, tokens)
    defaulted = {decision.path for decision in settings.decisions}
    assert {"scheduler.max_num_seqs", "scheduler.max_num_batched_tokens"} <= defaulted


@pytest.mark.parametrize(
    ("sections", "seqs", "tokens"),
    [
        ({"engine": {"performance_mode": "throughput"}}, 2048, 16384),
        ({"engine": {"performance_mode": "throughput"}, "scheduler": {"max_num_seqs": 4}}, 4, 16384),
        ({"scheduler": {"max_num_seqs": 2}, "model": {"max_model_len": 1000}}, 2, 2000),
        ({"scheduler": {"enable_chunked_prefill": False}, "model": {"max_model_len": 32768}}, 1024, 32768),
        ({"scheduler": {"max_num_batched_tokens": 100}, "model": {"max_model_len": 32768}}, 100, 100),
        (
            {
                "parallel": {
                    "data_parallel_size": 2,
                    "enable_expert_parallel": True,
                    "all2all_backend": "deepep_low_latency",
                }
            },
            256,
            256,
        ),
    ],
)
def test_other_settings_change_the_defaults(sections: dict[str, Any], seqs: int, tokens: int) -> None:
    settings = settle(deployment(device={"name": "H200"}, **sections))
    assert (settings.max_num_seqs, settings.max_num_batched_tokens) == (seqs, tokens)


def test_what_is_written_is_no_decision() -> None:
    scheduler = {"max_num_seqs": 8, "max_num_batched_tokens": 512}
    paths = {decision.path for decision in settle(deployment(scheduler=scheduler)).decisions}
    assert not {path for path in paths if path.startswith("scheduler.")}


def test_what_the_name_of_a_device_tells_may_be_overruled() -> None:
    device = device_of(deployment(device={"name": "H200", "memory_gib": 70}).device)
    assert (device.compute_capability, device.memory_gib) == ((9, 0), 70)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"engine": {"name": "lmdeploy"}},
            "'lmdeploy' is no engine that can be planned for; those are: vllm",
        ),
        ({"engine": {"version": "0.32"}}, "'0.32' are not known; supported versions: 0.33"),
        ({"device": {"compute_capability": "9"}}, "'9' is no compute capability; write it as 9.0"),
        ({"speculative": {"method": "mtp"}}, "the number of draft tokens is not given"),
        ({"engine": {"env": {"TORCH_COMPILE_DISABLE": "maybe"}}}, "'maybe'; set it to 0 or 1"),
        (
            {
                "speculative": {
                    "method": "mtp",
                    "num_speculative_tokens": 2,
                    "num_speculative_tokens_per_batch_size": [[2, 4, 1]],
                }
            },
            "begins at 2 requests",
        ),
    ],
)
def test_a_refusal_says_what_is_known(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        compile_plan(deployment(**sections))


MICROBATCHES = {
    "data_parallel_size": 2,
    "enable_dbo": True,
    "all2all_backend": "deepep_low_latency",
}


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ({"dbo_decode_token_threshold": 1}, "1 tokens, fewer than the 2 microbatches"),
        (
            {"enable_dbo": False, "ubatch_size": 4, "dbo_prefill_token_threshold": 3},
            "3 tokens, fewer than the 4",
        ),
        ({"all2all_backend": "allgather_reducescatter"}, "all2all_backend is allgather_reducescatter"),
    ],
)
def test_microbatches_are_refused_with_both_values(parallel: dict[str, Any], message: str) -> None:
    engine = {"runner": "v2"}
    with pytest.raises(PlanError, match=message):
        settle(deployment(engine=engine, parallel=MICROBATCHES | parallel))


def test_a_single_rank_never_cuts_a_step() -> None:
    one = MICROBATCHES | {"data_parallel_size": 1}
    assert settle(deployment(engine={"runner": "v2"}, parallel=one)).microbatching is None
    assert settle(deployment(engine={"runner": "v2"}, parallel=MICROBATCHES)).microbatching is not None


def test_ranks_of_a_dense_model_are_independent_and_said_to_be() -> None:
    settings = settle(deployment(parallel={"data_parallel_size": 4, "is_moe_model": False}))
    assert settings.data_parallel_size == 1
    assert "dense-ranks-are-independent" in {decision.rule for decision in settings.decisions}


def test_a_schedule_is_dropped_where_ranks_would_draft_apart() -> None:
    speculative = {
        "method": "mtp",
        "num_speculative_tokens": 3,
        "num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 8, 1]],
    }
    settings = settle(deployment(speculative=speculative, parallel={"data_parallel_size": 2}))
    assert settings.query_lens == (4,)
    assert "schedule-needs-one-rank" in {decision.rule for decision in settings.decisions}


@pytest.mark.parametrize(
    ("sections", "active"),
    [
        ({"device": {"name": "H200"}}, 512),
        ({"device": {"name": "B200"}}, None),
        ({"device": {"name": "H200"}, "scheduler": {"max_num_active_seqs": 100}}, 100),
        ({"device": {"name": "H200"}, "scheduler": {"max_num_active_seqs": 600}}, 512),
        ({"device": {"name": "H200"}, "scheduler": {"max_num_seqs": 512}}, None),
        ({"device": {"name": "H200"}, "engine": {"performance_mode": "throughput"}}, 1024),
    ],
)
def test_the_engines_own_limits_leave_no_more_room_for_drafts_than_written_ones(
    sections: dict[str, Any], active: int | None
) -> None:
    settings = settle(deployment(speculative={"method": "dflash", "num_speculative_tokens": 15}, **sections))
    assert settings.max_num_active_seqs == active
    lowered = [
        decision for decision in settings.decisions if decision.path == "scheduler.max_num_active_seqs"
    ]
    asked = sections.get("scheduler", {}).get("max_num_active_seqs")
    assert [decision.became for decision in lowered] == ([active] if active != asked else [])


@pytest.mark.parametrize(("method", "tokens"), [("dflash", 8), ("dspark", 9)])
def test_drafts_of_one_request_must_fit_a_step(method: str, tokens: int) -> None:
    speculative = {"method": method, "num_speculative_tokens": tokens}
    limits = {"max_num_seqs": 1, "max_num_batched_tokens": 8}
    with pytest.raises(PlanError, match="each request drafts 9 tokens, but the budget of a step is 8"):
        settle(deployment(speculative=speculative, scheduler=limits))


def test_dflash_never_schedules_more_requests_than_its_drafts_leave_room_for() -> None:
    speculative = {"method": "dflash", "num_speculative_tokens": 15}
    limits = {"max_num_seqs": 128, "max_num_batched_tokens": 1024}
    settings = settle(deployment(speculative=speculative, scheduler=limits))
    assert settings.max_num_active_seqs == 64
    assert "scheduler.max_num_active_seqs" in {decision.path for decision in settings.decisions}


def test_holes_of_a_server_whose_limit_is_left_open_stop_at_what_drafts_leave_room_for() -> None:
    plan = compile_plan(
        deployment(device={"name": "H200"}, speculative={"method": "dflash", "num_speculative_tokens": 15})
    )
    assert plan.resolved["target"].max_num_seqs == 1024
    assert plan.resolved["target"].max_num_active_seqs == 512
    (hole,) = [finding for finding in plan.findings if finding.code == "decode-hole"]
    assert "uniform decode of 33 to 512 requests" in hole.message


def test_a_schedule_is_dropped_over_ranks_that_turn_out_to_be_independent() -> None:
    """The engine drops it before it knows that a model without experts leaves its ranks alone."""
    speculative = {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 8, 1]],
    }
    parallel = {"data_parallel_size": 2, "is_moe_model": False}
    settings = settle(deployment(speculative=speculative, parallel=parallel))
    assert (settings.data_parallel_size, settings.query_lens) == (1, (4,))
    assert "schedule-needs-one-rank" in {decision.rule for decision in settings.decisions}


def test_a_step_has_a_token_for_each_request() -> None:
    assert settle(deployment(scheduler={"max_num_seqs": 8, "max_num_batched_tokens": 8})).max_num_seqs == 8
    with pytest.raises(PlanError, match="9 requests do not fit into a step of 8 tokens"):
        settle(deployment(scheduler={"max_num_seqs": 9, "max_num_batched_tokens": 8}))


@pytest.mark.parametrize(
    ("method", "least"), [("eagle3", 4), ("mtp", 4), ("draft_model", 4), ("dflash", 5), ("ngram", 1)]
)
def test_a_step_has_a_token_beside_the_drafts_of_a_request(method: str, least: int) -> None:
    speculative = {"method": method, "num_speculative_tokens": 3}
    limits = {"max_num_seqs": 1, "max_num_batched_tokens": least}
    assert settle(deployment(speculative=speculative, scheduler=limits)).max_num_batched_tokens == least
    if least > 1:
        limits = {"max_num_seqs": 1, "max_num_batched_tokens": least - 1}
        with pytest.raises(PlanError, match=r"raise the one or lower the other"):
            settle(deployment(speculative=speculative, scheduler=limits))
