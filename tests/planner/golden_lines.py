"""The real engine's answers, one deployment a line (see the project's CONTRIBUTING).

The whole file lies beside the project where it was developed; a clone has a sample of it.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from planner import Deployment, PlanEntry, load_deployment
from planner.batches import Agreement
from planner.descriptors import BatchExecutionDescriptor

PROJECT = Path(__file__).resolve().parents[2]


def golden_lines(runner: str) -> list[dict[str, Any]]:
    """The lines that the model runner ``runner`` (``v1`` or ``v2``) answered."""
    return [line for line in lines_of("vllm-0.33") if line["deployment"]["engine"]["runner"] == runner]


def backend_lines() -> list[dict[str, Any]]:
    """The lines about attention backends."""
    return lines_of("vllm-0.33-backends")


def lines_of(stem: str) -> list[dict[str, Any]]:
    """The lines of one file, by its name without the ending."""
    whole = PROJECT.parent / "shared" / "golden" / f"{stem}.jsonl.gz"
    sample = PROJECT / "tests" / "data" / f"{stem}-sample.jsonl.gz"
    with gzip.open(whole if whole.is_file() else sample, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def name(line: dict[str, Any]) -> str:
    """The name of a line, as the name of its test."""
    return str(line["name"])


def load(line: dict[str, Any]) -> Deployment:
    """The deployment of a line, read as a user's document is."""
    return load_deployment(line["deployment"])


def as_answer(descriptor: BatchExecutionDescriptor | PlanEntry) -> dict[str, Any]:
    """A V2 descriptor in the form of the golden file."""
    if isinstance(descriptor, PlanEntry):
        descriptor = descriptor.execution_descriptor
    return {
        "mode": str(descriptor.cg_mode),
        "num_tokens": descriptor.num_tokens,
        "num_reqs": descriptor.num_reqs,
        "uniform_token_count": descriptor.uniform_token_count,
        "max_query_len": descriptor.max_query_len,
        "num_active_loras": descriptor.num_active_loras,
        "num_ubatches": descriptor.num_ubatches,
    }


def as_decision(agreement: Agreement) -> dict[str, Any]:
    """A decision of data-parallel ranks in the form of the golden file."""
    across = agreement.num_tokens_across_dp
    return {
        "descriptor": as_answer(agreement.descriptor),
        "num_tokens_across_dp": None if across is None else list(across),
        "uniform_token_count": agreement.uniform_token_count,
        "eager": agreement.eager,
        "num_reqs": agreement.num_reqs,
    }
