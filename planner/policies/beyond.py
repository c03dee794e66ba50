"""Counted traffic that a deployment's server never forms, or runs without graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planner.describe import counted
from planner.documents.plan import Finding, Severity
from planner.policies.needs import Needs
from planner.traffic.histogram import Histogram

SERIOUS_SHARE = 0.01
"""From which share of the steps on the sizes are fitted to another server's traffic."""


def traffic_beyond(histogram: Histogram, needs: Needs, mixed_maximum: int) -> Iterator[Finding]:
    """What of ``histogram`` is more than the server runs at once, or than any graph of ``mixed_maximum``.

    ``mixed_maximum`` is 0 where batches with prefill have no graphs.
    """
    widest = max((need.widest for need in needs.all), default=0)
    if widest and (share := _share_above(widest, histogram.decode_steps())):
        yield Finding(
            severity=Severity.WARNING if share >= SERIOUS_SHARE else Severity.INFO,
            code="traffic-too-wide",
            message=f"{_percent(share)} of the counted decode steps have more than "
            f"{counted(widest, 'request')}, the most that run at once; they count as steps of {widest}",
            fix=f"planner traffic TRACE --max-num-seqs {widest} replays the requests of a trace on such a "
            "server, which a histogram cannot be: its trace is needed; or raise max_num_seqs",
        )
    if mixed_maximum and (share := _share_above(mixed_maximum, histogram.token_steps())):
        yield Finding(
            severity=Severity.INFO,
            code="traffic-above-maximum",
            message=f"{_percent(share)} of the counted steps with prefill have more than "
            f"{counted(mixed_maximum, 'token')}: they run without a graph and count for no padding",
        )


def _share_above(most: int, steps: Mapping[int, int]) -> float:
    """The share of ``steps`` whose batches are larger than ``most``."""
    total = sum(steps.values())
    return sum(count for size, count in steps.items() if size > most) / total if total else 0.0


def _percent(share: float) -> str:
    """A share above 0, however small, that never reads as nothing."""
    return f"{share:.1%}" if share >= 0.0005 else "less than 0.1%"
