"""Figures for Prometheus after real captures and replays, and what they cost a step: nothing."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import pytest
import torch
from attrs import evolve
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from cache.errors import Fault
from cache.fingerprint import EnvironmentFingerprint, ModelFingerprint
from cache.safe import SafeCache
from executor.dispatching import EagerReason
from executor.errors import InputError
from executor.guide import CaptureGuide, CaptureOptions
from executor.inputs.batch import ScheduledBatch
from executor.manager import CudaGraphManager
from executor.metrics import STATES, ExecutorCollector
from executor.models.config import DecoderConfig, DFlashConfig
from executor.models.dflash_draft import build_draft
from executor.models.qwen3 import build_decoder
from executor.runner import TargetRunner
from executor.steps import DraftBatch
from planner import load_plan
from planner.batches import Agreement
from planner.descriptors import BatchExecutionDescriptor
from planner.modes import CUDAGraphMode
from tests.cache import samples
from tests.executor.serving import dflash_plan, draft_runner, target_runner
from tests.executor.toys import Toy, plan_of, sizes_plan

PIECES = "mode: PIECEWISE, num_tokens: 8"
FULL = "mode: FULL, num_tokens: 4, num_reqs: 4, uniform_token_count: 1"

Figures = dict[tuple[str, ...], float]
"""Values by the name of the sample and its labels' values, in the order of their names."""


