"""The documents that fuzzing starts from: every kind that the project has, in one form or another."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from planner import Deployment, PlanError, compile_plan, dump_deployment, dump_plan, load_deployment

PROJECT = Path(__file__).resolve().parents[3]
SAMPLES = ("vllm-0.33-sample.jsonl.gz", "vllm-0.33-backends-sample.jsonl.gz")

MAX_LENGTH = 24_000
"""Longest seed in characters: mutating longer ones takes time and finds nothing else."""


@cache
def seed_texts() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Texts of Deployments and of Plans, the same on every machine."""
    found = list(_deployments())
    written_by_hand = [
        path.read_text(encoding="utf-8") for path in sorted((PROJECT / "plans").glob("*.yaml"))
    ]
    compiled = [text for deployment in found if (text := _compiled(deployment)) is not None]
    return _short([dump_deployment(deployment) for deployment in found]), _short(
        [*written_by_hand, *compiled]
    )


def _deployments() -> Iterator[Deployment]:
    """Those under plans/, with their models' configs written out, and those of the real engine's answers."""
    for path in sorted((PROJECT / "plans" / "deployments").glob("*.yaml")):
        yield load_deployment(path)
    for name in SAMPLES:
        with gzip.open(PROJECT / "tests" / "data" / name, "rt", encoding="utf-8") as file:
            for line in file:
                yield load_deployment(json.loads(line)["deployment"])


def _compiled(deployment: Deployment) -> str | None:
    try:
        return dump_plan(compile_plan(deployment))
    except PlanError:
        return None


def _short(texts: list[str]) -> tuple[str, ...]:
    return tuple(text for text in texts if len(text) <= MAX_LENGTH)
