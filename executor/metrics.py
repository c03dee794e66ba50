"""Figures for Prometheus, computed when it asks: steps do nothing but count, as they do without it.

Labels have few values: families of the plan, three modes, and reasons out of fixed lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from cache.safe import SafeCache
from executor.errors import InputError
from executor.manager import CudaGraphManager
from executor.records import CaptureRecord
from planner.modes import CUDAGraphMode

Metric: TypeAlias = CounterMetricFamily | GaugeMetricFamily

STATES = ("captured", "lazy", "restored", "failed", "remaining")
"""What can be said of an entry: it has a graph since ``capture``, since a later ``capture_more``, or
rebuilt from a cache; it has none; or it is still to be tried."""

MODES = (CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL)
"""Runtime modes, in the order of their values."""


class ExecutorCollector(Collector):
    """Figures of ``managers``, one a family, and of the ``cache`` that they were captured by.

    Register it once: ``prometheus_client.REGISTRY.register(ExecutorCollector(managers))``.

    Raises:
        InputError: two managers are of one family, which a scraper could not tell apart.
    """

    def __init__(self, managers: Iterable[CudaGraphManager], cache: SafeCache | None = None) -> None:
        self._managers = tuple(managers)
        self._cache = cache
        families = [manager.family for manager in self._managers]
        if len(set(families)) != len(families):
            raise InputError(
                f"managers of {', '.join(families)}; give a collector one of each family, and ranks of a "
                "process collectors in registries of their own"
            )

    def describe(self) -> Iterable[Metric]:
        """Nothing is promised ahead, so that registering computes nothing."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All figures as they are now."""
        yield from _capture_metrics(self._managers)
        yield from _step_metrics(self._managers)
        if self._cache is not None:
            yield _lookups(self._cache)


def state_of(manager: CudaGraphManager, record: CaptureRecord) -> str:
    """Which of ``STATES`` an entry that was tried is in."""
    if record.error is not None:
        return "failed"
    if record.restored:
        return "restored"
    return "lazy" if record.entry in manager.lazily_captured else "captured"


def _capture_metrics(managers: Iterable[CudaGraphManager]) -> Iterator[Metric]:
    entries = GaugeMetricFamily(
        "graphplan_entries", "Entries of the plan, by how their capture went.", labels=("family", "state")
    )
    whole = GaugeMetricFamily(
        "graphplan_capture_seconds", "What capturing a family took.", labels=("family",), unit="seconds"
    )
    parts = GaugeMetricFamily(
        "graphplan_entry_seconds",
        "What warm-up forwards and recordings of all entries took.",
        labels=("family", "phase"),
        unit="seconds",
    )
    sizes = GaugeMetricFamily(
        "graphplan_graph_bytes", "Memory that pool and graphs grew by.", labels=("family",), unit="bytes"
    )
    for manager in managers:
        records, family = manager.records, manager.family
        counts = dict.fromkeys(STATES, 0) | {"remaining": manager.num_remaining}
        for record in records:
            counts[state_of(manager, record)] += 1
        for state, count in counts.items():
            entries.add_metric((family, state), count)
        whole.add_metric((family,), manager.capture_seconds)
        parts.add_metric((family, "warm_up"), sum(record.warmup_seconds for record in records))
        parts.add_metric((family, "recording"), sum(record.seconds for record in records))
        sizes.add_metric((family,), sum(record.num_bytes for record in records))
    yield from (entries, whole, parts, sizes)


def _step_metrics(managers: Iterable[CudaGraphManager]) -> Iterator[Metric]:
    by_mode = ("family", "mode")
    replays = CounterMetricFamily("graphplan_replays", "Replays of graphs.", labels=by_mode)
    padded = CounterMetricFamily(
        "graphplan_padded_tokens", "Tokens that steps computed, padding included.", labels=by_mode
    )
    real = CounterMetricFamily("graphplan_real_tokens", "Tokens of requests in steps.", labels=by_mode)
    eager = CounterMetricFamily(
        "graphplan_eager_steps", "Steps without a graph, by why.", labels=("family", "reason")
    )
    for manager in managers:
        family, counts, tokens = manager.family, tuple(manager.usage_counts), tuple(manager.real_tokens)
        rows = tuple(zip(manager.entries, counts, strict=False))  # behind the entries stand eager steps
        for mode in MODES:
            computed = sum(entry.num_tokens * count for entry, count in rows if entry.mode is mode)
            if mode is CUDAGraphMode.NONE:
                computed = manager.padded_eager_tokens
            else:
                total = sum(count for entry, count in rows if entry.mode is mode)
                replays.add_metric((family, str(mode)), total)
            padded.add_metric((family, str(mode)), computed)
            real.add_metric((family, str(mode)), tokens[mode.value])
        for reason, count in manager.eager_reasons.items():
            eager.add_metric((family, reason.value), count)
    yield from (replays, padded, real, eager)


def _lookups(cache: SafeCache) -> Metric:
    found = CounterMetricFamily(
        "graphplan_cache_lookups",
        "Look-ups in the cache; the reason of a miss, or the first circumstance that differs.",
        labels=("kind", "result", "reason"),
    )
    for (kind, reason), count in cache.lookups.copy().items():
        found.add_metric((str(kind), "miss" if reason else "hit", reason), count)
    return found
