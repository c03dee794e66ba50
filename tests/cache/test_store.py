"""PlanCache: the verbs, under one sequence after another."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cache.captures import CaptureLookup
from cache.directory import DATABASE
from cache.errors import CacheError, Fault
from cache.fingerprint import UNKNOWN
from cache.keys import Key, plan_key, stable_digest
from cache.store import PlanCache
from cache.tables import Kind
from planner.descriptors import PlanEntry
from tests.cache import samples


def test_a_plan_is_found_and_not_compiled(cache: PlanCache) -> None:
    assert cache.get_plan(samples.deployment()) is None
    cache.put_plan(samples.plan())
    assert cache.get_plan(samples.deployment()) == samples.plan()
    assert cache.get_plan(samples.deployment(16)) is None


def test_another_process_finds_what_was_put(cache: PlanCache, directory: Path) -> None:
    key = cache.put_capture(samples.capture())
    with PlanCache(directory) as other:
        assert other.get(key) == samples.capture()


def test_the_last_put_wins(cache: PlanCache) -> None:
    cache.put_capture(samples.capture())
    cache.put_capture(samples.capture(seconds=9.0))
    assert cache.get(samples.capture().key) == samples.capture(seconds=9.0)
    assert len(cache.list()) == 1


def find(cache: PlanCache, **changed: Any) -> CaptureLookup:
    return cache.find_capture(
        changed.get("plan", samples.digest(0)),
        changed.get("environment", samples.ENVIRONMENT),
        changed.get("model", samples.MODEL),
        changed.get("family", "target"),
        changed.get("rank", 0),
    )


def test_a_capture_is_found_under_the_same_circumstances(cache: PlanCache) -> None:
    assert find(cache) == CaptureLookup()
    assert find(cache).reason == "never captured"
    cache.put_capture(samples.capture())
    assert find(cache) == CaptureLookup(samples.capture())
    for other in ({"plan": samples.digest(1)}, {"family": "draft"}, {"rank": 1}):
        assert find(cache, **other).reason == "never captured"


def test_a_definite_difference_is_told_and_nothing_is_overwritten(cache: PlanCache) -> None:
    cache.put_capture(samples.capture())
    newer = evolve(samples.ENVIRONMENT, driver="590.10")
    found = find(cache, environment=newer)
    assert found.record is None
    assert found.reason == "driver: saved 580.95.05, current 590.10"
    cache.put_capture(samples.capture(environment=newer))
    assert find(cache).record == samples.capture()
    assert find(cache, environment=newer).record == samples.capture(environment=newer)


def test_what_was_not_known_is_not_used_and_gives_way(cache: PlanCache) -> None:
    vague = evolve(samples.ENVIRONMENT, driver=UNKNOWN)
    cache.put_capture(samples.capture(environment=vague))
    assert find(cache, environment=vague).reason == "driver: saved unknown, current unknown"
    assert find(cache).reason == "driver: saved unknown, current 580.95.05"
    cache.put_capture(samples.capture())
    assert [summary.key for summary in cache.list()] == [samples.capture().key]


def test_a_record_with_a_definite_and_an_unknown_difference_stays(cache: PlanCache) -> None:
    cache.put_capture(samples.capture(environment=evolve(samples.ENVIRONMENT, driver=UNKNOWN, gpu="L4")))
    cache.put_capture(samples.capture())
    assert len(cache.list()) == 2


def test_the_nearest_record_explains_the_miss(cache: PlanCache) -> None:
    cache.put_capture(samples.capture(environment=evolve(samples.ENVIRONMENT, gpu="L4", num_sms="58")))
    cache.put_capture(samples.capture(environment=evolve(samples.ENVIRONMENT, gpu="B200", cuda="13.1")))
    cache.put_capture(samples.capture(model=evolve(samples.MODEL, code="d" * 64)))
    assert find(cache).reason == f"code: saved {'d' * 64}, current {'c' * 64}"


def test_usage_of_several_processes_adds_up(cache: PlanCache, directory: Path) -> None:
    with PlanCache(directory) as other:
        for each in (cache, other, cache):
            each.add_usage(samples.digest(0), "target", {samples.FULL: 2}, eager=1)
    found = cache.usage(samples.digest(0), "target")
    assert found is not None
    assert [(row.entry, row.count) for row in found.counts] == [(samples.FULL, 6)]
    assert found.eager == 3
    assert cache.usage(samples.digest(0), "draft") is None


def test_artifacts_come_back_whole(cache: PlanCache) -> None:
    record = samples.capture()
    assert cache.get_artifact(record.key, "compiled") is None
    cache.put_artifact(record, "compiled", bytearray(b"x" * 3_000_000))
    cache.put_artifact(record, "recipes", iter([b"in ", b"parts"]))
    assert cache.get_artifact(record.key, "compiled") == b"x" * 3_000_000
    assert cache.get_artifact(record.key, "recipes") == b"in parts"


def test_equal_artifacts_share_a_file_until_the_last_one_goes(cache: PlanCache) -> None:
    first = cache.put_artifact(samples.capture(0), "compiled", b"same")
    second = cache.put_artifact(samples.capture(1), "compiled", b"same")
    cache.remove([first.key])
    assert cache.get_artifact(samples.capture(1).key, "compiled") == b"same"
    cache.remove([second.key])
    assert cache.blobs.named() == {}


def test_a_replaced_artifacts_file_goes_with_the_next_sweep(cache: PlanCache) -> None:
    cache.put_artifact(samples.capture(), "compiled", b"old")
    cache.put_artifact(samples.capture(), "compiled", b"new")
    assert cache.get_artifact(samples.capture().key, "compiled") == b"new"
    cache.prune()
    assert len(cache.blobs.named()) == 1


@pytest.fixture
def filled(cache: PlanCache) -> Iterator[PlanCache]:
    cache.put_plan(samples.plan())
    cache.put_capture(samples.capture(0))
    cache.put_capture(samples.capture(1, environment=evolve(samples.ENVIRONMENT, gpu="NVIDIA L4")))
    return cache


@pytest.mark.parametrize(
    ("wanted", "kinds"),
    [
        ({}, ["captures", "captures", "plans"]),
        ({"gpu": "h200"}, ["captures"]),
        ({"gpu": "nvidia"}, ["captures", "captures"]),
        ({"model": "QWEN"}, ["captures", "captures"]),
        ({"model": "small", "engine": "vllm"}, ["plans"]),
        ({"kind": Kind.PLAN}, ["plans"]),
        ({"digest_prefix": samples.digest(1)[:20]}, ["captures"]),
        ({"digest_prefix": samples.capture(0).key.digest[:8]}, ["captures"]),
        ({"model": "%"}, []),
    ],
    ids=str,
)
def test_records_are_found_by_their_words(
    filled: PlanCache, wanted: dict[str, Any], kinds: list[str]
) -> None:
    assert [str(summary.key.kind) for summary in filled.find(**wanted)] == kinds


def test_a_use_is_noted_and_reading_itself_writes_nothing(filled: PlanCache, directory: Path) -> None:
    before = (directory / DATABASE).read_bytes()
    plan = plan_key(samples.deployment())
    filled.get(plan)
    filled.get(plan)
    assert (directory / DATABASE).read_bytes() == before
    filled.flush_uses()
    assert (filled.list()[0].key, filled.list()[0].uses) == (plan, 2)


def test_statistics_say_what_there_is(filled: PlanCache) -> None:
    filled.put_artifact(samples.capture(), "compiled", b"12345")
    stats = filled.stats()
    assert stats.records == {"plans": 1, "captures": 2, "traffic": 0, "artifacts": 1}
    assert (stats.num_blobs, stats.blob_bytes, stats.access) == (1, 5, "write")
    assert stats.record_bytes == sum(summary.num_bytes for summary in filled.list())
    assert stats.database_bytes > 4096


def test_a_read_only_cache_gives_and_takes_nothing(filled: PlanCache, directory: Path) -> None:
    filled.put_artifact(samples.capture(), "compiled", b"12345")
    filled.close()
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    with PlanCache(directory, read_only=True) as reader:
        assert reader.get_plan(samples.deployment()) == samples.plan()
        assert reader.get_artifact(samples.capture().key, "compiled") == b"12345"
        assert reader.check().is_clean
        for refused in (
            lambda: reader.put_plan(samples.plan(16)),
            lambda: reader.put_artifact(samples.capture(), "x", b"1"),
            lambda: reader.prune(max_records=0),
            reader.clear,
        ):
            with pytest.raises(CacheError) as caught:
                refused()
            assert caught.value.fault is Fault.READ_ONLY
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*")} == before


def test_reading_does_not_make_a_cache(directory: Path) -> None:
    for options in ({"read_only": True}, {"create": False}):
        with pytest.raises(CacheError) as caught:
            PlanCache(directory, **options)
        assert caught.value.fault is Fault.MISSING
    directory.mkdir(mode=0o700)
    with pytest.raises(CacheError, match="there is no cache here"):
        PlanCache(directory, create=False)
    assert list(directory.iterdir()) == []


def test_clocks_that_go_backwards_lose_nothing_and_keep_the_order_of_use(directory: Path) -> None:
    now = [1000.0]
    with PlanCache(directory, clock=lambda: now[0]) as cache:
        first = cache.put_capture(samples.capture(0))
        now[0] = 10.0
        second = cache.put_capture(samples.capture(1))
        now[0] = -5.0
        third = cache.put_capture(samples.capture(2))
        cache.add_usage(samples.digest(0), "target", {samples.FULL: 1})
        assert [summary.key for summary in cache.list()][1:] == [third, second, first]
        assert cache.prune(max_age=100.0).records == 0
        cache.prune(max_records=2)
        assert third in [summary.key for summary in cache.list()]
        assert cache.check().problems == ()


class Model(RuleBasedStateMachine):
    """The cache beside a dictionary in the order of use."""

    numbers = st.integers(0, 4)

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.place = Path(self.folder.name) / "cache"
        self.cache = PlanCache(self.place)
        self.expected: OrderedDict[Key, Any] = OrderedDict()
        self.files: dict[Key, bytes] = {}

    def teardown(self) -> None:
        self.cache.close()
        self.folder.cleanup()

    def _used(self, key: Key) -> None:
        if key in self.expected:
            self.expected.move_to_end(key)

    @rule(number=numbers, seconds=st.floats(0, 10))
    def put_capture(self, number: int, seconds: float) -> None:
        record = samples.capture(number, seconds=seconds)
        self.expected[self.cache.put_capture(record)] = record
        self._used(record.key)

    @rule(number=numbers)
    def put_plan(self, number: int) -> None:
        key = self.cache.put_plan(samples.plan(1 << number))
        self.expected[key] = self.cache.look(key)
        self._used(key)

    @rule(number=numbers, content=st.binary(max_size=3))
    def put_artifact(self, number: int, content: bytes) -> None:
        record = self.cache.put_artifact(samples.capture(number), "file", content)
        self.expected[record.key] = record
        self.files[record.key] = content
        self._used(record.key)

    @rule(number=numbers)
    def get(self, number: int) -> None:
        key = samples.capture(number).key
        assert self.cache.get(key) == self.expected.get(key)
        self.cache.flush_uses()
        self._used(key)

    @rule(most=st.integers(0, 6))
    def prune(self, most: int) -> None:
        gone = max(0, len(self.expected) - most)
        assert self.cache.prune(max_records=most).records == gone
        for _ in range(gone):
            self.expected.popitem(last=False)

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.expected.clear()

    @rule()
    def open_again(self) -> None:
        self.cache.close()
        self.cache = PlanCache(self.place)

    @precondition(lambda self: self.expected)
    @rule()
    def carry_elsewhere(self) -> None:
        folder = Path(self.folder.name)
        count = self.cache.export(folder / "export.zip")
        self.cache.close()
        self.place = folder / f"cache-{len(list(folder.iterdir()))}"
        self.cache = PlanCache(self.place)
        assert self.cache.import_(folder / "export.zip").added == count == len(self.expected)
        # What was used when does not travel.
        self.expected = OrderedDict(
            (summary.key, self.expected[summary.key]) for summary in self.cache.list()[::-1]
        )

    @invariant()
    def everything_is_there_and_nothing_else(self) -> None:
        found = {summary.key: self.cache.look(summary.key) for summary in reversed(self.cache.list())}
        assert list(found.items()) == list(self.expected.items())
        for key, record in found.items():
            if key.kind is Kind.ARTIFACT and record is not None and record.blob is not None:
                assert self.cache.blobs.read(record.blob, len(self.files[key])) == self.files[key]
        assert self.cache.check().problems == ()


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=20, stateful_step_count=15, deadline=None)


def test_the_digest_of_a_plan_finds_its_captures(cache: PlanCache) -> None:
    plan = samples.plan()
    cache.put_capture(samples.capture(plan=stable_digest(plan)))
    assert find(cache, plan=stable_digest(plan)).record is not None


def test_entries_of_the_largest_plans_are_stored(cache: PlanCache) -> None:
    counts = {PlanEntry(samples.FULL.mode, size): size for size in range(1, 3000)}
    cache.add_usage(samples.digest(0), "target", counts)
    found = cache.usage(samples.digest(0), "target")
    assert found is not None
    assert {row.entry: row.count for row in found.counts} == counts
