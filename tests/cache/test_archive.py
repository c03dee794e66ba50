"""Export and import: all of it or nothing, and nothing outside the cache."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cache import archive
from cache.archive import Imported
from cache.errors import CacheError, Fault
from cache.keys import Key
from cache.records import PlanRecord
from cache.store import PlanCache
from tests.cache import samples

Members = dict[str, bytes]


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """An export with a plan, captures, traffic and an artifact."""
    with PlanCache(tmp_path / "first") as cache:
        cache.put_plan(samples.plan())
        cache.put_capture(samples.capture(0))
        cache.put_capture(samples.capture(1))
        cache.put_artifact(samples.capture(0), "compiled", b"content" * 100)
        cache.add_usage(samples.digest(0), "target", {samples.FULL: 1})
        assert cache.export(tmp_path / "export.zip") == 5
    return tmp_path / "export.zip"


def keys(cache: PlanCache) -> set[Key]:
    return {summary.key for summary in cache.list()}


def test_everything_arrives(exported: Path, cache: PlanCache) -> None:
    assert cache.import_(exported) == Imported(5, 0)
    assert cache.get_plan(samples.deployment()) == samples.plan()
    assert cache.get_artifact(samples.capture(0).key, "compiled") == b"content" * 100
    assert cache.check().problems == ()


def test_the_same_records_give_the_same_bytes(exported: Path, cache: PlanCache, tmp_path: Path) -> None:
    cache.import_(exported)
    cache.get_plan(samples.deployment())
    cache.export(tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == exported.read_bytes()


def test_what_is_there_stays(exported: Path, cache: PlanCache) -> None:
    mine = samples.capture(0, seconds=99.0)
    cache.put_capture(mine)
    assert cache.import_(exported) == Imported(4, 1)
    assert cache.get(mine.key) == mine
    assert cache.import_(exported) == Imported(0, 5)


def test_what_is_there_and_damaged_gives_way(exported: Path, cache: PlanCache) -> None:
    cache.import_(exported)
    cache.connection.execute("UPDATE captures SET value = 'x'")
    for sha256 in cache.blobs.named():
        cache.blobs.path(sha256).write_bytes(b"altered")
    assert cache.import_(exported) == Imported(3, 2)
    assert cache.check().problems == ()


def test_some_records_are_exported(exported: Path, cache: PlanCache, tmp_path: Path) -> None:
    cache.import_(exported)
    key = samples.capture(1).key
    assert cache.export(tmp_path / "one.zip", [key, key]) == 1
    with PlanCache(tmp_path / "other") as other:
        other.import_(tmp_path / "one.zip")
        assert keys(other) == {key}


def test_an_export_replaces_an_export_and_nothing_else(
    exported: Path, cache: PlanCache, tmp_path: Path
) -> None:
    cache.export(exported)
    (tmp_path / "notes").write_text("mine")
    for file in (tmp_path / "notes", tmp_path, tmp_path / "none" / "x.zip", Path("a\0b")):
        with pytest.raises(CacheError):
            cache.export(file)
    assert (tmp_path / "notes").read_text() == "mine"
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".tmp"]


def test_a_damaged_artifact_is_not_exported(exported: Path, cache: PlanCache, tmp_path: Path) -> None:
    cache.import_(exported)
    for sha256 in cache.blobs.named():
        cache.blobs.path(sha256).write_bytes(b"altered")
    with pytest.raises(CacheError) as caught:
        cache.export(tmp_path / "bad.zip")
    assert caught.value.fault is Fault.ALTERED
    assert not (tmp_path / "bad.zip").exists()


# Strangers' files.


def members_of(file: Path) -> Members:
    with zipfile.ZipFile(file) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def write(file: Path, members: Members) -> None:
    with zipfile.ZipFile(file, "w") as opened:
        for name, content in members.items():
            opened.writestr(name, content)


def with_manifest(contents: Members, **changed: Any) -> Members:
    """``contents`` with a manifest that fits them."""
    others = {name: content for name, content in contents.items() if name != "manifest.json"}
    manifest = {
        "format": "graphplan-cache",
        "version": 1,
        "members": [
            {"name": name, "sha256": hashlib.sha256(content).hexdigest(), "num_bytes": len(content)}
            for name, content in others.items()
        ],
        **changed,
    }
    return {"manifest.json": json.dumps(manifest).encode(), **others}


def renamed(old: str, new: str) -> Callable[[Members], Members]:
    return lambda members: with_manifest(
        {new if name.startswith(old) else name: content for name, content in members.items()}
    )


def added(name: str, content: bytes = b"{}") -> Callable[[Members], Members]:
    return lambda members: with_manifest({**members, name: content})


def changed(prefix: str, change: Callable[[bytes], bytes]) -> Callable[[Members], Members]:
    return lambda members: with_manifest(
        {name: change(content) if name.startswith(prefix) else content for name, content in members.items()}
    )


def without(prefix: str) -> Callable[[Members], Members]:
    return lambda members: with_manifest(
        {name: content for name, content in members.items() if not name.startswith(prefix)}
    )


def other_plan(content: bytes) -> bytes:
    record = PlanRecord.from_json(json.loads(content))
    document = {**record.document, "graphs": {"target": []}}
    return json.dumps({**json.loads(content), "document": document}).encode()


DIGEST = "a" * 64

STRANGE: dict[str, tuple[Callable[[Members], Members], str]] = {
    "a path up": (added("../../etc/passwd"), "no place inside a cache"),
    "a path up in disguise": (added(f"plans/../{DIGEST}.json"), "no place inside a cache"),
    "an absolute path": (added("/etc/passwd"), "no place inside a cache"),
    "a windows path": (added(f"blobs\\{DIGEST}"), "no place inside a cache"),
    "another folder": (added(f"odd/{DIGEST}.json"), "no place inside a cache"),
    "the database itself": (added("cache-v1.sqlite"), "no place inside a cache"),
    "a name of two lines": (added("a\nb"), "no place inside a cache"),
    "a record under another key": (renamed("plans/", f"plans/{DIGEST}.json"), "another's key"),
    "a record of another kind": (renamed("plans/", f"captures/{DIGEST}.json"), "no CaptureRecordV1"),
    "a file under another hash": (renamed("blobs/", f"blobs/{DIGEST}"), "do not belong to each other"),
    "a record that is no json": (changed("plans/", lambda _: b"{"), "no JSON"),
    "a deep record": (changed("plans/", lambda _: b"[" * 100_000), "no JSON"),
    "a pickle": (changed("captures/", lambda _: b"\x80\x04N."), "no JSON"),
    "another plan": (changed("plans/", other_plan), "another plan than it says"),
    "an altered record": (
        changed("captures/", lambda text: text.replace(b"1.25", b"NaN")),
        "JSON|NaN|finite|number",
    ),
    "a file that nothing names": (added(f"blobs/{DIGEST}"), "do not belong to each other"),
    "an artifact without its file": (without("blobs/"), "do not belong to each other"),
    "no manifest": (
        lambda members: {
            name: text for name, text in members.items() if "json" in name[5:] and "manifest" not in name
        },
        "no manifest.json",
    ),
    "another format": (lambda members: with_manifest(members, format="other"), "is no export of a cache"),
    "a later format": (lambda members: with_manifest(members, version=2), "format 2, not 1"),
    "a member too few": (lambda members: with_manifest(members, members=[]), "does not name what is in it"),
    "members of a wrong type": (lambda members: with_manifest(members, members=[3]), "manifest is wrong"),
    "a wrong manifest": (lambda members: {**members, "manifest.json": b"[]"}, "is no export of a cache"),
}


@pytest.mark.parametrize(("change", "why"), STRANGE.values(), ids=list(STRANGE))
def test_a_strange_file_is_refused_as_a_whole(
    exported: Path, cache: PlanCache, directory: Path, change: Callable[[Members], Members], why: str
) -> None:
    cache.put_capture(samples.capture(7))
    write(exported, change(members_of(exported)))
    before = sorted(path for path in directory.parent.rglob("*"))
    with pytest.raises(CacheError, match=why) as caught:
        cache.import_(exported)
    assert caught.value.fault in (Fault.INVALID, Fault.ALTERED)
    assert str(caught.value).startswith(str(exported))
    assert keys(cache) == {samples.capture(7).key}
    assert [path for path in directory.parent.rglob("*") if path.name != "blobs" and path not in before] == []


def test_a_hash_that_differs_is_told(exported: Path, cache: PlanCache) -> None:
    members = members_of(exported)
    for prefix in ("plans/", "blobs/"):
        altered = {
            name: content[:-1] + b" " if name.startswith(prefix) else content
            for name, content in members.items()
        }
        write(exported, altered)
        with pytest.raises(CacheError, match="SHA-256 differs"):
            cache.import_(exported)
    assert keys(cache) == set()


def test_two_members_of_one_name_are_refused(exported: Path, cache: PlanCache) -> None:
    name = next(iter(members_of(exported)))
    with zipfile.ZipFile(exported, "a") as opened, pytest.warns(UserWarning, match="Duplicate"):
        opened.writestr(name, b"{}")
    with pytest.raises(CacheError, match="two members"):
        cache.import_(exported)


def test_a_file_of_another_size_than_it_says_is_refused(
    exported: Path, cache: PlanCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_MANIFEST_BYTES", 10)
    with pytest.raises(CacheError, match="larger than 10 bytes"):
        cache.import_(exported)
    monkeypatch.setattr(archive, "MAX_MANIFEST_BYTES", 1 << 20)
    monkeypatch.setattr(archive, "MAX_MEMBERS", 3)
    with pytest.raises(CacheError, match="no export has more than 3"):
        cache.import_(exported)
    with pytest.raises(CacheError, match="more than an export takes"):
        cache_with_two(cache).export(exported)


def cache_with_two(cache: PlanCache) -> PlanCache:
    cache.put_capture(samples.capture(0))
    cache.put_capture(samples.capture(1))
    return cache


def test_a_bomb_is_refused_by_its_size(exported: Path, cache: PlanCache) -> None:
    members = members_of(exported)
    with zipfile.ZipFile(exported, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, content in members.items():
            opened.writestr(name, content + b" " * 50_000_000 if name.startswith("plans/") else content)
    with pytest.raises(CacheError, match="is larger than"):
        cache.import_(exported)


def test_other_compressions_are_refused(exported: Path, cache: PlanCache) -> None:
    members = members_of(exported)
    with zipfile.ZipFile(exported, "w", zipfile.ZIP_BZIP2) as opened:
        for name, content in members.items():
            opened.writestr(name, content)
    with pytest.raises(CacheError, match="compressed"):
        cache.import_(exported)


def test_what_is_no_file_is_refused_without_waiting(cache: PlanCache, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ".", "none", "a\0b"):
        with pytest.raises(CacheError):
            cache.import_(tmp_path / name)


@pytest.mark.parametrize("seed", range(60))
def test_flipped_bits_are_never_imported(exported: Path, tmp_path: Path, seed: int) -> None:
    chosen = Random(seed)
    data = bytearray(exported.read_bytes())
    if chosen.random() < 0.2:
        del data[chosen.randrange(len(data)) :]
    for _ in range(chosen.choice((1, 3, 50))):
        data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
    if chosen.random() < 0.2:
        data += struct.pack("<I", seed)
    exported.write_bytes(data)
    with PlanCache(tmp_path / "first") as first, PlanCache(tmp_path / "second") as second:
        refusal = refused(second, exported)
        if refusal is None:  # the bits were of no meaning, such as the time of a member
            assert all(second.look(key) == first.look(key) for key in keys(first))
        else:
            assert refusal.startswith(str(exported))
            assert keys(second) == set()
        assert second.check().problems == ()


def refused(cache: PlanCache, file: Path) -> str | None:
    """What an import is refused with, if it is."""
    try:
        cache.import_(file)
    except CacheError as error:
        return str(error)
    return None
