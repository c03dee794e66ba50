#!/usr/bin/env python3
"""Moves a cache through a folder and over HTTP, killed at random points, and prints JSON.

    tools/stress_transfer.py                                     # 1 GiB, 50 kills of each transfer
    tools/stress_transfer.py --mebibytes 48 --interruptions 3    # a few seconds' worth of CI

Three transfers, each in processes that are killed with SIGKILL once they have moved a random number of
bytes, and begun again until the end: an export into a folder, an import from that folder, an import of
it over HTTP. After each kill, whatever has its name has to be what its name says: objects in the folder
by their SHA-256, records and files in the receiving cache by a check, and an index only once all that it
names is there. At the end both caches hold the first one's records and files. A transfer that ends too
early to be killed as often is begun anew. Takes four times the size on the disk; exits with 1 if
anything was not so.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from cache.directory import DATABASE
from cache.errors import CacheError, Fault
from cache.store import PlanCache
from cache.transfer import export_to, import_from
from cache.transfer_index import INDEX, OBJECTS, index_in
from tests.cache.samples import capture

FORK = get_context("fork")
SHARES = (0.55, 0.3, 0.15)
"""Of the artifacts, in the whole."""

MEBIBYTE = 1 << 20
PATIENCE = 120.0
"""Seconds without an end after which a transfer is a failure."""

PROMPT_KILLS = 0.2
"""Share of the kills that come before anything moved, while what is there is looked through."""


def fill(cache: PlanCache, num_bytes: int, seed: int) -> None:
    """Puts captures with artifacts of random content, ``num_bytes`` together."""
    chosen = Random(seed)
    for number, share in enumerate(SHARES):
        record = capture(number)
        cache.put_capture(record)
        size = int(num_bytes * share)
        cache.put_artifact(
            record, "graphs", (chosen.randbytes(min(MEBIBYTE, size - at)) for at in range(0, size, MEBIBYTE))
        )


def contents(directory: Path) -> dict[str, str]:
    """Records as text and files by their actual SHA-256."""
    with PlanCache(directory, create=False) as cache:
        held = {str(one.key): repr(cache.look(one.key)) for one in cache.list()}
        for name in cache.blobs.named():
            cache.blobs.verify(name)
            held[name] = name
    return held


# What is there after a kill.


def folder_is_sound(folder: Path) -> bool:
    """Whether each object is what its name says, and the index names no other."""
    objects = folder / OBJECTS
    names = {path.name for path in objects.glob("*") if not path.name.startswith(".")}
    if any(hashlib.sha256((objects / name).read_bytes()).hexdigest() != name for name in names):
        return False
    if not (folder / INDEX).exists():
        return True
    index = index_in((folder / INDEX).read_bytes())
    needed = {row.sha256 for row in index.records} | {part for blob in index.blobs for part in blob.parts}
    return needed <= names


def cache_is_sound(directory: Path) -> bool:
    """Whether each record that a reader finds is whole: itself, and each artifact of its capture."""
    if not (directory / DATABASE).exists():
        return True
    try:
        with PlanCache(directory, create=False) as cache:
            return not cache.check().problems and len(cache.list()) % 2 == 0  # each capture has one artifact
    except CacheError as error:
        return error.fault is Fault.MISSING  # killed before the first table was there


# Interrupted.


def interrupted(
    act: Callable[[], object],
    target: Path,
    is_sound: Callable[[Path], bool],
    *,
    num_bytes: int,
    interruptions: int,
    chosen: Random,
) -> dict[str, Any]:
    """Runs ``act`` until it ends by itself and was killed ``interruptions`` times before."""
    kills = unsound = failures = restarts = 0
    began = time.perf_counter()
    while True:
        limit = None
        if kills < interruptions:
            prompt = chosen.random() < PROMPT_KILLS
            limit = 0 if prompt else chosen.uniform(0, 2 * num_bytes / (interruptions + 1))
        code = run_until(act, target, limit, chosen)
        if code == -signal.SIGKILL:
            kills += 1
            unsound += not is_sound(target)
            continue
        failures += code != 0
        if code != 0 or kills >= interruptions:
            break
        restarts += 1
        shutil.rmtree(target)
    return {
        "interruptions": kills,
        "begun_anew": restarts,
        "unsound_after_a_kill": unsound,
        "failures": failures,
        "seconds": round(time.perf_counter() - began, 1),
    }


def run_until(act: Callable[[], object], target: Path, limit: float | None, chosen: Random) -> int:
    """Runs ``act`` in a process that is killed once it has moved ``limit`` bytes; its exit code."""
    before = bytes_in(target)
    process = FORK.Process(target=act)
    process.start()
    deadline = time.monotonic() + PATIENCE
    while process.is_alive() and time.monotonic() < deadline:
        if limit is not None and bytes_in(target) - before >= limit:
            time.sleep(chosen.uniform(0, 0.02))
            break
        time.sleep(0.002)
    process.join(PATIENCE if limit is None else 0)
    if process.is_alive() and process.pid is not None:
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    return process.exitcode or 0


def bytes_in(folder: Path) -> int:
    """Bytes of all files below ``folder``, finished or not."""
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(directory, name)).st_size
            except FileNotFoundError:
                continue  # renamed meanwhile
    return total


def sent(source: Path, url: str) -> None:
    with PlanCache(source, create=False) as cache:
        export_to(cache, url)


def received(target: Path, url: str) -> None:
    with PlanCache(target) as cache:
        import_from(cache, url)


# HTTP.


class Counting(SimpleHTTPRequestHandler):
    """Serves files without a word, and counts what it was asked for."""

    requests = 0

    def do_GET(self) -> None:
        type(self).requests += 1
        try:
            super().do_GET()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # whoever asked was killed

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The URL of a server of ``folder``."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Counting, directory=str(folder)))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def stress(place: Path, mebibytes: int, interruptions: int, seed: int) -> dict[str, Any]:
    """All three transfers, and whether everything arrived."""
    num_bytes = mebibytes * MEBIBYTE
    source, folder = place / "source", place / "folder"
    with PlanCache(source) as cache:
        fill(cache, num_bytes, seed)
    expected = contents(source)
    how: dict[str, Any] = {
        "num_bytes": num_bytes,
        "interruptions": interruptions,
        "chosen": Random(seed),
    }
    report: dict[str, Any] = {"mebibytes": mebibytes, "seed": seed}
    url = f"file://{folder}"
    report["export_to_folder"] = interrupted(partial(sent, source, url), folder, folder_is_sound, **how)
    parts = len(list((folder / OBJECTS).iterdir()))
    report["objects"] = parts
    with served(folder) as http:
        for name, address in (("import_from_folder", url), ("import_over_http", http)):
            target = place / name
            Counting.requests = 0
            found = interrupted(partial(received, target, address), target, cache_is_sound, **how)
            found["arrived"] = contents(target) == expected
            report[name] = found
    report["http_requests"] = Counting.requests
    report["sound"] = is_sound(report, interruptions)
    return report


def is_sound(report: dict[str, Any], interruptions: int) -> bool:
    """Whether each transfer was interrupted as often as it should, and nothing was ever wrong."""
    transfers = [found for found in report.values() if isinstance(found, dict)]
    return all(
        not found["unsound_after_a_kill"]
        and not found["failures"]
        and found["interruptions"] == interruptions
        and found.get("arrived", True)
        for found in transfers
    )


def main() -> None:
    """Run everything and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mebibytes", type=int, default=1024, help="size of the cache (default 1024)")
    parser.add_argument("--interruptions", type=int, default=50, help="of each transfer (default 50)")
    parser.add_argument("--seed", type=int, default=9, help="of the content and the kills (default 9)")
    parser.add_argument("--directory", type=Path, help="on whose file system (default: for temporary files)")
    options = parser.parse_args()
    needed = 5 * options.mebibytes * MEBIBYTE
    free = shutil.disk_usage(options.directory or tempfile.gettempdir()).free
    if free < needed:
        sys.exit(f"{needed // MEBIBYTE} MiB of free disk are needed, {free // MEBIBYTE} MiB are there")
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        report = stress(Path(name), options.mebibytes, options.interruptions, options.seed)
    print(json.dumps(report, indent=2))
    sys.exit(0 if report["sound"] else 1)


if __name__ == "__main__":
    main()
