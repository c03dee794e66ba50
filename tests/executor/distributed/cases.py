"""What the ranks of the tests run. Each case is one function; ranks are processes of their own."""

# ruff: noqa: ARG001 - every case is told its rank and their number
from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

from cache.fingerprint import EnvironmentFingerprint, ModelFingerprint
from executor.distributed.ranks import Ranks
from executor.distributed.start import Statement, agree_at_start
from executor.distributed.steps import StepAgreement
from planner import agree, compile_plan, load_deployment, load_plan
from tests.executor.distributed.batches import random_batches

PATIENCE = 20.0
"""Seconds an exchange may take where no rank is late; the machine may be busy."""


def start(rank: int, size: int, plans: list[str], fields: list[dict[str, str]], stages: list[int]) -> str:
    """Start-up agreement of ranks with these plans, fields of their environments and stages."""
    ranks = Ranks.of_job(timeout=PATIENCE)
    own, chosen = load_plan(plans[rank]), fields[rank]
    environment = EnvironmentFingerprint(torch=chosen.get("torch", "2.13"), gpu="H200")
    model = ModelFingerprint(config="c", dtype=chosen.get("dtype", "bfloat16"))
    agree_at_start(ranks, Statement.of(own, environment, model, stage=stages[rank]))
    return "agreed"


def golden(rank: int, size: int, lines: list[dict[str, Any]]) -> list[Any]:
    """Every golden step of ``size`` ranks; returns what this rank decided."""
    steps = StepAgreement(Ranks.of_job(timeout=PATIENCE))
    decided = []
    for line in lines:
        table = compile_plan(load_deployment(line["deployment"])).dispatch_table("target")
        own = (step[rank] for step in line["dp_steps"] if len(step) == size)
        decided.extend(steps.agree(table, batch) for batch in own)
    return decided


def random_steps(rank: int, size: int, plans: list[str], count: int, seed: int) -> dict[str, Any]:
    """Random steps of all ranks, each held against the decision of one process that knows them all."""
    steps = StepAgreement(Ranks.of_job(timeout=PATIENCE))
    tables = [load_plan(text).dispatch_table("target") for text in plans]
    draw = random.Random(seed)
    different, modes = 0, set()
    for _ in range(count):
        table = draw.choice(tables)
        batches = random_batches(draw, table, size)
        found = steps.agree(table, batches[rank])
        different += found != agree(table, batches)[rank]
        modes.add(str(found.descriptor.cg_mode))
    return {"different": different, "modes": sorted(modes)}


def fault(rank: int, size: int, kind: str, timeout: float) -> tuple[str, float]:
    """A rank, the last, that is killed or comes late in the middle of steps; how the others end, and when."""
    ranks = Ranks.of_job(timeout=PATIENCE)
    limited = Ranks.among([range(size)], timeout=timeout, name="limited")
    table = load_plan(DECODE).dispatch_table("target")
    steps = StepAgreement(limited)
    batch = {"num_reqs": 1, "num_tokens": 1, "uniform_token_count": 1}
    steps.agree(table, batch)
    ranks.exchange(b"", "begin")
    began = time.monotonic()
    if rank == size - 1:
        if kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(timeout * 1.4)
    try:
        steps.agree(table, batch)
    except Exception as error:  # noqa: BLE001 - its text is what the test looks at
        return f"{type(error).__name__}: {error}", time.monotonic() - began
    return "agreed", time.monotonic() - began


def halves(rank: int, size: int) -> Any:
    """Two groups of one name at once, of which the second loses its last rank."""
    ranks = Ranks.among([range(0, size, 2), range(1, size, 2)], timeout=1.5, name="halves")
    numbers = [message.decode() for message in ranks.exchange(str(rank).encode(), "numbers")]
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        ranks.exchange(b"", "after the loss")
    except Exception as error:  # noqa: BLE001 - its text is what the test looks at
        return numbers, str(error)
    return numbers, "agreed"


def never_there(rank: int, size: int, timeout: float) -> str:
    """The last rank never calls; the others make their groups."""
    if rank == size - 1:
        time.sleep(timeout * 2)
        return "away"
    Ranks.of_job(timeout=timeout)
    return "agreed"


DECODE = """
apiVersion: graphplan/v1
kind: Plan
graphs:
  target:
  - {mode: FULL, num_tokens: 4, num_reqs: 4, uniform_token_count: 1}
  - {mode: FULL, num_tokens: 1, num_reqs: 1, uniform_token_count: 1}
"""
