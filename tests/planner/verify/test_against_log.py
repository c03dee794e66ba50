"""Plans beside what their servers said: what differs, what agrees, and what could not be compared."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

import planner
from planner.documents.plan import Finding, Plan
from planner.modes import AttentionSupport, CUDAGraphMode, Runner
from planner.server_config import ServerConfig
from planner.server_log import CapturedGraphs, RankCapture, ServerLog, read_server_log
from planner.verify.against_log import Comparison, compare_with_log

PROJECT = Path(__file__).resolve().parents[3]
LOGS = PROJECT / "tests" / "data" / "server-logs"
PIECEWISE, FULL, NONE = CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL, CUDAGraphMode.NONE


def compiled(name: str) -> Plan:
    """A plan that the project ships."""
    return planner.load_plan(PROJECT / "plans" / "compiled" / f"{name}.yaml")


def said_in(name: str) -> ServerLog:
    """What one of the sample logs says."""
    said = read_server_log((LOGS / name).read_bytes().splitlines(keepends=True))
    assert said is not None
    return said


def by_hand(*entries: str) -> Plan:
    """A plan of nothing but the target's ``entries``."""
    listed = "".join(f"\n  - {{{entry}}}" for entry in entries)
    return planner.load_plan(f"apiVersion: graphplan/v1\nkind: Plan\ngraphs:\n  target:{listed or ' []'}\n")


def codes(comparison: Comparison) -> dict[str, str]:
    """Severity of each finding by its code."""
    return {finding.code: finding.severity for finding in comparison.findings}


def found(comparison: Comparison, code: str) -> Finding:
    """The one finding ``code``."""
    (finding,) = (one for one in comparison.findings if one.code == code)
    return finding


def rows(comparison: Comparison) -> dict[str, tuple[object, object, bool | None]]:
    """What plan and server say by subject."""
    return {one.subject: (one.plan, one.server, one.agrees) for one in comparison.compared}


DFLASH, DFLASH_SAID = compiled("qwen3-8b-dflash"), said_in("qwen3-8b-dflash.log")
EAGLE_V1, EAGLE_V1_SAID = compiled("llama-3.1-70b-eagle3-v1"), said_in("llama-3.1-70b-eagle3-v1.log")
SMALL, SMALL_SAID = compiled("llama-3.1-8b-24gb"), said_in("llama-3.1-8b-24gb-out-of-memory.json.log")

BY_HAND = by_hand(
    "mode: PIECEWISE, num_tokens: 8",
    "mode: PIECEWISE, num_tokens: 2",
    "mode: FULL, num_tokens: 4, num_reqs: 4, uniform_token_count: 1",
)
SAYS_NOTHING = ServerLog(
    starts=1,
    config=ServerConfig(),
    runner=None,
    cudagraph_mode=None,
    lowered_because=None,
    attention_support=None,
    graphs=(),
    captures_nothing=False,
    ranks=(RankCapture(process="", seconds=3.0, gib=None),),
    failure=None,
    is_past_trial=True,
)


def config(said: ServerLog, **changes: object) -> ServerLog:
    """``said`` with another config."""
    return evolve(said, config=evolve(said.config, **changes))


def graphs(*captured: tuple[str, CUDAGraphMode, int]) -> tuple[CapturedGraphs, ...]:
    """Graphs that were captured to the last."""
    return tuple(
        CapturedGraphs(family=name, mode=mode, captured=number, total=number)
        for name, mode, number in captured
    )


def test_a_server_that_did_what_its_plan_says_gives_no_finding() -> None:
    comparison = compare_with_log(DFLASH, DFLASH_SAID)
    assert comparison.findings == ()
    assert all(one.agrees for one in comparison.compared)
    assert rows(comparison)["target PIECEWISE"] == (51, 51, True)
    assert rows(comparison)["draft FULL"] == (32, 32, True)
    assert comparison.facts == (("capture", "21 s, 1.12 GiB, the most of 2 ranks"),)


