#!/usr/bin/env python3
"""Times the cache among many records, in one run; prints JSON. Times are in milliseconds.

tools/bench_cache.py [--records 10000]
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from attrs import evolve

from cache.keys import rules_version, stable_digest
from cache.store import PlanCache
from planner.compile import compile_plan
from planner.documents.deployment import Deployment
from planner.documents.load import load_deployment
from planner.documents.plan import Plan
from tests.cache.samples import ENVIRONMENT, MODEL, capture

DEPLOYMENT = PROJECT / "plans/deployments/qwen3-8b-dflash.yaml"
PUTS_AT_ONCE = 500
OPENING = """
import sys, time
from cache.store import PlanCache
start = time.perf_counter()
PlanCache(sys.argv[1])
print(time.perf_counter() - start)
"""


def variants(deployment: Deployment, number: int) -> list[Deployment]:
    """Deployments that differ in a setting that their plans do not depend on, and so in their keys."""
    scheduler = deployment.scheduler
    return [
        evolve(
            deployment, scheduler=evolve(scheduler, ignored={**scheduler.ignored, "stream_interval": index})
        )
        for index in range(1, number + 1)
    ]


def fill(cache: PlanCache, plan: Plan, deployments: Sequence[Deployment]) -> None:
    for start in range(0, len(deployments), PUTS_AT_ONCE):
        with cache.connection.transaction():
            for index in range(start, min(start + PUTS_AT_ONCE, len(deployments))):
                cache.put_plan(evolve(plan, deployment=deployments[index]))
                if index % 10 == 0:
                    cache.put_capture(capture(index))


def spread(times: Sequence[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "median": round(1000 * statistics.median(ordered), 3),
        "p99": round(1000 * ordered[int(0.99 * (len(ordered) - 1))], 3),
        "max": round(1000 * ordered[-1], 3),
    }


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def lookups(cache: PlanCache, deployments: Sequence[Deployment], rounds: int) -> dict[str, Any]:
    chosen = Random(7).choices(deployments, k=rounds)
    found = [timed(lambda deployment=deployment: cache.get_plan(deployment)) for deployment in chosen]
    if any(cache.get_plan(deployment) is None for deployment in chosen[:10]):
        raise ValueError("a plan that was put was not found")
    missing = variants(deployments[0], len(deployments) + 50)[len(deployments) :]
    prefix = capture(0).key.digest[:12]
    captures = [timed(lambda number=number: _capture(cache, number)) for number in range(0, 1000, 10)]
    return {
        "plan_found": spread(found),
        "plan_not_there": spread([timed(lambda one=one: cache.get_plan(one)) for one in missing]),
        "capture_found": spread(captures),
        "found_by_digest": spread([timed(lambda: cache.find(digest_prefix=prefix)) for _ in range(5)]),
    }


def _capture(cache: PlanCache, number: int) -> None:
    if cache.find_capture(capture(number).plan, ENVIRONMENT, MODEL, "target").record is None:
        raise ValueError("a capture that was put was not found")


def opening(directory: Path, rounds: int) -> dict[str, Any]:
    def in_a_fresh_process() -> float:
        command = [sys.executable, "-c", OPENING, str(directory)]
        done = subprocess.run(command, capture_output=True, check=True, cwd=PROJECT, text=True)
        return float(done.stdout)

    def here() -> None:
        PlanCache(directory).close()

    return {
        "in_a_fresh_process": spread([in_a_fresh_process() for _ in range(rounds)]),
        "in_a_warm_process": spread([timed(here) for _ in range(rounds)]),
    }


def main() -> None:
    """Run every figure and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=10_000, help="plans in the cache (default 10,000)")
    parser.add_argument("--rounds", type=int, default=500, help="lookups (default 500)")
    parser.add_argument("--directory", type=Path, help="on whose file system (default: for temporary files)")
    options = parser.parse_args()
    deployment = load_deployment(DEPLOYMENT)
    plan = compile_plan(deployment)
    deployments = variants(deployment, options.records)
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = Path(name) / "cache"
        rules = timed(rules_version)
        with PlanCache(directory) as cache:
            filled = timed(lambda: fill(cache, plan, deployments))
            puts = [
                timed(lambda number=number: cache.put_capture(capture(-number))) for number in range(1, 101)
            ]
            stats = cache.stats()
            gc.collect()
            gc.freeze()  # ten thousand deployments that no process with a cache has
            figures = lookups(cache, deployments, options.rounds)
        report = {
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            "records": sum(stats.records.values()),
            "database_mib": round(stats.database_bytes / 2**20, 1),
            "plan_entries": sum(map(len, plan.graphs.values())),
            "fill_s": round(filled, 1),
            "opening_ms": opening(directory, 20),
            "lookup_ms": figures,
            "put_ms": spread(puts),
            "rules_version_once_ms": round(1000 * rules, 2),
            "stable_digest_ms": spread([timed(lambda: stable_digest(plan)) for _ in range(20)]),
            "compile_ms": spread([timed(lambda: compile_plan(deployment)) for _ in range(20)]),
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
