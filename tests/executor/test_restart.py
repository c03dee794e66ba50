"""Restarting from a cache on the CPU: what is left out, what is compared, and what never stops a start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve

from cache.fingerprint import EnvironmentFingerprint, ModelFingerprint
from cache.safe import SafeCache
from cache.usage import UsageCounter
from executor.calls import noted, one_a_kernel
from executor.guide import CaptureOptions
from executor.manager import CudaGraphManager
from executor.records import CaptureReport
from executor.restart import CALLS, Circumstances, Restart, hottest_first, num_ready, output_shapes
from planner.descriptors import BatchExecutionDescriptor
from tests.executor.toys import Toy, sizes_plan

CPU = torch.device("cpu")
SIZES = (8, 4, 2, 1)


def about(family: str = "target", **environment: str) -> Circumstances:
    known = dict.fromkeys(("torch", "cuda", "cublas", "cudnn", "driver", "gpu", "compute_capability"), "1")
    known |= dict.fromkeys(("num_sms", "triton", "python", "platform"), "1")
    model = dict.fromkeys(("config", "dtype", "kv_cache_dtype", "quantization", "pipeline_partition"), "1")
    return Circumstances(
        plan="sha256:" + "a" * 64,
        family=family,
        environment=EnvironmentFingerprint(**{**known, **environment}),
        model=ModelFingerprint(code="1", **model),
    )


@pytest.fixture
def cache(tmp_path: Path) -> Any:
    opened = SafeCache(tmp_path / "cache")
    yield opened
    opened.close()


class Start:
    """One start of a server: a manager, a model, and every (size, warm-up) that its factory was asked for."""

    def __init__(self, cache: SafeCache, toy: Toy | None = None, **environment: str) -> None:
        self.manager = CudaGraphManager(sizes_plan(*SIZES), device="cpu")
        self.toy = toy or Toy(8)
        self.asked: list[tuple[int, bool]] = []
        self.restart = Restart.look_up(cache, about(**environment))

    def create(self, desc: BatchExecutionDescriptor, warmup: bool) -> Any:
        self.asked.append((desc.num_tokens, warmup))
        return self.toy.create_forward(desc, warmup)

    def capture(self, ready_after: float = 1.0) -> CaptureReport:
        self.restart.prepare(CPU)
        guide = self.restart.guide(self.manager.entries, ready_after)
        return self.manager.capture(self.create, options=CaptureOptions(guide=guide, inspect=True))

    def remember(self, report: CaptureReport, **options: Any) -> bool:
        calls = one_a_kernel(noted(self.toy.create_forward, [made.entry for made in report.captured]), CPU)
        outputs = output_shapes(self.manager.output_buffers)
        return self.restart.remember(report, outputs=outputs, calls=calls, **options)

    def results(self) -> dict[int, torch.Tensor]:
        found = {}
        for entry in self.manager.captured_entries:
            key: Any = self.manager.dispatch(
                num_reqs=entry.num_tokens, num_tokens=entry.num_tokens, uniform_token_count=1
            )  # type: ignore[call-arg]
            found[entry.num_tokens] = self.manager.run_fullgraph(key).clone()
        return found


def test_a_warm_start_runs_no_warm_up_and_gives_what_a_cold_one_gives(cache: SafeCache) -> None:
    cold = Start(cache)
    assert not cold.restart.is_warm
    assert cold.restart.reason == "never captured"
    assert cold.remember(cold.capture())
    warm = Start(cache)
    report = warm.capture()
    assert warm.restart.is_warm
    assert not report.failed
    assert warm.asked == [(size, False) for size in SIZES]
    assert not warm.restart.differing(report)
    cold_results, warm_results = cold.results(), warm.results()
    assert list(warm_results) == list(cold_results) == list(SIZES)
    assert all(torch.equal(warm_results[size], cold_results[size]) for size in SIZES)


def test_another_environment_starts_cold_and_says_which_field(cache: SafeCache) -> None:
    cold = Start(cache)
    cold.remember(cold.capture())
    other = Start(cache, torch="2")
    assert not other.restart.is_warm
    assert other.restart.reason == "torch: saved 1, current 2"
    other.capture()
    assert (8, True) in other.asked


def test_memory_of_the_graphs_is_known_before_they_are_captured(cache: SafeCache) -> None:
    cold = Start(cache)
    assert cold.restart.num_bytes is None
    report = cold.capture()
    cold.remember(report)
    assert Start(cache).restart.num_bytes == report.num_bytes > 0


def test_hot_entries_come_first_and_serving_begins_with_them(cache: SafeCache) -> None:
    cold = Start(cache)
    cold.remember(cold.capture())
    eight, four, two, one = cold.manager.entries
    cache.add_usage(about().plan, "target", {two: 990, eight: 9, one: 1})
    warm = Start(cache)
    first = warm.capture(ready_after=0.99)
    assert [record.entry for record in first.records] == [two]
    last = warm.manager.capture_more(first.num_remaining)
    assert [record.entry for record in last.records] == [two, eight, one, four]


def test_what_a_manager_replayed_decides_the_order_of_the_next_start(cache: SafeCache) -> None:
    cold = Start(cache)
    cold.remember(cold.capture())
    counter = UsageCounter(about().plan, "target", cold.manager.entries, counts=cold.manager.usage_counts)
    cold.results()
    key: Any = cold.manager.dispatch(num_reqs=2, num_tokens=2, uniform_token_count=1)  # type: ignore[call-arg]
    cold.manager.run_fullgraph(key)
    assert counter.flush(cache)
    warm = Start(cache)
    assert sorted(warm.restart.usage.values()) == [1, 1, 1, 2]
    assert warm.capture().records[0].entry.num_tokens == 2


def test_an_entry_that_failed_is_left_alone_until_the_environment_changes(cache: SafeCache) -> None:
    def spoil(desc: BatchExecutionDescriptor, inputs: torch.Tensor) -> None:
        if desc.num_tokens == 4:
            inputs.sum().item()

    cold = Start(cache, Toy(8, spoil=spoil))
    cold.remember(cold.capture())
    warm = Start(cache, Toy(8, spoil=spoil))
    report = warm.capture()
    assert 4 not in {size for size, _ in warm.asked}
    (failed,) = report.failed
    assert failed.error is not None
    assert "reads a value back" in failed.error
    elsewhere = Start(cache, torch="2")
    assert not elsewhere.capture().failed


def test_an_entry_that_sets_something_up_gets_its_warm_up_from_then_on(cache: SafeCache) -> None:
    class Lazy(Toy):
        """Initialises itself at its first forward of four rows."""

        def run(self, num_tokens: int) -> torch.Tensor:
            if num_tokens == 4 and not hasattr(self, "ready"):
                self.ready = bool(self.inputs.sum().item() < 1e9)
            return super().run(num_tokens)

    cold = Start(cache, Lazy(8))
    cold.remember(cold.capture())
    second = Start(cache, Lazy(8))
    report = second.capture()
    assert second.asked == [(8, False), (4, False), (4, True), (4, False), (2, False), (1, False)]
    assert [made.entry.num_tokens for made in report.records if made.needed_warm_up] == [4]
    second.remember(report)
    third = Start(cache, Lazy(8))
    assert not third.capture().failed
    assert third.asked == [(8, False), (4, True), (4, False), (2, False), (1, False)]


def test_graphs_that_are_not_those_of_the_record_are_reported(cache: SafeCache) -> None:
    class Newer(Toy):
        def run(self, num_tokens: int) -> torch.Tensor:
            made = super().run(num_tokens)
            return made + 1 if num_tokens == 4 else made

    cold = Start(cache)
    cold.remember(cold.capture())
    warm = Start(cache, Newer(8))
    report = warm.capture()
    assert [entry.num_tokens for entry in warm.restart.differing(report)] == [4]


@pytest.mark.parametrize("content", [b"", b"{}", b"[[1,2,3,4]]", b'[["mm","default",[{"tensor":[1]}],{}]]'])
def test_a_list_of_calls_that_is_none_stops_nothing(cache: SafeCache, content: bytes) -> None:
    cold = Start(cache)
    cold.remember(cold.capture())
    record = Start(cache).restart.record
    assert record is not None
    assert cache.put_artifact(record, CALLS, content)
    assert not Start(cache).capture().failed


def test_a_record_without_outputs_costs_a_warm_up_and_nothing_else(cache: SafeCache) -> None:
    cold = Start(cache)
    cold.remember(cold.capture())
    record = Start(cache).restart.record
    assert record is not None
    assert cache.put_capture(evolve(record, outputs=()))
    warm = Start(cache)
    assert not warm.capture().failed
    assert warm.asked[:3] == [(8, False), (8, True), (8, False)]


def test_without_a_cache_everything_is_cold(tmp_path: Path) -> None:
    start = Start(SafeCache(tmp_path, cold=True))
    report = start.capture()
    assert not start.restart.is_warm
    assert not start.remember(report)
    assert not report.failed


def test_the_share_of_traffic_decides_how_many_entries_must_be_there() -> None:
    entries = CudaGraphManager(sizes_plan(*SIZES), device="cpu").entries
    usage = dict(zip(entries, (5, 0, 80, 15), strict=True))
    order = hottest_first(entries, usage)
    assert [entry.num_tokens for entry in order] == [2, 1, 8]
    assert [num_ready(order, usage, share) for share in (0.0, 0.8, 0.81, 0.95, 0.96, 1.0)] == [
        1,
        1,
        2,
        2,
        3,
        None,
    ]
    assert num_ready((), {}, 0.5) is None