def test_sizes_are_compared_as_the_v1_runner_rounds_them() -> None:
    comparison = compare_with_log(EAGLE_V1, EAGLE_V1_SAID)
    assert EAGLE_V1_SAID.config.cudagraph_capture_sizes != EAGLE_V1.resolved["target"].cudagraph_capture_sizes
    assert rows(comparison)["cudagraph_capture_sizes"][2] is True
    assert codes(comparison) == {"log-not-compared": "info"}


def test_the_v1_runner_rounds_nothing_where_decode_has_no_graphs_of_its_own() -> None:
    pieces = evolve(EAGLE_V1_SAID, cudagraph_mode=PIECEWISE)
    message = found(compare_with_log(EAGLE_V1, pieces), "log-sizes-differ").message
    assert message == "cudagraph_capture_sizes: only in the server: 1, 2"


def test_the_v1_runner_captures_its_draft_without_saying_so() -> None:
    comparison = compare_with_log(EAGLE_V1, EAGLE_V1_SAID)
    assert found(comparison, "log-not-compared").message == "not compared, as not in the log: draft PIECEWISE"


def test_sizes_of_one_side_only_are_listed() -> None:
    said = config(SMALL_SAID, cudagraph_capture_sizes=(1, 2, 4, 8, 16, 32), max_cudagraph_capture_size=32)
    comparison = compare_with_log(SMALL, said)
    assert found(comparison, "log-sizes-differ").message == (
        "cudagraph_capture_sizes: only in the plan: 12, 24; only in the server: 32"
    )
    assert found(comparison, "log-max-differs").message == (
        "max_cudagraph_capture_size: 24 in the plan, 32 in the server"
    )


def test_a_fix_is_given_once() -> None:
    said = config(SMALL_SAID, cudagraph_capture_sizes=(1, 32), max_cudagraph_capture_size=32)
    fixes = [finding.fix for finding in compare_with_log(SMALL, said).findings if finding.fix]
    assert len(fixes) == len(set(fixes))


def test_a_mode_that_attention_lowered_comes_with_the_server_s_words_and_the_fix() -> None:
    because = "CUDAGraphMode.FULL_AND_PIECEWISE is not supported with X; setting cudagraph_mode=PIECEWISE"
    said = evolve(
        DFLASH_SAID,
        cudagraph_mode=PIECEWISE,
        lowered_because=because,
        attention_support=AttentionSupport.UNIFORM_SINGLE_TOKEN_DECODE,
        graphs=graphs(("target", PIECEWISE, 51)),
    )
    comparison = compare_with_log(DFLASH, said)
    finding = found(comparison, "log-mode-differs")
    assert finding.message == (
        f"cudagraph_mode: FULL_AND_PIECEWISE in the plan, PIECEWISE in the server, which says: {because}"
    )
    assert finding.fix == "model.attention_support: UNIFORM_SINGLE_TOKEN_DECODE"
    assert rows(comparison)["target FULL"] == (32, 0, False)


def test_an_eager_server_captured_nothing() -> None:
    said = evolve(config(DFLASH_SAID, cudagraph_capture_sizes=()), cudagraph_mode=NONE, graphs=(), ranks=())
    comparison = compare_with_log(DFLASH, said)
    assert set(codes(comparison)) == {"log-mode-differs", "log-graph-count-differs"}
    assert rows(comparison)["target PIECEWISE"] == (51, 0, False)
    assert "cudagraph_capture_sizes" not in rows(comparison)


def test_adaptive_verification_captures_in_a_mode_that_it_does_not_print() -> None:
    speculative = evolve(DFLASH.deployment.speculative, enable_adaptive_verification=True)
    plan = evolve(DFLASH, deployment=evolve(DFLASH.deployment, speculative=speculative))
    comparison = compare_with_log(plan, evolve(DFLASH_SAID, cudagraph_mode=FULL))
    assert rows(comparison)["cudagraph_mode"] == ("FULL_AND_PIECEWISE", None, None)


