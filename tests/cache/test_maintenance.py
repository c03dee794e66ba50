"""Keeping a cache sound and small."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.blobs import ABANDONED_AFTER
from cache.catalogue import Summary
from cache.directory import DATABASE
from cache.errors import CacheError
from cache.keys import Key
from cache.maintenance import beyond_limits, check_directory
from cache.records import Labels
from cache.store import PlanCache
from cache.tables import Kind
from tests.cache import samples


def summary(number: int, *, num_bytes: int = 10, used: float = 0.0) -> Summary:
    return Summary(
        key=Key(Kind.PLAN, f"{number:064x}"),
        labels=Labels(),
        num_bytes=num_bytes,
        blob=None,
        created=0.0,
        used=used,
        turn=-number,
        uses=0,
    )


@pytest.mark.parametrize(
    ("limits", "going"),
    [
        ({}, []),
        ({"max_records": 1}, [1, 2]),
        ({"max_records": 0}, [0, 1, 2]),
        ({"max_bytes": 20}, [2]),
        ({"max_bytes": 19}, [1, 2]),
        ({"max_age": 50.0}, [2]),
        ({"max_age": 0.0}, [1, 2]),
        ({"max_records": 2, "max_bytes": 10}, [1, 2]),
    ],
    ids=str,
)
def test_the_least_recently_used_go_first(limits: dict[str, Any], going: list[int]) -> None:
    records = [summary(0, used=200.0), summary(1, used=80.0), summary(2, used=10.0)]
    assert beyond_limits(records, 100.0, **limits) == tuple(records[number] for number in going)


@given(
    st.lists(st.tuples(st.integers(0, 100), st.floats(0, 1000)), max_size=12),
    st.integers(0, 500),
    st.floats(0, 1000),
    st.integers(0, 12),
)
def test_what_is_left_is_within_the_limits(
    given_records: list[tuple[int, float]], max_bytes: int, max_age: float, max_records: int
) -> None:
    records = [summary(index, num_bytes=size, used=used) for index, (size, used) in enumerate(given_records)]
    going = beyond_limits(records, 1000.0, max_bytes=max_bytes, max_age=max_age, max_records=max_records)
    staying = [one for one in records if one not in going]
    assert sum(one.num_bytes for one in staying) <= max_bytes
    assert len(staying) <= max_records
    assert all(1000.0 - one.used <= max_age for one in staying)


def change(directory: Path, *statements: str) -> None:
    """Changes the database behind the cache's back."""
    other = sqlite3.connect(directory / DATABASE)
    for statement in statements:
        other.execute(statement)
    other.commit()
    other.close()


DAMAGE = {
    "a record of another": "UPDATE captures SET value = (SELECT value FROM captures LIMIT 1)",
    "a flipped character": "UPDATE captures SET value = replace(value, '0.5', '0.6')",
    "no value": "UPDATE captures SET value = NULL",
    "no line in the catalogue": "DELETE FROM catalogue WHERE kind = 'captures'",
    "no record": "DELETE FROM captures",
    "the wrong words": "UPDATE catalogue SET gpu = 'B200' WHERE kind = 'captures'",
    "the wrong plan": "UPDATE catalogue SET plan = 'abc' WHERE kind = 'captures'",
    "the wrong type": "UPDATE catalogue SET bytes = 'many' WHERE kind = 'captures'",
    "an artifact forgotten": "UPDATE catalogue SET blob = NULL",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
def test_what_is_not_as_it_was_put_is_found_and_mended(
    cache: PlanCache, directory: Path, damage: str
) -> None:
    for number in range(3):
        cache.put_capture(samples.capture(number))
    cache.put_artifact(samples.capture(), "compiled", b"content")
    plan = cache.put_plan(samples.plan())
    assert cache.check().problems == ()
    change(directory, damage)
    assert not cache.check().is_clean
    mended = cache.check(fix=True)
    assert mended.is_clean
    assert mended.problems
    assert all(problem.fix in ("removed", "entered anew") for problem in mended.problems)
    assert cache.check() == cache.check(fix=True)
    assert cache.check().problems == ()
    assert cache.get(plan) is not None
    assert cache.get_artifact(samples.capture().key, "compiled") == b"content"


def test_lines_of_kinds_that_there_are_not_are_removed(cache: PlanCache, directory: Path) -> None:
    cache.put_capture(samples.capture())
    change(directory, "UPDATE catalogue SET kind = 'odd'")
    assert not cache.check().is_clean
    assert cache.check(fix=True).is_clean
    assert [one.key for one in cache.list()] == [samples.capture().key]


@pytest.mark.parametrize("damage", ["gone", "altered", "cut", "folder", "link"])
def test_a_file_that_is_not_as_it_was_put_is_found_and_its_record_removed(
    cache: PlanCache, damage: str, tmp_path: Path
) -> None:
    record = cache.put_artifact(samples.capture(), "compiled", b"content")
    path = cache.blobs.path(record.sha256)
    if damage == "altered":
        path.write_bytes(b"Content")
    elif damage == "cut":
        path.write_bytes(b"cont")
    else:
        path.unlink()
    if damage == "folder":
        path.mkdir()
    if damage == "link":
        (tmp_path / "elsewhere").write_bytes(b"content")
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CacheError):
        cache.get_artifact(samples.capture().key, "compiled")
    assert [problem.where for problem in cache.check().problems] == [str(record.key)]
    assert cache.check(fix=True).is_clean
    assert cache.get_artifact(samples.capture().key, "compiled") is None
    if damage != "folder":  # which stands in the way of the file
        cache.put_artifact(samples.capture(), "compiled", b"content")
        assert cache.get_artifact(samples.capture().key, "compiled") == b"content"


