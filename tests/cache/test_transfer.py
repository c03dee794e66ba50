"""Transfer to and from URLs: only what is missing moves, and nothing that a remote says is believed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import fsspec
import pytest

from cache import transfer_index, transfer_parts
from cache.blobs import ABANDONED_AFTER
from cache.errors import CacheError, Fault
from cache.store import PlanCache
from cache.transfer import Moved, export_to, import_from
from cache.transfer_remote import Remote, is_url, locked
from tests.cache import samples

PART = 1000
CONTENT = Random(1).randbytes(3 * PART + 17)
INDEX, OBJECTS = transfer_index.INDEX, transfer_index.OBJECTS
NUM_PARTS = 4


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_index, "PART_BYTES", PART)
    monkeypatch.setattr(transfer_parts, "PART_BYTES", PART)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[PlanCache]:
    """A cache with a plan, two captures, traffic, and artifacts: one of four parts, one of none."""
    with PlanCache(tmp_path / "source") as cache:
        cache.put_plan(samples.plan())
        for number in (0, 1):
            cache.put_capture(samples.capture(number))
        cache.put_artifact(samples.capture(0), "graphs", CONTENT)
        cache.put_artifact(samples.capture(0), "nothing", b"")
        cache.add_usage(samples.digest(0), "target", {samples.FULL: 1})
        yield cache


NUM_RECORDS = 6


@pytest.fixture
def folder(source: PlanCache, tmp_path: Path) -> Path:
    """A folder with all of ``source``."""
    export_to(source, f"file://{tmp_path}/folder")
    return tmp_path / "folder"


class Silent(SimpleHTTPRequestHandler):
    asked: list[str]

    def __init__(self, *arguments: Any, asked: list[str], **options: Any) -> None:
        self.asked = asked
        super().__init__(*arguments, **options)

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


class Served:
    """A server of a folder; ``asked`` are the paths of its requests."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[str] = []
        handler = partial(Silent, directory=str(folder), asked=self.asked)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def serve() -> Iterator[Callable[[Path], Served]]:
    running: list[Served] = []

    def begin(folder: Path) -> Served:
        running.append(Served(folder))
        return running[-1]

    yield begin
    for one in running:
        one.server.shutdown()
        one.server.server_close()


def content(cache: PlanCache) -> dict[str, object]:
    return {str(one.key): cache.look(one.key) for one in cache.list()}


def stored_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / OBJECTS).iterdir())


@pytest.mark.parametrize("kind", ["file", "memory", "http"])
def test_everything_arrives(
    kind: str, source: PlanCache, cache: PlanCache, tmp_path: Path, serve: Callable[[Path], Served]
) -> None:
    target = f"memory://{tmp_path.name}/there" if kind == "memory" else f"file://{tmp_path}/there"
    sent = export_to(source, target)
    assert (sent.added, sent.kept, sent.kept_bytes) == (NUM_RECORDS, 0, 0)
    url = serve(tmp_path / "there").url if kind == "http" else target
    received = import_from(cache, url)
    assert received == Moved(added=NUM_RECORDS, kept=0, num_bytes=sent.num_bytes, kept_bytes=0)
    assert content(cache) == content(source)
    assert cache.get_artifact(samples.capture(0).key, "graphs") == CONTENT
    assert cache.get_artifact(samples.capture(0).key, "nothing") == b""
    report = cache.check()
    assert (report.problems, report.leftovers) == ((), 0)