def test_the_number_of_graphs_is_compared_by_family_and_mode() -> None:
    said = evolve(DFLASH_SAID, graphs=graphs(("target", PIECEWISE, 51), ("target", FULL, 31)))
    comparison = compare_with_log(DFLASH, said)
    assert [finding.message for finding in comparison.findings] == [
        "graphs.target: 32 FULL in the plan, 31 in the server",
        "graphs.draft: 32 FULL in the plan, 0 in the server",
    ]


def test_graphs_that_only_the_server_has_are_a_difference() -> None:
    said = evolve(DFLASH_SAID, graphs=(*DFLASH_SAID.graphs, *graphs(("encoder", FULL, 6))))
    message = found(compare_with_log(DFLASH, said), "log-graph-count-differs").message
    assert message == "graphs.encoder: 0 FULL in the plan, 6 in the server"


def test_adapters_multiply_what_a_bar_counts() -> None:
    plan = compiled("llama-3.1-8b-lora")
    said = evolve(SAYS_NOTHING, graphs=graphs(("target", PIECEWISE, 35 * 6), ("target", FULL, 19 * 6)))
    assert rows(compare_with_log(plan, said))["target PIECEWISE"] == (210, 210, True)
    assert rows(compare_with_log(plan, said))["target FULL"] == (114, 114, True)


def test_one_bar_counts_the_graphs_of_all_numbers_of_draft_tokens() -> None:
    entry = "\n  - {mode: FULL, num_tokens: 1, num_reqs: 1, uniform_token_count: 1}"
    families = "".join(f"\n  draft_decode_{number}:{entry}" for number in (3, 7))
    plan = planner.load_plan(f"apiVersion: graphplan/v1\nkind: Plan\ngraphs:\n  target: []{families}\n")
    said = evolve(SAYS_NOTHING, graphs=graphs(("draft_decode", FULL, 2)))
    assert rows(compare_with_log(plan, said))["draft_decode FULL"] == (2, 2, True)


def test_another_version_is_a_warning_and_a_patch_of_the_same_is_none() -> None:
    other = compare_with_log(DFLASH, config(DFLASH_SAID, version="0.31.2"))
    assert codes(other) == {"log-version": "warning"}
    assert codes(compare_with_log(DFLASH, config(DFLASH_SAID, version="0.33.1.dev4+gabc"))) == {}


def test_other_settings_behind_the_graphs_are_named_with_the_fix() -> None:
    comparison = compare_with_log(
        DFLASH, evolve(config(DFLASH_SAID, num_speculative_tokens=7), runner=Runner.V1)
    )
    assert found(comparison, "log-drafts-differ").fix == "speculative.num_speculative_tokens: 7"
    assert found(comparison, "log-runner-differs").fix == "engine.runner: v1"


def test_a_capture_that_ran_out_of_memory_says_how_far_it_came() -> None:
    comparison = compare_with_log(SMALL, SMALL_SAID)
    assert codes(comparison) == {"log-capture-failed": "error"}
    finding = found(comparison, "log-capture-failed")
    assert finding.message == "the server's capture ended at 3 of 5 FULL graphs of target: out of memory"
    assert finding.fix
    assert "gpu_memory_utilization" in finding.fix


def test_a_log_that_ends_within_the_capture_says_so() -> None:
    finding = found(compare_with_log(SMALL, evolve(SMALL_SAID, failure=None)), "log-capture-failed")
    assert finding.message.endswith("3 of 5 FULL graphs of target; the log ends there")


def test_an_engine_that_failed_before_its_capture_did_not_finish_it() -> None:
    said = evolve(SMALL_SAID, graphs=(), failure="the engine failed")
    finding = found(compare_with_log(SMALL, said), "log-capture-failed")
    assert finding.message == "the server did not finish its capture: the engine failed"


def test_bars_that_were_torn_are_no_failure_once_the_capture_is_finished() -> None:
    torn = tuple(evolve(told, captured=told.total - 1) for told in DFLASH_SAID.graphs)
    assert codes(compare_with_log(DFLASH, evolve(DFLASH_SAID, graphs=torn))) == {}


