"""Counting replays: one addition a step, added up in the cache now and then."""

from __future__ import annotations

from pathlib import Path

from cache.safe import SafeCache
from cache.usage import UsageCounter
from tests.cache import samples

ENTRIES = (samples.FULL, samples.PIECEWISE)


def test_what_is_counted_is_added_up_once(directory: Path) -> None:
    cache = SafeCache(directory)
    counter = UsageCounter(samples.digest(0), "target", ENTRIES, model_name="qwen3")
    for index in (0, 0, 1, UsageCounter.EAGER):
        counter.counts[index] += 1
    assert counter.flush(cache)
    assert counter.flush(cache)
    counter.counts[0] += 5
    assert counter.flush(cache)
    found = cache.usage(samples.digest(0), "target")
    cache.close()
    assert found is not None
    assert {row.entry: row.count for row in found.counts} == {samples.FULL: 7, samples.PIECEWISE: 1}
    assert (found.eager, found.model_name) == (1, "qwen3")


def test_what_could_not_be_stored_is_stored_the_next_time(directory: Path) -> None:
    counter = UsageCounter(samples.digest(0), "target", ENTRIES)
    counter.counts[0] += 1
    assert not counter.flush(SafeCache(directory, cold=True))
    counter.counts[0] += 1
    cache = SafeCache(directory)
    assert counter.flush(cache)
    found = cache.usage(samples.digest(0), "target")
    cache.close()
    assert found is not None
    assert found.counts[0].count == 2


def test_nothing_counted_is_nothing_stored(directory: Path) -> None:
    cache = SafeCache(directory)
    assert UsageCounter(samples.digest(0), "target", ENTRIES).flush(cache)
    assert cache.usage(samples.digest(0), "target") is None
    cache.close()
