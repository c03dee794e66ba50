#!/usr/bin/env python3
"""Times the planner against straightforward code that does the same, all in one run; prints JSON.

The straightforward side is what an engine does at start: lists scanned for duplicates, a
dictionary from (tokens, LoRA case) to a list of frozen objects, and a scan of that list for every
batch. Each figure is the best of several rounds; ratios come from rounds that alternate.

    tools/bench_planner.py            # all figures
    tools/bench_planner.py --rounds 3 # quicker
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner import (
    CUDAGraphMode,
    Deployment,
    DispatchTable,
    Plan,
    compile_plan,
    dump_plan,
    load_deployment,
    load_plan,
)
from planner.documents.plan import ResolvedFamily
from planner.rules.entries import EntryRequest, family_entries

PROJECT = Path(__file__).resolve().parent.parent
LARGE = """
apiVersion: graphplan/v1
kind: Deployment
model: {attention_support: ALWAYS}
scheduler: {max_num_seqs: 512, max_num_batched_tokens: 8192}
speculative:
  method: mtp
  num_speculative_tokens: 7
  num_speculative_tokens_per_batch_size: [[1, 32, 7], [33, 128, 4], [129, 512, 1]]
lora: {max_loras: 16, specialize_active_lora: true}
device: {compute_capability: "10.0"}
"""
PLAIN = "apiVersion: graphplan/v1\nkind: Deployment\nmodel: {attention_support: ALWAYS}\n"


Batch = tuple[int, int, int | None, int]
"""Requests, tokens, uniform token count, active LoRAs."""


@dataclass(frozen=True)
class Descriptor:
    """The frozen object of the straightforward side."""

    mode: CUDAGraphMode
    num_tokens: int
    num_reqs: int | None
    uniform_token_count: int | None = None
    max_query_len: int | None = None
    num_active_loras: int = 0
    num_ubatches: int = 1


def scanned_entries(target: ResolvedFamily) -> list[Descriptor]:
    """Entries of a family, each looked up in the list so far before it is added."""
    decode_len, seqs = target.decode_query_len or 1, target.max_num_seqs or 0
    lists: dict[CUDAGraphMode, list[Descriptor]] = {CUDAGraphMode.PIECEWISE: [], CUDAGraphMode.FULL: []}
    for size in sorted(target.cudagraph_capture_sizes):
        for case in target.lora_cases:
            for query_len in target.uniform_query_lens:
                tokens = -(-size // query_len) * query_len
                reqs = tokens // query_len
                if tokens > seqs * decode_len or tokens > target.max_cudagraph_capture_size or reqs > seqs:
                    continue
                made = Descriptor(CUDAGraphMode.FULL, tokens, reqs, query_len, num_active_loras=case)
                if made not in lists[made.mode]:
                    lists[made.mode].append(made)
            lists[CUDAGraphMode.PIECEWISE].append(
                Descriptor(CUDAGraphMode.PIECEWISE, size, None, num_active_loras=case)
            )
    for found in lists.values():
        found.sort(key=lambda descriptor: descriptor.num_tokens, reverse=True)
    return [*lists[CUDAGraphMode.PIECEWISE], *lists[CUDAGraphMode.FULL]]


class ScanningTable:
    """Dispatch by scanning the candidates of (tokens, LoRA case)."""

    def __init__(self, entries: Sequence[Descriptor], cases: Sequence[int]) -> None:
        self.cases = {}
        largest = max(cases)
        for active in range(1, largest + 1):
            self.cases[active] = min(case for case in cases if case >= active)
        self.largest = largest
        self.candidates: dict[tuple[int, int], list[Descriptor]] = {}
        for case in cases:
            for mode in (CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE):
                ascending = [d for d in reversed(entries) if d.mode is mode and d.num_active_loras == case]
                below = -1
                for index, descriptor in enumerate(ascending):
                    if index and descriptor.num_tokens != ascending[index - 1].num_tokens:
                        below = ascending[index - 1].num_tokens
                    for tokens in range(below + 1, descriptor.num_tokens + 1):
                        self.candidates.setdefault((tokens, case), []).append(descriptor)

    @staticmethod
    def compatible(
        descriptor: Descriptor,
        reqs: int,
        tokens: int,
        uniform: int | None,
        case: int,
        longest: int | None,
        ubatches: int,
    ) -> bool:
        """Whether the object serves the batch."""
        if descriptor.uniform_token_count is not None and descriptor.uniform_token_count != uniform:
            return False
        if descriptor.max_query_len is not None and (longest is None or descriptor.max_query_len < longest):
            return False
        if descriptor.num_reqs is not None and descriptor.num_reqs < reqs:
            return False
        return (
            descriptor.num_tokens >= tokens
            and descriptor.num_active_loras == case
            and descriptor.num_ubatches == ubatches
        )

    def dispatch(
        self,
        num_reqs: int,
        num_tokens: int,
        uniform_token_count: int | None = None,
        num_active_loras: int = 0,
        max_query_len: int | None = None,
        num_ubatches: int = 1,
    ) -> Descriptor:
        """The first candidate that serves the batch, or an eager one."""
        case = num_active_loras
        if case > 0:
            case = self.cases.get(case, self.largest)
        if num_tokens > 0 and (num_tokens, case) in self.candidates:
            for descriptor in self.candidates[num_tokens, case]:
                if self.compatible(
                    descriptor, num_reqs, num_tokens, uniform_token_count, case, max_query_len, num_ubatches
                ):
                    return descriptor
        return Descriptor(
            CUDAGraphMode.NONE, num_tokens, num_reqs, num_active_loras=case, num_ubatches=num_ubatches
        )


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def alternate(rounds: int, **works: Callable[[], Any]) -> dict[str, float]:
    """The best time of each work, taken in turns so that a drifting machine hurts all alike."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            best[name] = min(best[name], seconds(work))
    return best


