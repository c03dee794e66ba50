#!/usr/bin/env python3
"""What agreeing on a step costs data-parallel ranks beyond the all-reduce that it takes.

    torchrun --nproc-per-node 2 tools/bench_agreement.py
    torchrun --nproc-per-node 4 tools/bench_agreement.py --plan plans/compiled/qwen3-30b-a3b-dbo.yaml

Steps and bare all-reduces of the same matrix take turns, in one run. Rank 0 prints the medians over all
turns, their difference in microseconds and their ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist

from executor.distributed.ranks import Ranks
from executor.distributed.steps import StepAgreement
from planner import column, load_plan
from planner.batches import Batch

PLAN = Path("plans/compiled/qwen3-30b-a3b-dbo.yaml")


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", type=Path, default=PLAN)
    parser.add_argument("--turns", type=int, default=2000)
    options = parser.parse_args()
    if "RANK" not in os.environ:
        print("not started by torchrun; see --help for how it is", file=sys.stderr)
        return 3
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    ranks = Ranks.of_job(timeout=60)
    table = load_plan(options.plan).dispatch_table("target")
    steps = StepAgreement(ranks)
    batch = Batch(num_reqs=5, num_tokens=5, uniform_token_count=1, max_query_len=1, allow_ubatching=True)
    matrix = torch.zeros(ranks.size, len(column(table, batch)), dtype=torch.int64)
    bare, agreed = in_turns(
        lambda: ranks.add_up(matrix.zero_(), "benchmark"), lambda: steps.agree(table, batch), options.turns
    )
    if ranks.rank == 0:
        report(ranks.size, bare, agreed)
    dist.destroy_process_group()
    return 0


def in_turns(
    first: Callable[[], object], second: Callable[[], object], turns: int
) -> tuple[list[float], list[float]]:
    """Seconds of both, call by call; the first tenth is for warming up and not among them."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns + turns // 10):
        for run, taken in zip((first, second), times, strict=True):
            began = time.perf_counter()
            run()
            if turn >= turns // 10:
                taken.append(time.perf_counter() - began)
    return times


def report(size: int, bare: list[float], agreed: list[float]) -> None:
    """One line to read and one of JSON."""
    reduce, step = (statistics.median(times) * 1e6 for times in (bare, agreed))
    print(
        f"{size} ranks: a step's agreement {step:.0f} us, its all-reduce alone {reduce:.0f} us, "
        f"{step - reduce:.0f} us more, ratio {step / reduce:.2f}"
    )
    found = {"ranks": size, "agreement_us": step, "all_reduce_us": reduce, "turns": len(bare)}
    print(json.dumps({**found, "more_us": step - reduce, "ratio": step / reduce}))


if __name__ == "__main__":
    sys.exit(main())