def scraped(*managers: CudaGraphManager, cache: SafeCache | None = None) -> Figures:
    """What Prometheus would read, through its own text format and parser."""
    registry = CollectorRegistry()
    registry.register(ExecutorCollector(managers, cache))
    found: Figures = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            key = (sample.name, *(value for _, value in sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def types_and_labels(*managers: CudaGraphManager, cache: SafeCache) -> dict[str, tuple[str, tuple[str, ...]]]:
    registry = CollectorRegistry()
    registry.register(ExecutorCollector(managers, cache))
    return {
        family.name: (family.type, tuple(sorted(family.samples[0].labels)))
        for family in text_string_to_metric_families(generate_latest(registry).decode())
    }


def states(figures: Figures, family: str = "target") -> dict[str, float]:
    return {state: figures["graphplan_entries", family, state] for state in STATES}


def runner_of(*entries: str, most: int = 64) -> TargetRunner:
    config = DecoderConfig.from_file("plans/models/qwen3-0.6b/config.json")
    model = build_decoder(config.shrunk(hidden=32, intermediate=48, head_dim=8))
    return target_runner(plan_of(*entries), model, max_num_tokens=most)


def batch_of(*lengths: int) -> ScheduledBatch:
    return ScheduledBatch(
        token_ids=tuple((1,) * length for length in lengths),
        num_computed=(0,) * len(lengths),
        block_ids=tuple((index + 1,) for index in range(len(lengths))),
    )


def test_names_types_and_labels_are_these(tmp_path: Path) -> None:
    cache = SafeCache(tmp_path / "cache")
    cache.get_plan(samples.deployment())
    manager = CudaGraphManager(sizes_plan(2), device="cpu")
    by_mode = ("family", "mode")
    assert types_and_labels(manager, cache=cache) == {
        "graphplan_entries": ("gauge", ("family", "state")),
        "graphplan_capture_seconds": ("gauge", ("family",)),
        "graphplan_entry_seconds": ("gauge", ("family", "phase")),
        "graphplan_graph_bytes": ("gauge", ("family",)),
        "graphplan_replays": ("counter", by_mode),
        "graphplan_padded_tokens": ("counter", by_mode),
        "graphplan_real_tokens": ("counter", by_mode),
        "graphplan_eager_steps": ("counter", ("family", "reason")),
        "graphplan_cache_lookups": ("counter", ("kind", "reason", "result")),
    }
    cache.close()


def test_there_are_as_many_series_before_traffic_as_after_it() -> None:
    runner = runner_of(PIECES, FULL)
    assert runner.manager is not None
    before = scraped(runner.manager)
    assert len(before) == len(STATES) + 4 + 2 + 3 + 3 + len(EagerReason)
    for lengths in ((1, 1), (3, 2), (20,), (1,) * 4):
        runner.step(batch_of(*lengths))
    assert set(scraped(runner.manager)) == set(before)


def test_entries_are_counted_by_how_their_capture_went() -> None:
    def spoil(desc: BatchExecutionDescriptor, inputs: torch.Tensor) -> None:
        if desc.num_tokens == 4:
            inputs.sum().item()

    manager, toy = CudaGraphManager(sizes_plan(8, 4, 2, 1), device="cpu"), Toy(8, spoil=spoil)
    expected = dict.fromkeys(STATES, 0.0)
    assert states(scraped(manager)) == expected
    manager.capture(toy.create_forward, options=CaptureOptions(guide=CaptureGuide(ready=1)))
    assert states(scraped(manager)) == expected | {"captured": 1, "remaining": 3}
    report = manager.capture_more(2)
    figures = scraped(manager)
    assert states(figures) == expected | {"captured": 1, "lazy": 1, "failed": 1, "remaining": 1}
    assert figures["graphplan_graph_bytes", "target"] == report.num_bytes > 0
    assert figures["graphplan_capture_seconds", "target"] == pytest.approx(report.seconds)
    for phase, seconds in (("warm_up", "warmup_seconds"), ("recording", "seconds")):
        total = sum(getattr(record, seconds) for record in report.records)
        assert figures["graphplan_entry_seconds", "target", phase] == pytest.approx(total)
    manager.discard([manager.entries[2]])
    assert states(scraped(manager)) == expected | {"captured": 1, "failed": 1, "remaining": 2}
    manager.release_graphs()
    assert states(scraped(manager)) == expected


def test_an_entry_that_was_rebuilt_is_told_from_one_that_was_captured() -> None:
    class Restorer:
        refused: ClassVar[dict[Any, str]] = {}

        def loaders(self, entries: Any) -> Any:
            return tuple(entries)[:1]

        def prepare(self, pool: Any) -> None:
            """Nothing."""

        def restore(self, entries: Any, pool: Any, outputs: Any, captured: Any) -> Any:  # noqa: ARG002
            (only,) = captured.values()
            return {entries[0]: evolve(only)}

    manager, toy = CudaGraphManager(sizes_plan(8, 4, 2), device="cpu"), Toy(8)
    restorer: Any = Restorer()
    manager.capture(toy.create_forward, options=CaptureOptions(guide=CaptureGuide(restorer=restorer)))
    found = states(scraped(manager))
    assert (found["restored"], found["captured"], found["failed"]) == (1, 2, 0)


def test_tokens_and_replays_are_those_of_the_steps() -> None:
    runner = runner_of(PIECES, FULL)
    assert runner.manager is not None
    steps = {(1, 1, 1): "FULL", (1, 1, 1, 1): "FULL", (3, 2): "PIECEWISE", (20, 3): "NONE"}
    for lengths, mode in steps.items():
        assert str(runner.step(batch_of(*lengths)).mode) == mode
    figures = scraped(runner.manager)
    for mode, replays, padded, real in (("FULL", 2, 8, 7), ("PIECEWISE", 1, 8, 5), ("NONE", None, 23, 23)):
        assert figures.get(("graphplan_replays_total", "target", mode)) == replays
        assert figures["graphplan_padded_tokens_total", "target", mode] == padded
        assert figures["graphplan_real_tokens_total", "target", mode] == real


def reasons(figures: Figures, family: str = "target") -> dict[str, float]:
    name = "graphplan_eager_steps_total"
    return {reason: count for (found, of, *rest), count in figures.items() if (found, of) == (name, family)
            for reason in rest if count}  # fmt: skip


def test_eager_steps_are_counted_by_why_there_was_no_graph() -> None:
    runner = runner_of(FULL)
    manager = runner.manager
    assert manager is not None
    runner.step(batch_of(20, 3))
    runner.step(batch_of(2, 1))  # no decode batch, and there are no pieces
    assert reasons(scraped(manager)) == {"too_large": 1, "no_entry": 1}
    eager = BatchExecutionDescriptor(CUDAGraphMode.NONE, 3, 3)
    runner.step(batch_of(1, 1, 1), Agreement(eager, (3, 20), eager=True))
    runner.step(batch_of(1, 1, 1), Agreement(eager))
    manager.discard(manager.entries)
    runner.step(batch_of(1, 1, 1))
    manager.count_eager()
    assert reasons(scraped(manager)) == {
        "too_large": 1,
        "no_entry": 1,
        "agreed": 2,
        "not_captured": 1,
        "unknown": 1,
    }
    assert manager.usage_counts[-1] == 6


def test_eager_steps_of_the_v1_runner_have_their_reasons_too() -> None:
    config = DecoderConfig.from_file("plans/models/qwen3-0.6b/config.json")
    model = build_decoder(config.shrunk(hidden=32, intermediate=48, head_dim=8))
    plan = load_plan(Path("plans/compiled/llama-3.1-70b-eagle3-v1.yaml"))
    few = evolve(plan, graphs={"target": plan.entries("target")[-4:]})
    runner = target_runner(few, model, max_num_tokens=64, max_model_len=40)
    runner.step(batch_of(20, 13))
    runner.step(batch_of(1))
    assert runner.manager is not None
    assert sum(runner.manager.eager_reasons.values()) == runner.manager.usage_counts[-1]
    assert EagerReason.UNKNOWN not in {why for why, count in runner.manager.eager_reasons.items() if count}


def test_a_drafter_counts_its_own_steps() -> None:
    plan = dflash_plan(3)
    shape = DecoderConfig.from_file("plans/models/qwen3-0.6b/config.json").shrunk(
        hidden=32, intermediate=48, head_dim=8
    )
    drafter = DFlashConfig(
        decoder=shape,
        target_layer_ids=(0,),
        target_hidden_size=shape.hidden_size,
        mask_token_id=shape.vocab_size - 1,
        block_size=4,
    ).shrunk(shape)
    model = build_decoder(shape, aux_layer_ids=drafter.target_layer_ids)
    draft = build_draft(drafter, model)
    target = target_runner(plan, model, draft=draft)
    runner = draft_runner(plan, draft, target, 3)
    for count in (3, 6):
        step = batch_of(*(4,) * count)
        out = target.step(step)
        runner.step(
            DraftBatch(step=step, num_rejected=(0,) * count, anchors=(1,) * count), out.aux_hidden_states
        )
    assert target.manager is not None
    assert runner.manager is not None
    figures = scraped(target.manager, runner.manager)
    assert figures["graphplan_replays_total", "draft", "FULL"] == 1
    assert figures["graphplan_padded_tokens_total", "draft", "FULL"] == 16
    assert figures["graphplan_real_tokens_total", "draft", "FULL"] == 12
    assert figures["graphplan_real_tokens_total", "draft", "NONE"] == 24
    assert reasons(figures, "draft") == {"too_large": 1}


def test_two_managers_of_one_family_are_refused() -> None:
    managers = [CudaGraphManager(sizes_plan(2), device="cpu") for _ in range(2)]
    with pytest.raises(InputError, match="one of each family"):
        ExecutorCollector(managers)


# The cache.


def lookups(cache: SafeCache) -> Figures:
    found = scraped(cache=cache)
    return {key[1:]: value for key, value in found.items() if key[0] == "graphplan_cache_lookups_total"}


def look_for(
    cache: SafeCache,
    environment: EnvironmentFingerprint = samples.ENVIRONMENT,
    model: ModelFingerprint = samples.MODEL,
) -> None:
    cache.find_capture(samples.digest(0), environment, model, "target")


def test_look_ups_are_counted_by_what_they_found(tmp_path: Path) -> None:
    cache = SafeCache(tmp_path / "cache", warn=lambda _: None)
    record = samples.capture()
    cache.get_plan(samples.deployment())
    look_for(cache)
    cache.put_plan(samples.plan())
    cache.put_capture(record)
    cache.put_artifact(record, "compiled", b"content")
    cache.get_plan(samples.deployment())
    look_for(cache)
    look_for(cache, evolve(samples.ENVIRONMENT, driver="590.10", gpu="other"))
    look_for(cache, evolve(samples.ENVIRONMENT, switches={"ODD_NAME_OF_A_SWITCH": "1"}))
    look_for(cache, model=evolve(samples.MODEL, parallel={"tensor_parallel_size": "4"}))
    cache.get_artifact(record.key, "compiled")
    cache.get_artifact(record.key, "other")
    (path,) = (tmp_path / "cache" / "blobs").iterdir()
    path.write_bytes(b"altered")
    cache.get_artifact(record.key, "compiled")
    cache.close()
    look_for(cache)
    assert lookups(cache) == {
        ("plans", "absent", "miss"): 1,
        ("plans", "", "hit"): 1,
        ("captures", "absent", "miss"): 1,
        ("captures", "", "hit"): 1,
        ("captures", "driver", "miss"): 1,
        ("captures", "switches", "miss"): 1,
        ("captures", "parallel", "miss"): 1,
        ("captures", "cold", "miss"): 1,
        ("artifacts", "", "hit"): 1,
        ("artifacts", "absent", "miss"): 1,
        ("artifacts", "altered", "miss"): 1,
    }


def test_a_cache_that_was_given_up_says_why(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("mine")
    cache = SafeCache(tmp_path / "cache", warn=lambda _: None)
    look_for(cache)
    look_for(cache)
    assert lookups(cache) == {("captures", Fault.UNSAFE.value, "miss"): 2}
    cold = SafeCache(tmp_path / "none", cold=True)
    cold.get_plan(samples.deployment())
    assert lookups(cold) == {("plans", "cold", "miss"): 1}


# What it costs.


def python_calls(act: Callable[[], object], within: str | None = None) -> Counter[tuple[str, str]]:
    """The Python functions that run during ``act``, by file and name, or those that ``within`` calls."""
    calls: Counter[tuple[str, str]] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        caller = frame.f_back
        is_asked = within is None or (caller is not None and caller.f_code.co_name == within)
        if event == "call" and is_asked:
            calls[Path(frame.f_code.co_filename).name, frame.f_code.co_name] += 1

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    del calls["test_metrics.py", "<lambda>"]
    return calls


OBSERVING = {"metrics.py", "metrics_core.py", "registry.py", "logs.py", "safe.py"}


def test_a_replay_calls_no_python_that_it_would_not_call_without_figures() -> None:
    manager, toy = CudaGraphManager(sizes_plan(4), device="cpu"), Toy(4)
    manager.capture(toy.create_forward)
    key: Any = manager.dispatch(num_reqs=3, num_tokens=3, uniform_token_count=1)  # type: ignore[call-arg]
    manager.graphs_of(manager.entries[0]).steps = ()
    calls = python_calls(lambda: manager.run_fullgraph(key))
    assert calls == {("manager.py", "run_fullgraph"): 1, ("pieces.py", "replay"): 1}
    scraped(manager)
    assert python_calls(lambda: manager.run_fullgraph(key)) == calls


@pytest.mark.parametrize("lengths", [(1, 1, 1), (3, 2)], ids=["FULL", "PIECEWISE"])
def test_a_step_with_a_graph_counts_by_additions_alone(lengths: tuple[int, ...]) -> None:
    runner = runner_of(PIECES, FULL)
    assert runner.manager is not None
    batch = batch_of(*lengths)
    assert runner.step(batch).mode
    before = python_calls(lambda: runner.step(batch))
    scraped(runner.manager)
    after = python_calls(lambda: runner.step(batch))
    assert after == before
    assert not OBSERVING & {file for file, _ in after}
    # What is counted beside the replay calls nothing.
    called = {name for _, name in python_calls(lambda: runner.step(batch), within="_run")}
    assert called - {"context_of", "__enter__", "__exit__"} == {"_manager", "run_fullgraph"}
    assert after["runner.py", "_manager"] == 1
