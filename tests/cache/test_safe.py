"""The cache as a server has it: whatever is wrong with it is somebody else's problem."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from cache.captures import CaptureLookup
from cache.directory import DATABASE
from cache.safe import SafeCache
from cache.store import PlanCache
from tests.cache import samples


@pytest.fixture
def warnings() -> list[str]:
    return []


def test_a_sound_cache_does_what_the_strict_one_does(directory: Path, warnings: list[str]) -> None:
    cache = SafeCache(directory, warn=warnings.append)
    record = samples.capture()
    assert cache.get_plan(samples.deployment()) is None
    assert cache.put_plan(samples.plan())
    assert cache.put_capture(record)
    assert cache.put_artifact(record, "compiled", b"content")
    assert cache.add_usage(record.plan, "target", {samples.FULL: 2}, eager=1)
    assert cache.get_plan(samples.deployment()) == samples.plan()
    assert cache.find_capture(record.plan, record.environment, record.model, "target") == CaptureLookup(
        record
    )
    assert cache.get_artifact(record.key, "compiled") == b"content"
    usage = cache.usage(record.plan, "target")
    assert usage is not None
    assert (usage.counts[0].count, usage.eager) == (2, 1)
    cache.close()
    assert cache.get_plan(samples.deployment()) is None
    with PlanCache(directory) as strict:
        assert strict.list()[0].uses > 0
    assert warnings == []


def test_a_cold_cache_touches_nothing(directory: Path, warnings: list[str]) -> None:
    cache = SafeCache(directory, cold=True, warn=warnings.append)
    assert cache.is_cold
    assert cache.get_plan(samples.deployment()) is None
    assert not cache.put_plan(samples.plan())
    cache.close()
    assert not directory.exists()
    assert warnings == []


PLACES = {
    "a file": "is no directory; give another place",
    "a device": "is no directory; give another place",
    "below a file": "the cache cannot be made: Not a directory",
    "open to everybody": "everybody may write to it",
    "a link": "is a symbolic link",
    "no name": "the cache cannot be made: embedded null",
    "an empty name": "the name of the cache's directory is empty",
    "a long name": "the cache cannot be made: File name too long",
}


@pytest.mark.parametrize("reason", PLACES)
def test_a_directory_that_is_refused_is_done_without(
    tmp_path: Path, warnings: list[str], reason: str
) -> None:
    place: Any = tmp_path / "place"
    if reason == "a file":
        place.write_text("mine")
    elif reason == "a link":
        place.symlink_to(tmp_path)
    elif reason == "no name":
        place = "a\0b"
    elif reason == "a device":
        place = "/dev/null"
    elif reason == "below a file":
        (tmp_path / "place").write_text("mine")
        place = tmp_path / "place" / "cache"
    elif reason == "an empty name":
        place = ""
    elif reason == "a long name":
        place = tmp_path / ("a" * 300)
    else:
        place.mkdir()
        place.chmod(0o777)
    cache = SafeCache(place, warn=warnings.append)
    assert cache.is_cold
    assert cache.find_capture("p", samples.ENVIRONMENT, samples.MODEL, "target") == CaptureLookup()
    assert not cache.put_plan(samples.plan())
    (warning,) = warnings
    assert warning.startswith("cache: ")
    assert PLACES[reason] in warning
    assert warning.endswith("; going on without the cache")


def test_a_refusal_of_the_system_is_told_in_words(
    directory: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/some/file")

    cache = SafeCache(directory, warn=warnings.append)
    monkeypatch.setattr(PlanCache, "get_plan", refused)
    assert cache.get_plan(samples.deployment()) is None
    assert warnings == [
        "cache: /some/file: the system refuses: Permission denied; going on without the cache"
    ]


def test_a_lost_artifact_is_done_again(directory: Path, warnings: list[str]) -> None:
    record = samples.capture()
    cache = SafeCache(directory, warn=warnings.append)
    cache.put_artifact(record, "compiled", b"content")
    cache.put_artifact(record, "recipes", b"others")
    with PlanCache(directory) as strict:
        for sha256 in strict.blobs.named():
            strict.blobs.remove(sha256)
    for _ in range(2):
        assert cache.get_artifact(record.key, "compiled") is None
        assert cache.get_artifact(record.key, "recipes") is None
    (warning,) = warnings
    assert "gone; this part is done again" in warning
    assert cache.put_artifact(record, "compiled", b"content")
    assert cache.get_artifact(record.key, "compiled") == b"content"
    cache.close()
    with PlanCache(directory) as strict:
        assert strict.check().problems == ()


def test_what_cannot_be_stored_is_told_and_the_cache_stays(directory: Path, warnings: list[str]) -> None:
    cache = SafeCache(directory, warn=warnings.append)
    assert not cache.put_capture(samples.capture(seconds=float("nan")))
    assert cache.put_capture(samples.capture())
    assert len(warnings) == 1


def test_a_full_disk_ends_the_use_of_the_cache_and_nothing_else(directory: Path, warnings: list[str]) -> None:
    cache = SafeCache(directory, warn=warnings.append)
    assert cache._cache is not None
    cache._cache.connection.execute("PRAGMA max_page_count=10")
    stored = [cache.put_plan(samples.plan(number)) for number in range(1, 30)]
    assert stored[-1] is False
    assert "the disk is full" in warnings[0]
    assert len(warnings) == 1


@pytest.mark.parametrize("error", [RuntimeError("odd"), MemoryError(), RecursionError(), KeyError("x")])
def test_what_nobody_thought_of_reaches_nobody(
    directory: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(*_: object) -> None:
        raise error

    cache = SafeCache(directory, warn=warnings.append)
    monkeypatch.setattr(PlanCache, "get_plan", broken)
    assert cache.get_plan(samples.deployment()) is None
    assert cache.is_cold
    (warning,) = warnings
    assert type(error).__name__ in warning


def test_a_warning_that_fails_reaches_nobody_either(tmp_path: Path) -> None:
    def broken(_: str) -> None:
        raise OSError

    (tmp_path / "file").write_text("mine")
    assert SafeCache(tmp_path / "file", warn=broken).is_cold


def test_the_warning_goes_to_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("mine")
    with caplog.at_level(logging.WARNING):
        SafeCache(tmp_path / "file")
    assert [record.name for record in caplog.records] == ["graphplan.cache"]


def test_a_miss_says_why(directory: Path) -> None:
    cache = SafeCache(directory)
    record = samples.capture()
    cache.put_capture(record)
    newer = evolve(record.environment, cuda="13.1")
    assert (
        cache.find_capture(record.plan, newer, record.model, "target").reason
        == "cuda: saved 13.0, current 13.1"
    )
    cache.close()


def test_a_database_that_breaks_in_use_is_begun_anew(directory: Path, warnings: list[str]) -> None:
    cache = SafeCache(directory, warn=warnings.append)
    cache.put_plan(samples.plan())
    (directory / DATABASE).write_bytes(b"x" * 20_000)
    assert cache.get_plan(samples.deployment()) is None
    assert cache.put_plan(samples.plan())
    assert cache.get_plan(samples.deployment()) == samples.plan()
    (warning,) = warnings
    assert "set aside as cache-v1.sqlite.set-aside-1" in warning
