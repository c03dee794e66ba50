"""Where the cache lies, and which directories are refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cache.directory import (
    DATABASE,
    MOST_SET_ASIDE,
    Access,
    access_to,
    databases_set_aside,
    default_directory,
    directory_of,
    identity,
    prepare_directory,
    refusal,
    set_aside,
)
from cache.errors import CacheError, Fault


@pytest.mark.parametrize(
    ("environ", "platform", "expected"),
    [
        (
            {"GRAPHPLAN_CACHE": "/fast/plans", "XDG_CACHE_HOME": "/x", "HOME": "/home/me"},
            "linux",
            "/fast/plans",
        ),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/home/me"}, "linux", "/x/graphplan"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/me"}, "linux", "/home/me/.cache/graphplan"),
        (
            {"XDG_CACHE_HOME": "", "GRAPHPLAN_CACHE": "", "HOME": "/home/me"},
            "linux",
            "/home/me/.cache/graphplan",
        ),
        ({"GRAPHPLAN_CACHE": " ", "HOME": "/home/me"}, "linux", "/home/me/.cache/graphplan"),
        ({"HOME": "/Users/me"}, "darwin", "/Users/me/Library/Caches/graphplan"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/Users/me"}, "darwin", "/x/graphplan"),
    ],
)
def test_the_place_follows_the_platform(environ: dict[str, str], platform: str, expected: str) -> None:
    assert default_directory(environ, platform) == Path(expected)


def test_without_a_home_the_user_is_asked_for_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(CacheError, match="--cache or GRAPHPLAN_CACHE"):
        default_directory({}, "linux")


def test_a_new_directory_is_for_its_owner_alone(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    prepare_directory(directory, create=True)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_missing_directory_is_not_made_for_reading(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="there is no cache here") as caught:
        prepare_directory(tmp_path / "none", create=False)
    assert caught.value.fault is Fault.MISSING
    assert not (tmp_path / "none").exists()


def test_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(CacheError, match="symbolic link") as caught:
        prepare_directory(tmp_path / "link", create=True)
    assert caught.value.fault is Fault.UNSAFE


def test_a_directory_that_everybody_may_write_to_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "open"
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(CacheError, match=r"everybody may write to it; .* chmod o-w"):
        prepare_directory(directory, create=True)
    directory.chmod(0o775)
    prepare_directory(directory, create=True)


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CacheError, match="is no directory"):
        prepare_directory(tmp_path / "file", create=True)


def test_an_empty_name_is_not_the_current_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", " "):
        with pytest.raises(CacheError, match="name of the cache's directory is empty"):
            directory_of(name)
    monkeypatch.setenv("GRAPHPLAN_CACHE", "/fast/plans")
    assert directory_of(None) == Path("/fast/plans")
    assert directory_of("here") == Path("here")


def test_what_cannot_be_looked_at_has_no_identity(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert identity(tmp_path / "file") is not None
    for path in (tmp_path / "file" / "x", tmp_path / "none", tmp_path / ("a" * 300), Path("a\0b")):
        assert identity(path) is None


def status(mode: int, user: int) -> os.stat_result:
    return os.stat_result((mode, 0, 0, 1, user, 0, 0, 0, 0, 0))


def test_a_directory_of_another_user_is_refused_but_one_that_root_baked_is_not() -> None:
    mode = stat.S_IFDIR | 0o755
    assert refusal(status(mode, 1000), user=1000) is None
    assert refusal(status(mode, 0), user=1000) is None
    assert refusal(status(mode, 1001), user=1000) == (
        "belongs to user 1001, not to you (user 1000); give a directory of your own"
    )


def test_a_name_that_no_file_can_have_is_an_ordinary_error() -> None:
    with pytest.raises(CacheError, match="null"):
        prepare_directory(Path("a\0b"), create=True)


def test_a_read_only_file_system_needs_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert access_to(tmp_path) is Access.WRITE
    assert access_to(tmp_path, read_only=True) is Access.READ
    values = list(os.statvfs(tmp_path))
    values[8] |= os.ST_RDONLY
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(values))
    assert access_to(tmp_path) is Access.IMMUTABLE


def test_what_may_not_be_written_is_opened_for_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != DATABASE)
    assert access_to(tmp_path) is Access.WRITE
    (tmp_path / DATABASE).touch()
    assert access_to(tmp_path) is Access.READ


def test_setting_aside_takes_the_journal_along(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_text("broken")
    (tmp_path / f"{DATABASE}-journal").write_text("journal")
    aside = set_aside(tmp_path)
    assert aside == tmp_path / f"{DATABASE}.set-aside-1"
    assert aside.read_text() == "broken"
    assert [path.name for path in databases_set_aside(tmp_path)] == [aside.name, f"{aside.name}-journal"]
    assert not (tmp_path / DATABASE).exists()
    assert set_aside(tmp_path) is None


def test_a_database_that_another_process_began_anew_stays(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_text("broken")
    found = identity(tmp_path / DATABASE)
    (tmp_path / "new").write_text("sound")
    (tmp_path / "new").replace(tmp_path / DATABASE)
    assert set_aside(tmp_path, found=found) is None
    assert (tmp_path / DATABASE).read_text() == "sound"


def test_databases_that_were_set_aside_do_not_pile_up(tmp_path: Path) -> None:
    for number in range(MOST_SET_ASIDE + 3):
        (tmp_path / DATABASE).write_text(str(number))
        set_aside(tmp_path)
    kept = databases_set_aside(tmp_path)
    assert len(kept) == MOST_SET_ASIDE
    assert kept[0].read_text() == "0"
    assert kept[-1].read_text() == str(MOST_SET_ASIDE + 2)