def test_what_killed_processes_left_is_removed_and_what_others_are_writing_is_not(cache: PlanCache) -> None:
    cache.put_artifact(samples.capture(), "compiled", b"content")
    orphan = cache.blobs.write([b"nobody's"])
    cache.blobs.adopt(orphan)
    old, new = cache.blobs.write([b"old"]), cache.blobs.write([b"new"])
    for moment in (-ABANDONED_AFTER - 60, ABANDONED_AFTER + 60):
        when = cache.clock() + moment
        os.utime(old.path, (when, when))
        assert cache.blobs.abandoned() == (old.path,)
    assert (cache.check().leftovers, cache.check().problems) == (2, ())
    cache.prune()
    assert cache.check().leftovers == 0
    assert not old.path.exists()
    assert new.path.exists()
    assert cache.get_artifact(samples.capture().key, "compiled") == b"content"


def test_pruning_gives_the_room_back(cache: PlanCache, directory: Path) -> None:
    for number in range(60):
        cache.put_plan(samples.plan(number + 1))
    before = (directory / DATABASE).stat().st_size
    pruned = cache.prune(max_records=2)
    assert pruned.records == 58
    assert (directory / DATABASE).stat().st_size < before / 3
    assert cache.prune(max_bytes=0).records == 2


def test_clearing_leaves_an_empty_cache(cache: PlanCache, directory: Path) -> None:
    cache.put_artifact(samples.capture(), "compiled", b"content")
    (directory / f"{DATABASE}.set-aside-1").write_text("old")
    cache.clear()
    assert cache.list() == ()
    assert cache.blobs.named() == {}
    assert not list(directory.glob("*set-aside*"))


def fill_disk(cache: PlanCache) -> int:
    """Puts until the database takes no more; the number of records."""
    cache.connection.execute("PRAGMA max_page_count=40")
    number = 0
    try:
        while True:
            cache.put_capture(samples.capture(number))
            number += 1
    except CacheError:
        return number


def test_a_full_cache_is_pruned_and_takes_more(cache: PlanCache) -> None:
    number = fill_disk(cache)
    assert len(cache.list()) == number
    cache.prune(max_records=number // 2)
    cache.put_capture(samples.capture(number))
    assert cache.get(samples.capture(number).key) is not None


def test_a_database_beyond_opening_is_set_aside_by_fixing_alone(cache: PlanCache, directory: Path) -> None:
    cache.put_plan(samples.plan())
    cache.close()
    (directory / DATABASE).write_bytes(b"no database" * 1000)
    for _ in range(2):
        report = check_directory(directory)
        assert not report.is_clean
        assert "set" in report.problems[0].what
    fixed = check_directory(directory, fix=True)
    assert fixed.is_clean
    assert (directory / f"{DATABASE}.set-aside-1").exists()
    with PlanCache(directory) as again:
        assert again.list() == ()
