#!/usr/bin/env python3
"""Puts the cache through what must not harm it, and prints JSON; the exit code is 1 if it was harmed.

    tools/stress_cache.py                                     # 8 processes x 1,000 puts, 200 kills
    tools/stress_cache.py --processes 2 --puts 20 --kills 3   # a minute's worth of CI

* Processes that put at once, each adding to one common record as well: nothing may be lost.
* Processes that are killed with SIGKILL at random moments: whatever a put had returned for must be
  there, and a check clean. This proves that a process may die at any time. It proves nothing about a
  machine that loses power: the kernel lives on and writes what it was given, whether it was synced or
  not.
* Disks without room, as a limit on the size of files and, where one can be mounted, as a small file
  system: the error must say so, and nothing that was put before may be lost.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from cache.errors import CacheError, Fault
from cache.records import Record
from cache.store import PlanCache
from tests.cache.samples import FULL, capture, digest

FORK = get_context("fork")
PATIENCE = 300.0
"""Seconds after which a process that should have ended is a failure."""

RUNS_A_DIRECTORY = 20
LONGEST_LIFE = 0.15
COMMON = digest(-1)
ARTIFACT_EVERY = 10


def wait_for(process: BaseProcess, patience: float = PATIENCE) -> None:
    """Waits for a process to end, and ends it if it does not."""
    process.join(patience)
    if process.is_alive():
        process.kill()
        process.join()
        raise TimeoutError(f"a process had not ended after {patience:g} s")


def put_one(cache: PlanCache, number: int) -> Record:
    """Puts a capture, and with some an artifact."""
    record = capture(number)
    cache.put_capture(record)
    if number % ARTIFACT_EVERY == 0:
        return cache.put_artifact(record, "compiled", content_of(number))
    return record


def content_of(number: int) -> bytes:
    return Random(number).randbytes(1 + number % 50_000)


def is_there(cache: PlanCache, number: int) -> bool:
    """Whether all of what ``put_one`` put is there and is the same."""
    record = capture(number)
    if cache.look(record.key) != record:
        return False
    return number % ARTIFACT_EVERY != 0 or cache.get_artifact(record.key, "compiled") == content_of(number)


# Many at once.


def many_at_once(directory: Path, processes: int, puts: int) -> dict[str, Any]:
    started = time.perf_counter()
    workers = [
        FORK.Process(target=put_many, args=(directory, index * puts, puts)) for index in range(processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        wait_for(worker, PATIENCE + puts)
    seconds = time.perf_counter() - started
    with PlanCache(directory) as cache:
        lost = sum(not is_there(cache, number) for number in range(processes * puts))
        common = cache.usage(COMMON, "target")
        counted = 0 if common is None else common.counts[0].count
        report = cache.check()
    return {
        "processes": processes,
        "puts_each": puts,
        "failed_processes": sum(worker.exitcode != 0 for worker in workers),
        "lost": lost,
        "lost_counts": processes * puts - counted,
        "check_is_clean": report.is_clean and not report.problems,
        "seconds": round(seconds, 2),
        "puts_a_second": round(2 * processes * puts / seconds),
    }


def put_many(directory: Path, first: int, puts: int) -> None:
    with PlanCache(directory) as cache:
        for number in range(first, first + puts):
            put_one(cache, number)
            cache.add_usage(COMMON, "target", {FULL: 1})


# Killed.


def killed(directory: Path, kills: int, seed: int) -> dict[str, Any]:
    chosen = Random(seed)
    acknowledged = lost = unclean = leftovers = silent = 0
    for run in range(kills):
        place = directory / str(run // RUNS_A_DIRECTORY)
        first = 1_000_000 * run
        done = kill_one(place, first, chosen.uniform(0.0, LONGEST_LIFE))
        with PlanCache(place) as cache:
            lost += sum(not is_there(cache, number) for number in done)
            report = cache.check()
        acknowledged += len(done)
        silent += not done
        unclean += bool(report.problems)
        leftovers += report.leftovers
    return {
        "kills": kills,
        "seed": seed,
        "puts_that_had_returned": acknowledged,
        "killed_before_the_first": silent,
        "lost": lost,
        "unclean_checks": unclean,
        "leftover_files_seen": leftovers,
    }


def kill_one(directory: Path, first: int, life: float) -> list[int]:
    """Kills a process that puts, after ``life`` seconds; the numbers whose puts had returned."""
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=put_for_ever, args=(directory, first, sender))
    process.start()
    sender.close()
    done = []
    receiver.poll(PATIENCE)  # it has begun
    time.sleep(life)
    if process.pid is not None:
        os.kill(process.pid, signal.SIGKILL)
    wait_for(process)
    try:
        while receiver.poll(0):
            done.append(receiver.recv())
    except (EOFError, OSError):
        pass  # the last message was cut off, or there are no more
    return [number for number in done if number >= 0]


def put_for_ever(directory: Path, first: int, sender: Pipe) -> None:
    sender.send(-1)
    cache = PlanCache(directory)
    for number in range(first, first + 1_000_000):
        put_one(cache, number)
        sender.send(number)


# No room.


def without_room(directory: Path, limit: Callable[[], Any]) -> dict[str, Any]:
    """Puts until nothing more fits, in a process that ``limit`` has limited, and once more after that."""
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=fill, args=(directory, limit, sender))
    process.start()
    sender.close()
    if not receiver.poll(PATIENCE):
        process.kill()
        raise TimeoutError("the disk was never full")
    number, fault, message = receiver.recv()
    wait_for(process)
    with PlanCache(directory) as cache:
        lost = sum(not is_there(cache, done) for done in range(number))
        report = cache.check()
        cache.prune(max_records=max(1, number // 2))
        put_one(cache, number + 1)
        works_again = is_there(cache, number + 1)
    return {
        "puts_that_fitted": number,
        "fault": fault,
        "message": message,
        "lost": lost,
        "check_is_clean": not report.problems,
        "works_after_prune": works_again,
    }


def fill(directory: Path, limit: Callable[[], Any], sender: Pipe) -> None:
    cache = PlanCache(directory)
    limit()
    number = 0
    try:
        while True:
            put_one(cache, number)
            number += 1
    except CacheError as error:
        sender.send((number, error.fault.value, str(error)))


def limit_file_size(most: int = 400_000) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@contextmanager
def small_file_system(place: Path) -> Iterator[Path | None]:
    """A file system of 1 MiB, or ``None`` where this user may mount none."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    try:
        yield place if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", str(place)], check=True)  # noqa: S607 - where it is, only the system knows