def test_a_trial_of_two_graphs_is_not_taken_for_the_capture() -> None:
    trial = graphs(("target", PIECEWISE, 51), ("target", FULL, 2), ("draft", FULL, 32))
    said = evolve(DFLASH_SAID, graphs=trial, is_past_trial=False)
    assert codes(compare_with_log(DFLASH, said)) == {"log-not-compared": "warning"}
    real = evolve(said, is_past_trial=True)
    assert codes(compare_with_log(DFLASH, real)) == {"log-graph-count-differs": "error"}


def test_what_the_log_does_not_say_is_listed_and_a_warning() -> None:
    comparison = compare_with_log(DFLASH, SAYS_NOTHING)
    assert codes(comparison) == {"log-not-compared": "warning"}
    assert found(comparison, "log-not-compared").message == (
        "not compared, as not in the log: vllm, runner, num_speculative_tokens, cudagraph_mode, "
        "cudagraph_capture_sizes, max_cudagraph_capture_size, target PIECEWISE, target FULL, draft FULL"
    )
    assert comparison.facts == (("capture", "3 s"),)


def test_several_starts_are_a_fact() -> None:
    facts = dict(compare_with_log(DFLASH, evolve(DFLASH_SAID, starts=3)).facts)
    assert facts["starts"] == "3, of which the last counts"


def test_a_plan_by_hand_is_compared_by_its_entries() -> None:
    said = evolve(
        SAYS_NOTHING,
        config=ServerConfig(version="0.33.0", cudagraph_capture_sizes=(2, 8), max_cudagraph_capture_size=8),
        cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE,
        graphs=graphs(("target", PIECEWISE, 2), ("target", FULL, 1)),
        runner=Runner.V2,
    )
    comparison = compare_with_log(BY_HAND, said)
    assert rows(comparison)["cudagraph_capture_sizes"] == ([2, 8], [2, 8], True)
    assert rows(comparison)["max_cudagraph_capture_size"] == (8, 8, True)
    assert rows(comparison)["cudagraph_mode"][2] is True
    assert [finding.message for finding in comparison.findings] == [
        "not compared, as not in the log: num_speculative_tokens; not in the plan: runner"
    ]


@pytest.mark.parametrize(
    ("entries", "mode"),
    [
        ((), "NONE"),
        (("mode: PIECEWISE, num_tokens: 8",), "PIECEWISE"),
        (("mode: FULL, num_tokens: 8, num_reqs: 8",), "FULL"),
        (("mode: FULL, num_tokens: 8, num_reqs: 8, uniform_token_count: 1",), "FULL_DECODE_ONLY"),
        (
            (
                "mode: PIECEWISE, num_tokens: 8",
                "mode: FULL, num_tokens: 8, num_reqs: 8, max_query_len: 4",
            ),
            "FULL_AND_PIECEWISE",
        ),
        (
            (
                "mode: FULL, num_tokens: 16, num_reqs: 8",
                "mode: FULL, num_tokens: 8, num_reqs: 8, uniform_token_count: 1",
            ),
            None,
        ),
        (("mode: PIECEWISE, num_tokens: 8", "mode: FULL, num_tokens: 8, num_reqs: 8"), None),
    ],
)
def test_the_mode_of_a_plan_by_hand_is_the_one_that_makes_such_graphs(
    entries: tuple[str, ...], mode: str | None
) -> None:
    assert rows(compare_with_log(by_hand(*entries), DFLASH_SAID))["cudagraph_mode"][0] == mode


def test_decode_graphs_alone_do_not_tell_the_sizes() -> None:
    plan = by_hand("mode: FULL, num_tokens: 8, num_reqs: 8, uniform_token_count: 1")
    comparison = compare_with_log(plan, DFLASH_SAID)
    assert rows(comparison)["cudagraph_capture_sizes"][::2] == (None, None)
    assert "cudagraph_capture_sizes" in found(comparison, "log-not-compared").message


