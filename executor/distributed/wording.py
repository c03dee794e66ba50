"""How ranks, time limits and entries are named in messages."""

from __future__ import annotations

from collections.abc import Sequence

from planner.descriptors import PlanEntry
from planner.documents.data import entry_data


def listed_ranks(ranks: Sequence[int]) -> str:
    """``rank 3``, or ``ranks 0, 1 and 4``; runs of three and more as ``0 to 7``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    names = [
        name
        for run in runs
        for name in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(rank) for rank in run])
    ]
    joined = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"rank {joined}" if len(ranks) == 1 else f"ranks {joined}"


def seconds(duration: float) -> str:
    """``0.5 s``, ``30 s``."""
    return f"{duration:.1f}".removesuffix(".0") + " s"


def shown(entry: PlanEntry) -> str:
    """An entry by its fields, as a plan has them."""
    return "{" + ", ".join(f"{name}: {value}" for name, value in entry_data(entry).items()) + "}"