def full_disk(directory: Path) -> dict[str, Any]:
    report: dict[str, Any] = {"file_size_limit": without_room(directory / "limited", limit_file_size)}
    with small_file_system(directory / "mounted") as place:
        found = None if place is None else without_room(place / "cache", lambda: None)
    report["small_file_system"] = found if found is not None else "none can be mounted here"
    return report


def is_sound(report: dict[str, Any]) -> bool:
    """Whether nothing was lost, and everything that had to fail said why."""
    many, kills = report["many_at_once"], report["killed"]
    disks = [disk for disk in report["full_disk"].values() if isinstance(disk, dict)]
    return (
        not (many["lost"] or many["lost_counts"] or many["failed_processes"])
        and many["check_is_clean"]
        and not (kills["lost"] or kills["unclean_checks"])
        and all(
            disk["fault"] == Fault.FULL.value
            and not disk["lost"]
            and disk["check_is_clean"]
            and disk["works_after_prune"]
            for disk in disks
        )
    )


def main() -> None:
    """Run everything and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=8, help="processes that put at once (default 8)")
    parser.add_argument("--puts", type=int, default=1000, help="puts of each (default 1000)")
    parser.add_argument("--kills", type=int, default=200, help="processes that are killed (default 200)")
    parser.add_argument("--seed", type=int, default=5, help="of the moments of the kills (default 5)")
    parser.add_argument("--directory", type=Path, help="on whose file system (default: for temporary files)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        place = Path(name)
        report = {
            "many_at_once": many_at_once(place / "many", options.processes, options.puts),
            "killed": killed(place, options.kills, options.seed),
            "full_disk": full_disk(place),
        }
    report["sound"] = is_sound(report)
    print(json.dumps(report, indent=2))
    sys.exit(0 if report["sound"] else 1)


if __name__ == "__main__":
    main()