def test_the_second_time_nothing_moves(
    source: PlanCache, folder: Path, cache: PlanCache, serve: Callable[[Path], Served]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    size = stored_bytes(folder)
    assert export_to(source, f"file://{folder}") == Moved(
        added=0, kept=NUM_RECORDS, num_bytes=0, kept_bytes=size
    )
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    web = serve(folder)
    import_from(cache, web.url)
    web.asked.clear()
    assert import_from(cache, web.url) == Moved(added=0, kept=NUM_RECORDS, num_bytes=0, kept_bytes=0)
    assert web.asked == [f"/{INDEX}"]


def test_only_the_parts_that_differ_move(source: PlanCache, folder: Path) -> None:
    changed = CONTENT[:PART] + bytes(PART) + CONTENT[2 * PART :]
    record = source.put_artifact(samples.capture(1), "graphs", changed)
    text = len(json.dumps(record.as_json(), separators=(",", ":")))
    moved = export_to(source, f"file://{folder}", [record.key])
    assert (moved.num_bytes, moved.kept_bytes) == (PART + text, len(CONTENT) - PART)


def test_a_file_that_is_here_is_not_fetched_again(folder: Path, cache: PlanCache) -> None:
    cache.put_artifact(samples.capture(7), "mine", CONTENT)
    moved = import_from(cache, f"file://{folder}")
    assert moved.kept_bytes == len(CONTENT)
    assert moved.num_bytes < stored_bytes(folder) - len(CONTENT) + 1
    assert cache.get_artifact(samples.capture(0).key, "graphs") == CONTENT


def test_caches_of_two_machines_end_up_in_one_folder(source: PlanCache, folder: Path, tmp_path: Path) -> None:
    with PlanCache(tmp_path / "other") as other:
        other.put_capture(samples.capture(5))
        export_to(other, f"file://{folder}")
    with PlanCache(tmp_path / "third") as third:
        assert import_from(third, f"file://{folder}").added == NUM_RECORDS + 1
    assert export_to(source, f"file://{folder}").kept == NUM_RECORDS


def test_a_newer_record_takes_the_place_of_the_older(
    source: PlanCache, folder: Path, cache: PlanCache
) -> None:
    source.add_usage(samples.digest(0), "target", {samples.FULL: 41})
    source.put_artifact(samples.capture(0), "graphs", b"other")
    assert export_to(source, f"file://{folder}").added == 2
    import_from(cache, f"file://{folder}")
    assert content(cache) == content(source)
    index = json.loads((folder / INDEX).read_bytes())
    assert hashlib.sha256(CONTENT).hexdigest() not in str(index)


def test_what_is_there_stays_and_what_is_damaged_gives_way(folder: Path, cache: PlanCache) -> None:
    mine = samples.capture(1, seconds=99.0)
    cache.put_capture(mine)
    assert import_from(cache, f"file://{folder}").kept == 1
    assert cache.get(mine.key) == mine
    cache.blobs.path(hashlib.sha256(CONTENT).hexdigest()).write_bytes(b"altered")
    assert import_from(cache, f"file://{folder}").added == 1
    assert cache.check().problems == ()


def test_some_records_are_exported(source: PlanCache, cache: PlanCache, tmp_path: Path) -> None:
    key = samples.capture(1).key
    assert export_to(source, f"file://{tmp_path}/one", [key, key]).added == 1
    import_from(cache, f"file://{tmp_path}/one")
    assert list(content(cache)) == [str(key)]


def test_an_empty_cache_is_exported_too(cache: PlanCache, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/empty"
    nothing = Moved(added=0, kept=0, num_bytes=0, kept_bytes=0)
    assert export_to(cache, url) == import_from(cache, url) == nothing


# Cut off.


class CutOffError(BaseException):
    """Ends a transfer as a signal does."""


def cut_off_after(monkeypatch: pytest.MonkeyPatch, method: str, calls: int) -> None:
    real = getattr(Remote, method)
    left = iter(range(calls))

    def limited(self: Remote, *arguments: Any) -> Any:
        if next(left, None) is None:
            raise CutOffError
        return real(self, *arguments)

    monkeypatch.setattr(Remote, method, limited)


def test_a_cut_off_export_goes_on_and_is_nothing_to_a_reader_before(
    source: PlanCache, cache: PlanCache, tmp_path: Path
) -> None:
    url, moved, cuts = f"file://{tmp_path}/there", None, 0
    while cuts < 100:
        with pytest.MonkeyPatch.context() as patch:
            cut_off_after(patch, "write", 1)
            try:
                moved = export_to(source, url).num_bytes
                break
            except CutOffError:
                cuts += 1
        with pytest.raises(CacheError) as caught:
            import_from(cache, url)
        assert caught.value.fault is Fault.MISSING
    assert cuts == NUM_RECORDS + NUM_PARTS
    assert moved == 0  # the last run wrote the index alone
    assert import_from(cache, url).added == NUM_RECORDS


def test_a_cut_off_import_goes_on_at_the_part_where_it_was(
    source: PlanCache, folder: Path, cache: PlanCache
) -> None:
    url = f"file://{folder}"
    with pytest.MonkeyPatch.context() as patch:
        # The index, the records, and two parts.
        cut_off_after(patch, "read", 1 + NUM_RECORDS + 2)
        with pytest.raises(CutOffError):
            import_from(cache, url)
    assert cache.get_artifact(samples.capture(0).key, "graphs") is None
    assert cache.look(samples.capture(0).key) is None  # with its artifacts or not at all
    assert cache.check().problems == ()
    moved = import_from(cache, url)
    assert moved.kept_bytes == 2 * PART
    assert content(cache) == content(source)
    assert cache.check().leftovers == 0


@pytest.mark.parametrize("damage", ["altered", "longer", "half a part"])
def test_what_a_cut_off_import_left_is_verified(folder: Path, cache: PlanCache, damage: str) -> None:
    unfinished = cache.blobs.unfinished(hashlib.sha256(CONTENT).hexdigest())
    left = {
        "altered": bytes([CONTENT[0] ^ 1]) + CONTENT[1 : 2 * PART],
        "longer": CONTENT + b"more",
        "half a part": CONTENT[: PART + PART // 2],
    }[damage]
    unfinished.write_bytes(left)
    moved = import_from(cache, f"file://{folder}")
    assert moved.kept_bytes == {"altered": 0, "longer": len(CONTENT), "half a part": PART}[damage]
    assert cache.get_artifact(samples.capture(0).key, "graphs") == CONTENT


def test_what_is_left_of_an_import_that_nobody_goes_on_with_is_removed(cache: PlanCache) -> None:
    unfinished = cache.blobs.unfinished("a" * 64)
    unfinished.write_bytes(b"half")
    cache.prune()
    assert unfinished.exists()
    before = unfinished.stat().st_mtime - ABANDONED_AFTER - 1
    os.utime(unfinished, (before, before))
    cache.prune()
    assert not unfinished.exists()


def test_readers_read_while_an_import_is_under_way(
    folder: Path, cache: PlanCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.put_capture(samples.capture(9))
    seen = []
    real = Remote.read

    def reading(self: Remote, name: str, most: int) -> bytes:
        with PlanCache(cache.directory, timeout=0.01, read_only=True) as reader:
            seen.append(reader.get(samples.capture(9).key))
        return real(self, name, most)

    monkeypatch.setattr(Remote, "read", reading)
    import_from(cache, f"file://{folder}")
    assert len(seen) == 1 + NUM_RECORDS + NUM_PARTS
    assert set(map(repr, seen)) == {repr(samples.capture(9))}


def test_one_writes_at_a_time(source: PlanCache, folder: Path, cache: PlanCache) -> None:
    with locked(folder, ""), pytest.raises(CacheError, match="another export is under way") as caught:
        export_to(source, f"file://{folder}")
    assert caught.value.fault is Fault.LOCKED
    with locked(cache.directory / "blobs", ""), pytest.raises(CacheError, match="another import"):
        import_from(cache, f"file://{folder}")


def test_an_export_that_another_one_overwrote_is_told(
    source: PlanCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, real = f"memory://{tmp_path.name}/two", Remote.write

    def write(self: Remote, name: str, data: bytes) -> None:
        real(self, name, data if name != INDEX else transfer_index.Index().as_bytes())

    monkeypatch.setattr(Remote, "write", write)
    with pytest.raises(CacheError, match="at the same time; export once more"):
        export_to(source, url)


def test_a_cache_that_can_only_be_read_takes_nothing_in_and_can_be_exported(
    source: PlanCache, folder: Path, tmp_path: Path
) -> None:
    with PlanCache(source.directory, read_only=True) as frozen:
        with pytest.raises(CacheError) as caught:
            import_from(frozen, f"file://{folder}")
        assert caught.value.fault is Fault.READ_ONLY
        assert export_to(frozen, f"file://{tmp_path}/copy").added == NUM_RECORDS


# Strangers' folders.

Change = Callable[[dict[str, Any]], object]
DIGEST = "a" * 64


def row_of(index: dict[str, Any], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in index["records"] if row["kind"] == kind and row["num_bytes"])
    return found


def artifact(index: dict[str, Any]) -> dict[str, Any]:
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    found: dict[str, Any] = next(row for row in index["records"] if row.get("blob") == sha256)
    return found


def blob(index: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in index["blobs"] if row["num_bytes"] == len(CONTENT))
    return found


STRANGE: dict[str, tuple[Change, str]] = {
    "another format": (lambda index: index.update(format="other"), "no index of a cache"),
    "a later version": (lambda index: index.update(version=2), "format 2, not 1"),
    "a version of many lines": (lambda index: index.update(version="1\n2"), "another graphplan"),
    "a key more": (lambda index: index.update(more=1), "is wrong"),
    "records of a wrong type": (lambda index: index.update(records=[3]), "is wrong"),
    "a path in place of a key": (lambda index: row_of(index, "plans").update(key="../../x"), "no SHA-256"),
    "a path in place of an object": (
        lambda index: row_of(index, "plans").update(sha256="/etc/passwd"),
        "no SHA-256",
    ),
    "a path in place of a file": (lambda index: artifact(index).update(blob="../x"), "no SHA-256"),
    "a path in place of a part": (lambda index: blob(index).update(parts=["../x"] * 4), "no SHA-256"),
    "a digest with a line behind it": (lambda index: blob(index).update(parts=[DIGEST + "\n"] * 4), "no SHA"),
    "a kind that there is not": (lambda index: row_of(index, "plans").update(kind="odd"), "is wrong"),
    "a record twice": (lambda index: index["records"].append(index["records"][0]), "a record twice"),
    "a file twice": (lambda index: index["blobs"].append(index["blobs"][0]), "a file twice"),
    "a huge record": (lambda index: row_of(index, "plans").update(num_bytes=1 << 40), "more than 64 MiB"),
    "a huge file": (lambda index: blob(index).update(num_bytes=1 << 50), "more than 16 GiB"),
    "a size below nothing": (lambda index: blob(index).update(num_bytes=-1), "is wrong"),
    "a part too few": (lambda index: blob(index)["parts"].pop(), "which is not its size"),
    "a file of nobody": (
        lambda index: index["blobs"].append({"sha256": DIGEST, "num_bytes": 0, "parts": []}),
        "do not belong to each other",
    ),
    "an artifact without its file": (lambda index: index["blobs"].clear(), "do not belong to each other"),
    "a plan with a file": (
        lambda index: row_of(index, "plans").update(blob=artifact(index)["blob"]),
        "is no artifact",
    ),
    "a record under another key": (
        lambda index: row_of(index, "plans").update(key=DIGEST),
        "another's key",
    ),
    "a record of another kind": (
        lambda index: row_of(index, "plans").update(kind="captures"),
        "no CaptureRecordV1",
    ),
    "a record of another size": (
        lambda index: row_of(index, "plans").update(num_bytes=5),
        "larger than the 5 bytes",
    ),
    "an object that is not there": (
        lambda index: row_of(index, "plans").update(sha256=DIGEST),
        "it is not there",
    ),
    "two artifacts that swapped their files": (
        lambda index: [
            row.update(blob=blob)
            for row, blob in zip(
                [row for row in index["records"] if row.get("blob")],
                [row["blob"] for row in index["records"] if row.get("blob")][::-1],
                strict=True,
            )
        ],
        "another file than the index says",
    ),
}


@pytest.mark.parametrize(("change", "why"), STRANGE.values(), ids=list(STRANGE))
def test_a_strange_index_is_refused_before_anything_is_stored(
    folder: Path, cache: PlanCache, change: Change, why: str
) -> None:
    index = json.loads((folder / INDEX).read_bytes())
    change(index)
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(CacheError, match=why) as caught:
        import_from(cache, f"file://{folder}")
    assert str(caught.value).startswith(f"file://{folder}: ")
    assert "\n" not in str(caught.value)
    assert content(cache) == {}
    assert [path.name for path in (cache.directory / "blobs").iterdir()] == []


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 100_000, b"\x80\x04N.", b"null"])
def test_an_index_that_is_none_is_refused_on_both_ways(
    source: PlanCache, folder: Path, cache: PlanCache, text: bytes
) -> None:
    (folder / INDEX).write_bytes(text)
    for act in (
        lambda: import_from(cache, f"file://{folder}"),
        lambda: export_to(source, f"file://{folder}"),
    ):
        with pytest.raises(CacheError, match=r"no JSON|no index") as caught:
            act()
        assert caught.value.fault is Fault.INVALID
    assert (folder / INDEX).read_bytes() == text


def objects_of(folder: Path) -> dict[str, Path]:
    index = json.loads((folder / INDEX).read_bytes())
    return {
        "record": folder / OBJECTS / row_of(index, "plans")["sha256"],
        "part": folder / OBJECTS / blob(index)["parts"][2],
    }


@pytest.mark.parametrize("which", ["record", "part"])
@pytest.mark.parametrize("damage", ["altered", "shorter", "longer"])
def test_an_object_that_is_not_what_its_name_says_never_counts(
    folder: Path, cache: PlanCache, which: str, damage: str
) -> None:
    path = objects_of(folder)[which]
    data = path.read_bytes()
    damaged = {"altered": data[:-1] + b"!", "shorter": data[:-1], "longer": data + b"!"}[damage]
    path.write_bytes(damaged)
    with pytest.raises(CacheError, match=r"SHA-256 differs|larger than") as caught:
        import_from(cache, f"file://{folder}")
    assert path.name in str(caught.value)
    assert cache.look(samples.capture(0).key) is None
    assert cache.check().problems == ()
    path.write_bytes(data)
    import_from(cache, f"file://{folder}")
    assert cache.get_artifact(samples.capture(0).key, "graphs") == CONTENT


def test_parts_that_do_not_make_their_file_never_count(folder: Path, cache: PlanCache) -> None:
    index = json.loads((folder / INDEX).read_bytes())
    parts = blob(index)["parts"]
    parts[0], parts[1] = parts[1], parts[0]
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(CacheError, match="not what its parts make"):
        import_from(cache, f"file://{folder}")
    assert cache.look(samples.capture(0).key) is None
    assert cache.check().leftovers == 0


def test_a_record_that_the_archive_refuses_is_refused_here_too(folder: Path, cache: PlanCache) -> None:
    index = json.loads((folder / INDEX).read_bytes())
    row = row_of(index, "plans")
    record = json.loads((folder / OBJECTS / row["sha256"]).read_bytes())
    record["document"]["graphs"] = {"target": []}
    text = json.dumps(record).encode()
    row.update(sha256=hashlib.sha256(text).hexdigest(), num_bytes=len(text))
    (folder / OBJECTS / row["sha256"]).write_bytes(text)
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(CacheError, match="another plan than it says"):
        import_from(cache, f"file://{folder}")
    assert content(cache) == {}


def test_sizes_are_bounded(source: PlanCache, folder: Path, cache: PlanCache) -> None:
    for name, value, why in (
        ("MAX_RECORDS", 3, "6 records"),
        ("MAX_ALL_RECORDS_BYTES", 100, "together"),
        ("MAX_INDEX_BYTES", 10, "larger than"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transfer_index, name, value)
            patch.setattr(f"cache.transfer.{name}", value, raising=False)
            with pytest.raises(CacheError, match=why):
                import_from(cache, f"file://{folder}")
            shutil.rmtree(folder.with_name("new"), ignore_errors=True)
            with pytest.raises(CacheError, match=why):
                export_to(source, f"file://{folder.with_name('new')}")


def test_a_damaged_artifact_is_not_named_by_the_folder(source: PlanCache, tmp_path: Path) -> None:
    source.blobs.path(hashlib.sha256(CONTENT).hexdigest()).write_bytes(b"altered")
    with pytest.raises(CacheError) as caught:
        export_to(source, f"file://{tmp_path}/there")
    assert caught.value.fault is Fault.ALTERED
    assert not (tmp_path / "there" / INDEX).exists()


# URLs.


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("s3://bucket/x", True),
        ("HTTP://x", True),
        ("simplecache::https://x", True),
        ("cache.zip", False),
        ("/a/b.zip", False),
        ("c:x", False),
        ("", False),
        ("://x", False),
    ],
)
def test_a_url_is_told_from_the_name_of_a_file(name: str, expected: bool) -> None:
    assert is_url(name) is expected


@pytest.mark.parametrize(
    ("url", "why", "fault"),
    [
        ("nothing://x", "Protocol not known", Fault.INVALID),
        ("http://127.0.0.1:9/x?sig=1", "no ", Fault.INVALID),
        ("http://127.0.0.1:9/x", "cannot be read: Connect", Fault.UNREACHABLE),
        ("memory://none/here", "is not there", Fault.MISSING),
    ],
)
def test_a_url_of_nothing_is_one_line(cache: PlanCache, url: str, why: str, fault: Fault) -> None:
    with pytest.raises(CacheError, match=why) as caught:
        import_from(cache, url)
    assert caught.value.fault is fault
    assert str(caught.value).startswith(f"{url}: ")


def test_http_can_only_be_read(source: PlanCache) -> None:
    with pytest.raises(CacheError, match="export to a folder that the server serves") as caught:
        export_to(source, "https://127.0.0.1:9/x")
    assert caught.value.fault is Fault.READ_ONLY


def test_a_password_in_a_url_is_never_told(cache: PlanCache) -> None:
    with pytest.raises(CacheError) as caught:
        import_from(cache, "http://me:secret@127.0.0.1:9/x")
    assert "secret" not in str(caught.value)


def test_an_error_of_another_kind_is_one_line(
    cache: PlanCache, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("odd\nlines")

    monkeypatch.setattr(fsspec.get_filesystem_class("file"), "open", fail)
    with pytest.raises(CacheError, match="RuntimeError: odd") as caught:
        import_from(cache, f"file://{folder}")
    assert "\n" not in str(caught.value)


def test_without_fsspec_the_extra_is_named(cache: PlanCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(CacheError, match=r"graphplan\[fleet\]"):
        import_from(cache, "memory://x")


# Read-only.


def test_an_imported_cache_that_nobody_may_write_to_serves(folder: Path, cache: PlanCache) -> None:
    import_from(cache, f"file://{folder}")
    cache.close()
    with PlanCache(cache.directory, read_only=True) as baked:
        assert baked.get_plan(samples.deployment()) == samples.plan()
        assert baked.get_artifact(samples.capture(0).key, "graphs") == CONTENT
        assert baked.check().problems == ()
