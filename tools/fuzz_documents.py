#!/usr/bin/env python3
"""Mutates documents and puts each through everything that the planner does with one; prints JSON.

A document has to end in a plan that holds together or in one clear error. Anything else - another
exception, a message of several lines, more than --limit seconds, more than --memory of memory - is
a failure: it is printed with its number, and the exit code is 1. The number and the seed alone make
the document, so a failure is repeated with --first NUMBER --count 1.

    tools/fuzz_documents.py                      # 10,000 documents
    tools/fuzz_documents.py --save DIR --jobs 4  # failing documents end up in DIR
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from attrs import field, frozen

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from tests.planner.fuzzing.mutate import mutated_document
from tests.planner.fuzzing.outcome import COMPILED, PLAN, outcome_of

CHUNK = 50
MIB = 2**20
Check = Callable[[bytes, Random], str]


class OutOfTimeError(BaseException):
    """A document took too long; no handler of ``Exception`` may take it for its own."""


@frozen
class Failure:
    """A document that ended in neither a result nor a clear error."""

    number: int
    why: str
    trace: str
    document: bytes = field(repr=False)


@frozen
class Report:
    """What became of some documents; ``slowest`` is seconds and number."""

    outcomes: Counter[str]
    failures: tuple[Failure, ...]
    slowest: tuple[float, int]
    peak_mib: int

    def __add__(self, other: Report) -> Report:
        return Report(
            self.outcomes + other.outcomes,
            (*self.failures, *other.failures),
            max(self.slowest, other.slowest),
            max(self.peak_mib, other.peak_mib),
        )


def fuzz(numbers: Iterable[int], seed: int, limit: float, check: Check = outcome_of) -> Report:
    """The documents of ``numbers``, each within ``limit`` seconds; only the main thread can do this."""
    outcomes: Counter[str] = Counter()
    failures = []
    slowest = (0.0, -1)
    for number in numbers:
        rng = Random(f"{seed}:{number}")
        document = mutated_document(rng)
        start = time.perf_counter()
        try:
            with _alarm_after(limit):
                outcomes[check(document, rng)] += 1
        except (Exception, OutOfTimeError) as fault:  # noqa: BLE001 - whatever else comes is what is looked for
            outcomes["failed"] += 1
            why = " ".join(f"{type(fault).__name__}: {fault}".split())[:500]
            failures.append(Failure(number, why, traceback.format_exc()[-6_000:], document))
        slowest = max(slowest, (time.perf_counter() - start, number))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Report(outcomes, tuple(failures), slowest, peak // 1024)


@contextmanager
def _alarm_after(seconds: float) -> Iterator[None]:
    """Interrupts what runs too long, and again where the first interruption was swallowed."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise OutOfTimeError(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _limit_memory(mib: int) -> None:
    """Makes a document that wants more end in MemoryError instead of the whole machine."""
    resource.setrlimit(resource.RLIMIT_AS, (mib * MIB, mib * MIB))


def run_all(first: int, count: int, seed: int, limit: float, memory_mib: int, jobs: int) -> Report:
    """The documents from ``first`` on, over several processes."""
    total = Report(Counter(), (), (0.0, -1), 0)
    starts = range(first, first + count, CHUNK)
    with ProcessPoolExecutor(jobs, initializer=_limit_memory, initargs=(memory_mib,)) as pool:
        ranges = [range(start, min(start + CHUNK, first + count)) for start in starts]
        chunks = [pool.submit(fuzz, numbers, seed, limit) for numbers in ranges]
        for chunk in chunks:
            total += chunk.result()
    return total


def summary(report: Report, seconds: float) -> dict[str, Any]:
    """The figures of a run, ready for JSON."""
    documents = sum(report.outcomes.values())
    valid = report.outcomes[COMPILED] + report.outcomes[PLAN]
    others = {COMPILED, PLAN, "failed"}
    return {
        "documents": documents,
        "valid": valid,
        "valid_share": round(valid / documents, 3) if documents else 0.0,
        "deployments_compiled": report.outcomes[COMPILED],
        "plans_read": report.outcomes[PLAN],
        "refused": {kind: report.outcomes[kind] for kind in sorted(set(report.outcomes) - others)},
        "failed": [{"number": failure.number, "why": failure.why} for failure in report.failures],
        "seconds": round(seconds, 1),
        "slowest": {"seconds": round(report.slowest[0], 2), "number": report.slowest[1]},
        "peak_mib": report.peak_mib,
    }


def save(failures: Iterable[Failure], folder: Path) -> None:
    """Each failing document and the traceback that it ended in."""
    folder.mkdir(parents=True, exist_ok=True)
    for failure in failures:
        (folder / f"{failure.number}.yaml").write_bytes(failure.document)
        (folder / f"{failure.number}.txt").write_text(failure.trace, encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Run, print the summary, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000, help="documents (default 10,000)")
    parser.add_argument("--seed", type=int, default=0, help="another seed makes other documents")
    parser.add_argument("--first", type=int, default=0, help="number of the first document")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one document (default 60)")
    parser.add_argument("--memory", type=int, default=4096, help="MiB for a process (default 4096)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--save", type=Path, help="folder for the documents that fail")
    asked = parser.parse_args(arguments)
    start = time.perf_counter()
    report = run_all(asked.first, asked.count, asked.seed, asked.limit, asked.memory, asked.jobs)
    print(json.dumps(summary(report, time.perf_counter() - start), indent=2))
    if asked.save is not None:
        save(report.failures, asked.save)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