def distinct_batches(target: ResolvedFamily, count: int, *, covered: bool) -> list[Batch]:
    """Different batches, uniform decode and mixed, with and without adapters."""
    chosen = random.Random(20261202)
    top, seqs = target.max_cudagraph_capture_size, target.max_num_seqs or 1
    found: dict[Batch, None] = {}
    while len(found) < count:
        loras = chosen.choice((0, 0, chosen.randint(1, 17)))
        if covered and chosen.random() < 0.6:
            query_len = chosen.choice(target.uniform_query_lens)
            uniform: int | None = query_len
            reqs = chosen.randint(1, min(seqs, top // query_len))
            tokens = reqs * query_len
        elif covered:
            uniform, reqs = None, chosen.randint(1, min(seqs, top))
            tokens = chosen.randint(reqs, top)
        else:
            uniform, reqs = None, chosen.randint(1, seqs)
            tokens = chosen.randint(top + 1, 8 * top)
        found[reqs, tokens, uniform, loras] = None
    return list(found)


def bench_compile(deployment: Deployment, rounds: int) -> dict[str, Any]:
    plan = compile_plan(deployment)
    target = plan.resolved["target"]
    mine = [entry.execution_descriptor for entry in plan.entries()]
    scanned = [
        (d.mode, d.num_tokens, d.num_reqs, d.uniform_token_count, d.num_active_loras)
        for d in scanned_entries(target)
    ]
    same = scanned == [
        (d.cg_mode, d.num_tokens, d.num_reqs, d.uniform_token_count, d.num_active_loras) for d in mine
    ]
    best = alternate(
        rounds,
        compile=lambda: compile_plan(deployment),
        entries=lambda: family_entries(_request(target)),
        scan=lambda: scanned_entries(target),
    )
    return {
        "entries": len(mine),
        "same_entries": same,
        "compile_ms": round(best["compile"] * 1e3, 2),
        "entries_only_ms": round(best["entries"] * 1e3, 2),
        "list_scan_ms": round(best["scan"] * 1e3, 2),
        "list_scan_over_compile": round(best["scan"] / best["compile"], 1),
    }


def bench_dispatch(plan: Plan, rounds: int) -> dict[str, Any]:
    target = plan.resolved["target"]
    table = plan.dispatch_table()
    if not isinstance(table, DispatchTable):
        raise TypeError("the deployment is served by the V2 runner")
    straightforward = ScanningTable(scanned_entries(target), target.lora_cases)
    report: dict[str, Any] = {}
    for name, covered in (("covered", True), ("none", False)):
        batches = distinct_batches(target, 20_000, covered=covered)
        answers = [table.dispatch(*batch) for batch in batches]
        same = all(
            (mine.cg_mode, mine.num_tokens, mine.num_reqs, mine.num_active_loras)
            == (other.mode, other.num_tokens, other.num_reqs, other.num_active_loras)
            for mine, other in zip(
                answers, (straightforward.dispatch(*batch) for batch in batches), strict=True
            )
        )
        ended_in_none = sum(answer.cg_mode is CUDAGraphMode.NONE for answer in answers)
        best = alternate(
            rounds,
            table=lambda batches=batches: _dispatch_all(table, batches),  # type: ignore[misc]
            scan=lambda batches=batches: _dispatch_all(straightforward, batches),  # type: ignore[misc]
        )
        report[name] = {
            "distinct_batches": len(batches),
            "ended_in_none": ended_in_none,
            "same_answers": same,
            "table_ns": round(best["table"] / len(batches) * 1e9),
            "scan_ns": round(best["scan"] / len(batches) * 1e9),
            "scan_over_table": round(best["scan"] / best["table"], 2),
        }
    return report


def _dispatch_all(table: DispatchTable | ScanningTable, batches: Sequence[Batch]) -> None:
    for num_reqs, num_tokens, uniform_token_count, num_active_loras in batches:
        table.dispatch(
            num_reqs=num_reqs,
            num_tokens=num_tokens,
            uniform_token_count=uniform_token_count,
            num_active_loras=num_active_loras,
        )


def bench_growth(rounds: int) -> list[dict[str, Any]]:
    """Library cost by number of entries: everything from the entries to a plan read back."""
    base = compile_plan(load_deployment(PLAIN))
    rows = []
    for count in (1_000, 10_000, 100_000):
        request = EntryRequest(
            mode=CUDAGraphMode.PIECEWISE,
            sizes=tuple(range(1, count + 1)),
            max_num_seqs=256,
            decode_query_len=1,
            query_lens=(1,),
        )
        entries = family_entries(request)
        plan = _with_entries(base, entries)
        text = dump_plan(plan)
        best = alternate(
            max(1, rounds // 3) if count > 1_000 else rounds,
            entries=lambda request=request: family_entries(request),  # type: ignore[misc]
            table=lambda entries=entries: DispatchTable(entries),  # type: ignore[misc]
            dump=lambda plan=plan: dump_plan(plan),  # type: ignore[misc]
            load=lambda text=text: load_plan(text),  # type: ignore[misc]
        )
        per_entry = {f"{name}_us_per_entry": round(value / count * 1e6, 2) for name, value in best.items()}
        rows.append({"entries": count, **per_entry})
    return rows


def bench_process(rounds: int) -> dict[str, Any]:
    """`planner compile` of a plain deployment as a whole process."""
    command = [sys.executable, "-m", "planner.cli.main", "compile", "-"]

    # As installed: modules are compiled once, not at every start.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def run() -> None:
        subprocess.run(
            command, input=PLAIN.encode(), capture_output=True, check=True, cwd=PROJECT, env=environment
        )

    run()

    times = sorted(seconds(run) for _ in range(max(5, rounds)))
    heavy = subprocess.run(
        [sys.executable, "-X", "importtime", *command[1:]],
        input=PLAIN.encode(),
        capture_output=True,
        check=True,
        cwd=PROJECT,
    ).stderr.decode()
    imported = {
        line.rsplit("|", 1)[-1].strip().split(".")[0] for line in heavy.splitlines() if "import time:" in line
    }
    return {
        "median_s": round(times[len(times) // 2], 3),
        "min_s": round(times[0], 3),
        "imports": {name: name in imported for name in ("torch", "numpy", "rich")},
    }


def _request(target: ResolvedFamily) -> EntryRequest:
    return EntryRequest(
        mode=target.cudagraph_mode,
        sizes=target.cudagraph_capture_sizes,
        max_num_seqs=target.max_num_seqs or 0,
        decode_query_len=target.decode_query_len or 1,
        query_lens=target.uniform_query_lens,
        lora_cases=target.lora_cases,
    )


def _with_entries(plan: Plan, entries: Sequence[Any]) -> Plan:
    from attrs import evolve

    return evolve(plan, digest=None, graphs={"target": tuple(entries)})


def main() -> None:
    """Run every figure and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9, help="rounds a figure (default 9)")
    rounds = parser.parse_args().rounds
    deployment = load_deployment(LARGE)
    report = {
        "compile": bench_compile(deployment, rounds),
        "dispatch": bench_dispatch(compile_plan(deployment), rounds),
        "growth": bench_growth(rounds),
        "process": bench_process(rounds),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
