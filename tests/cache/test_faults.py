"""Databases that something happened to: never a wrong answer, never an end without an error that says why.

Every test runs under the watchdog of ``conftest.py``.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from cache.directory import DATABASE
from cache.errors import CacheError, Fault
from cache.maintenance import check_directory
from cache.safe import SafeCache
from cache.store import PlanCache
from tests.cache import samples
from tests.cache.processes import holding, python

NUMBER = 12


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with plans, captures and traffic."""
    directory = tmp_path_factory.mktemp("sound") / "cache"
    with PlanCache(directory) as cache:
        for number in range(NUMBER):
            cache.put_capture(samples.capture(number))
        for number in range(1, 5):
            cache.put_plan(samples.plan(number))
        cache.add_usage(samples.digest(0), "target", {samples.FULL: 3})
    return directory / DATABASE


def cut(part: float) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        os.truncate(path, int(part * path.stat().st_size))

    return damage


def without_page(number: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[number * 4096 : (number + 1) * 4096] = bytes(4096)
        path.write_bytes(data)

    return damage


def with_flips(seed: int) -> Callable[[Path], None]:
    """Flips some bits, among them of the first page as often as not."""

    def damage(path: Path) -> None:
        chosen = Random(seed)
        data = bytearray(path.read_bytes())
        for _ in range(chosen.choice((1, 1, 5, 100))):
            place = chosen.randrange(100 if chosen.random() < 0.3 else len(data))
            data[place] ^= 1 << chosen.randrange(8)
        path.write_bytes(data)

    return damage


def with_noise(seed: int) -> Callable[[Path], None]:
    """Writes noise over some hundred bytes anywhere but the first page."""

    def damage(path: Path) -> None:
        chosen = Random(seed)
        data = bytearray(path.read_bytes())
        length = chosen.choice((1, 16, 300))
        place = chosen.randrange(4096, len(data) - length)
        data[place : place + length] = chosen.randbytes(length)
        path.write_bytes(data)

    return damage


def running(*statements: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        other = sqlite3.connect(path, isolation_level=None)
        for statement in statements:
            other.execute(statement)
        other.close()

    return damage


def replaced_by(data: bytes) -> Callable[[Path], None]:
    return lambda path: void(path.write_bytes(data))


def void(_: object) -> None:
    return None


def another_program(path: Path) -> None:
    path.unlink()
    running("CREATE TABLE accounts (name TEXT)", "INSERT INTO accounts VALUES ('mine')")(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def stale_journal(path: Path) -> None:
    Path(f"{path}-journal").write_bytes(Random(3).randbytes(5000))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "zero length": replaced_by(b""),
    "one byte": replaced_by(b"S"),
    "text": replaced_by(b"apiVersion: graphplan/v1\n" * 100),
    "a header alone": cut(0.001),
    "cut to a third": cut(0.3),
    "cut to most": cut(0.97),
    "without its first page": without_page(0),
    "without its second page": without_page(2),
    "without its fifth page": without_page(5),
    "without tables": running("PRAGMA writable_schema=ON", "DELETE FROM sqlite_master"),
    "without one table": running("DROP TABLE plans"),
    "without the catalogue": running("DROP TABLE catalogue"),
    "with other columns": running("DROP TABLE captures", "CREATE TABLE captures (a, b)"),
    "newer": running("PRAGMA user_version=7"),
    "another program's": another_program,
    "a log beside it": running("PRAGMA journal_mode=WAL"),
    "a stale journal": stale_journal,
    "a folder": folder,
    "a pipe": pipe,
    "a link": link,
    **{f"flips {seed}": with_flips(seed) for seed in range(40)},
    **{f"noise {seed}": with_noise(seed) for seed in range(20)},
}

Damaged = Callable[[str], Path]


@pytest.fixture
def damaged(sound: Path, tmp_path: Path) -> Damaged:
    """The directory of a copy of the database that something happened to."""

    def call(name: str) -> Path:
        directory = tmp_path / "cache"
        directory.mkdir(mode=0o700)
        shutil.copy(sound, directory / DATABASE)
        DAMAGES[name](directory / DATABASE)
        return directory

    return call


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_database_never_gives_a_wrong_answer(damaged: Damaged, name: str) -> None:
    directory = damaged(name)
    error = used(directory)
    if error is not None:
        assert error.fault in (Fault.CORRUPT, Fault.FOREIGN, Fault.NEWER, Fault.ALTERED)
        assert str(directory) in str(error)
        assert "\n" not in str(error)


def used(directory: Path) -> CacheError | None:
    """Gets what was put and puts more; the error that ends it, if one does."""
    try:
        with PlanCache(directory, timeout=5) as cache:
            for number in range(NUMBER):
                with suppress(CacheError):
                    assert cache.get(samples.capture(number).key) in (None, samples.capture(number))
            cache.put_capture(samples.capture(99))
            assert cache.get(samples.capture(99).key) == samples.capture(99)
    except CacheError as error:
        return error
    return None


@pytest.mark.parametrize("name", DAMAGES)
def test_serving_goes_on_with_one_warning_and_the_cache_works_again(damaged: Damaged, name: str) -> None:
    directory = damaged(name)
    warnings: list[str] = []
    for most in (1, 2, 3):
        cache = SafeCache(directory, warn=warnings.append)
        assert cache.get_plan(samples.deployment(3)) in (None, samples.plan(3))
        found = cache.find_capture(samples.digest(1), samples.ENVIRONMENT, samples.MODEL, "target")
        assert found.record in (None, samples.capture(1))
        cache.add_usage(samples.digest(0), "target", {samples.FULL: 1})
        cache.put_capture(samples.capture(1))
        cache.put_plan(samples.plan(3))
        cache.close()
        assert len(warnings) <= most
    assert all("\n" not in warning for warning in warnings)
    again = SafeCache(directory, warn=warnings.append)
    assert again.get_plan(samples.deployment(3)) == samples.plan(3)
    again.close()


@pytest.mark.parametrize("name", DAMAGES)
def test_fixing_leaves_a_cache_that_is_clean(damaged: Damaged, name: str) -> None:
    directory = damaged(name)
    fixed = check_directory(directory, fix=True)
    assert fixed.is_clean
    with PlanCache(directory) as cache:
        cache.put_capture(samples.capture(1))
        assert cache.check().problems == ()


def contents(directory: Path) -> object:
    """Everything that is stored, but what was used when, which nothing proves."""
    with PlanCache(directory) as cache:
        listed = {one.key: (one.labels, one.blob, one.created, one.num_bytes) for one in cache.list()}
        return listed, {key: cache.look(key) for key in listed}


@pytest.mark.parametrize("seed", range(60))
def test_a_check_finds_noise_wherever_it_changed_anything(sound: Path, tmp_path: Path, seed: int) -> None:
    directory = tmp_path / "cache"
    shutil.copytree(sound.parent, directory)
    before = contents(directory)
    with_noise(seed)(directory / DATABASE)
    if check_directory(directory).problems == ():
        assert contents(directory) == before


NO_LABELS = "'', '', '', '', '', 0, 0, NULL, 0.0, 0.0, 0, 0"
BAD_KEYS = ("'short'", f"x'{'61' * 64}'", f"CAST(x'{'ff' * 64}' AS TEXT)", f"'{'A' * 64}'")


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO plans VALUES (NULL, 'x')",
        *(f"INSERT INTO plans VALUES ({key}, 'x')" for key in BAD_KEYS),
        *(f"INSERT INTO catalogue VALUES ('plans', {key}, {NO_LABELS})" for key in BAD_KEYS),
        f"INSERT INTO catalogue VALUES ('odd', '{'a' * 64}', {NO_LABELS})",
        "UPDATE catalogue SET bytes = 1 WHERE kind = 'captures'",
        "UPDATE catalogue SET created = 1.5 WHERE kind = 'captures'",
    ],
)
def test_a_check_finds_and_mends_what_no_cache_writes(sound: Path, tmp_path: Path, statement: str) -> None:
    directory = tmp_path / "cache"
    shutil.copytree(sound.parent, directory)
    before = contents(directory)
    running(statement)(directory / DATABASE)
    assert not check_directory(directory).is_clean
    assert check_directory(directory, fix=True).is_clean
    assert check_directory(directory).problems == ()
    assert contents(directory) == before