@pytest.mark.parametrize(
    ("field", "value", "fix"),
    [
        ("tensor_parallel_size", 4, "parallel.tensor_parallel_size: 4"),
        ("max_model_len", 8192, "model.max_model_len: 8192"),
    ],
)
def test_a_setting_that_the_server_states_otherwise_is_a_difference(field: str, value: int, fix: str) -> None:
    comparison = compare_with_log(DFLASH, config(DFLASH_SAID, **{field: value}))
    assert codes(comparison) == {"log-settings-differ": "error"}
    assert found(comparison, "log-settings-differ").fix == fix
    assert rows(comparison)[field][1:] == (value, False)


def test_a_setting_that_the_plan_leaves_open_is_not_compared() -> None:
    assert SMALL.deployment.parallel.tensor_parallel_size is None
    assert "tensor_parallel_size" not in rows(
        compare_with_log(SMALL, config(SMALL_SAID, tensor_parallel_size=2))
    )


@pytest.mark.parametrize(
    ("dtype", "server", "agrees"),
    [("half", "float16", True), ("bfloat16", "bfloat16", True), ("bfloat16", "float16", False)],
)
def test_data_types_are_compared_under_either_name(dtype: str, server: str, agrees: bool) -> None:
    deployment = evolve(DFLASH.deployment, model=evolve(DFLASH.deployment.model, dtype=dtype))
    comparison = compare_with_log(evolve(DFLASH, deployment=deployment), config(DFLASH_SAID, dtype=server))
    assert rows(comparison)["dtype"][2] is agrees


def test_ranks_of_a_dense_model_may_be_printed_as_asked_for_or_as_one() -> None:
    parallel = evolve(DFLASH.deployment.parallel, data_parallel_size=4)
    plan = evolve(DFLASH, deployment=evolve(DFLASH.deployment, parallel=parallel))
    assert plan.resolved["target"].data_parallel_size == 1
    for printed, agrees in ((1, True), (4, True), (2, False)):
        comparison = compare_with_log(plan, config(DFLASH_SAID, data_parallel_size=printed))
        assert rows(comparison)["data_parallel_size"][2] is agrees


@pytest.mark.parametrize(
    ("name", "model", "is_same"),
    [
        ("llama-3.1-8b-lora", "meta-llama/Meta-Llama-3.1-8B-Instruct", True),
        ("Qwen3 8B", "/models/Qwen3-8B-FP8/", True),
        ("prod-qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", True),
        ("deepseek-v3", "deepseek-ai/DeepSeek-V3-0324", True),
        ("mixtral-8x7b-h100", "mistralai/Mixtral-8x7B-Instruct-v0.1", True),
        ("llama-3.1-8b", "meta-llama/Llama-3.1-70B-Instruct", False),
        ("qwen3-8b", "meta-llama/Llama-3.1-8B-Instruct", False),
        ("deepseek-v3", "deepseek-ai/DeepSeek-R1", False),
    ],
)
def test_another_model_is_a_warning(name: str, model: str, is_same: bool) -> None:
    comparison = compare_with_log(evolve(DFLASH, name=name), config(DFLASH_SAID, model=model))
    assert codes(comparison) == ({} if is_same else {"log-other-model": "warning"})
    assert rows(comparison)["model"] == (name, model, is_same)


def test_graphs_that_were_captured_in_part_do_not_agree() -> None:
    none_yet = CapturedGraphs(family="target", mode=FULL, captured=0, total=32)
    said = evolve(DFLASH_SAID, graphs=(*graphs(("target", PIECEWISE, 51)), none_yet), ranks=())
    comparison = compare_with_log(DFLASH, said)
    assert rows(comparison)["target FULL"] == (32, 0, False)
    (one,) = (one for one in comparison.compared if one.subject == "target FULL")
    assert one.note == "incomplete"
    assert codes(comparison)["log-capture-failed"] == "error"


def test_a_log_that_stops_before_any_capture_is_an_error() -> None:
    comparison = compare_with_log(DFLASH, evolve(DFLASH_SAID, graphs=(), ranks=()))
    assert codes(comparison) == {"log-not-compared": "error"}
    assert found(comparison, "log-not-compared").message.endswith("stops before any graph was captured")
    assert found(comparison, "log-not-compared").fix
