"""Starts ranks as processes of their own on this machine, each with a real gloo group between them."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

Case = Callable[..., Any]
"""What a rank runs: takes its rank, the number of ranks and further values, and returns plain data."""

DEADLINE = 100.0
"""Seconds after which a test gives up on its ranks; none takes that long."""

KILLED = "killed"
"""The outcome of a rank whose process ended without one."""

# Ranks are forked off a process that has imported everything once and has no threads.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.executor.distributed.cases", "tests.executor.distributed.model_cases"])


def run_ranks(size: int, case: Case, store: Path, *values: Any) -> list[Any]:
    """What ``case`` returned on each of ``size`` ranks; an error of the project as its text.

    ``store`` is a file that does not exist yet, through which the ranks meet.
    """
    return run_cases(size, store, [(case, *values)])[0]


def run_cases(size: int, store: Path, cases: list[tuple[Any, ...]]) -> list[list[Any]]:
    """As ``run_ranks`` for several cases with their values, one after another on the same ranks."""
    pipes = [_FORKS.Pipe(duplex=False) for _ in range(size)]
    processes = [
        _FORKS.Process(target=_run, args=(rank, size, str(store), pipe[1], cases), daemon=True)
        for rank, pipe in enumerate(pipes)
    ]
    for process, (_, sender) in zip(processes, pipes, strict=True):
        process.start()
        sender.close()
    try:
        outcomes = [[_outcome(receiver) for receiver, _ in pipes] for _ in cases]
    finally:
        for process in processes:
            process.kill()
            process.join()
    return outcomes


def _outcome(receiver: Connection) -> Any:
    if not wait([receiver], DEADLINE):
        return "hangs"
    try:
        return receiver.recv()
    except EOFError:
        return KILLED


def _run(rank: int, size: int, store: str, sender: Connection, cases: list[tuple[Any, ...]]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=30)
    )
    for case, *values in cases:
        sender.send(_outcome_of(case, rank, size, values))
    sender.close()
    os._exit(0)  # without PyTorch's own ending, which would wait for ranks that are gone


def _outcome_of(case: Case, rank: int, size: int, values: list[Any]) -> Any:
    try:
        return case(rank, size, *values)
    except Exception as error:  # noqa: BLE001 - whatever it was, the test is told
        known = type(error).__module__ in ("executor.errors", "planner.errors")
        return f"{type(error).__name__}: {error}" if known else traceback.format_exc()