def test_damage_that_a_start_does_not_read_costs_it_nothing_and_is_found_by_a_check(
    sound: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "cache"
    shutil.copytree(sound.parent, directory)
    data = (directory / DATABASE).read_bytes()
    other = samples.digest(7).encode()  # in the record of another plan's capture
    (directory / DATABASE).write_bytes(data.replace(other, b"sha256:" + b"0" * 64))
    warnings: list[str] = []
    cache = SafeCache(directory, warn=warnings.append)
    found = cache.find_capture(samples.digest(1), samples.ENVIRONMENT, samples.MODEL, "target")
    cache.close()
    assert found.record == samples.capture(1)
    assert warnings == []
    (problem,) = check_directory(directory).problems
    assert problem.where == str(samples.capture(7).key)
    assert "checksum differs" in problem.what


def test_another_programs_database_is_kept(damaged: Damaged) -> None:
    directory = damaged("another program's")
    SafeCache(directory, warn=void).close()
    aside = sqlite3.connect(directory / f"{DATABASE}.set-aside-1")
    assert aside.execute("SELECT name FROM accounts").fetchall() == [("mine",)]
    aside.close()


def test_a_locked_database_is_waited_for_once_and_then_done_without(sound: Path, tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    shutil.copytree(sound.parent, directory)
    warnings: list[str] = []
    with holding(directory / DATABASE, "BEGIN EXCLUSIVE"):
        cache = SafeCache(directory, timeout=0.2, warn=warnings.append)
        assert cache.get_plan(samples.deployment(3)) is None
        assert not cache.put_plan(samples.plan(3))
    assert cache.is_cold
    (warning,) = warnings
    assert "held it for more than 0.2 s" in warning
    assert "going on without the cache" in warning


def test_a_writer_does_not_keep_others_from_starting(sound: Path, tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    shutil.copytree(sound.parent, directory)
    with holding(directory / DATABASE, "BEGIN IMMEDIATE"):
        cache = SafeCache(directory, timeout=0.2)
        assert cache.get_plan(samples.deployment(3)) == samples.plan(3)
        assert not cache.is_cold


def test_a_read_only_cache_serves_without_a_word(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "cache"
    shutil.copytree(sound.parent, directory)
    monkeypatch.setattr(os, "access", lambda *_: False)
    warnings: list[str] = []
    cache = SafeCache(directory, warn=warnings.append)
    assert cache.get_plan(samples.deployment(3)) == samples.plan(3)
    assert not cache.put_plan(samples.plan(3))
    assert not cache.put_artifact(samples.capture(), "x", b"1")
    assert not cache.is_cold
    cache.close()
    assert warnings == []


def test_a_limit_on_the_size_of_files_says_so_and_loses_nothing(tmp_path: Path) -> None:
    done = python(
        """
        import resource, sys
        from pathlib import Path
        from cache.errors import CacheError
        from cache.store import PlanCache
        from tests.cache import samples
        cache = PlanCache(Path(sys.argv[1]))
        cache.put_capture(samples.capture(0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))
        number = 1
        try:
            while True:
                cache.put_capture(samples.capture(number))
                number += 1
        except CacheError as error:
            assert "limit on the size of files" in str(error), error
            assert error.exit_code == 3
        try:
            cache.put_artifact(samples.capture(0), "large", bytes(200_000))
        except CacheError as error:
            assert "cannot be written: File too large" in str(error), error
        else:
            raise AssertionError("an artifact was larger than any file can be")
        print(number)
        """,
        tmp_path / "cache",
    )
    assert done.returncode == 0, done.stderr
    number = int(done.stdout)
    assert number > 10
    with PlanCache(tmp_path / "cache") as cache:
        assert all(cache.get(samples.capture(index).key) is not None for index in range(number))
        assert cache.check().problems == ()
        assert cache.check().leftovers == 0


def test_a_forked_server_uses_its_cache(tmp_path: Path) -> None:
    done = python(
        """
        import os, sys
        from pathlib import Path
        from cache.safe import SafeCache
        from tests.cache import samples
        def fail(message): raise AssertionError(message)
        cache = SafeCache(Path(sys.argv[1]), warn=fail)
        cache.put_plan(samples.plan(1))
        children = []
        for number in (2, 3, 4):
            child = os.fork()
            if child == 0:
                fine = cache.get_plan(samples.deployment(1)) == samples.plan(1)
                sys.exit(0 if fine and cache.put_plan(samples.plan(number)) else 1)
            children.append(child)
        assert cache.put_plan(samples.plan(5))
        assert all(os.waitpid(child, 0)[1] == 0 for child in children)
        assert all(cache.get_plan(samples.deployment(number)) for number in range(1, 6))
        """,
        tmp_path / "cache",
    )
    assert done.returncode == 0, done.stderr
