"""The traffic that a deployment names, read from its file."""

from __future__ import annotations

from pathlib import Path

from attrs import evolve

from planner.documents.deployment import CaptureSection, Deployment
from planner.documents.tree import printable
from planner.errors import DocumentError
from planner.modes import CapturePolicy

FROM_CACHE = "cache"
"""In place of a file: what a cache has counted, which whoever opens the cache brings."""


def with_traffic(deployment: Deployment, folder: Path) -> Deployment:
    """``deployment`` with the histogram that its policy plans for; relative paths start at ``folder``.

    The requests of a trace are replayed on a server with the deployment's own limits.

    Raises:
        DocumentError: the file cannot be read, holds no traffic, or other traffic than a plan was made for.
    """
    capture = deployment.capture
    if capture.policy is not CapturePolicy.TRAFFIC or capture.traffic in (None, FROM_CACHE):
        return deployment
    from planner.traffic.batching import Batching
    from planner.traffic.load import load_histogram

    default, scheduler = Batching(), deployment.scheduler
    server = evolve(
        default,
        max_num_seqs=scheduler.max_num_seqs or default.max_num_seqs,
        chunk=scheduler.max_num_batched_tokens or default.chunk,
    )
    path = folder / str(capture.traffic)
    histogram = load_histogram(path, batching=server)
    if capture.traffic_sha256 not in (None, histogram.digest):
        raise DocumentError(
            f"counts other traffic than this was planned for: its SHA-256 is {histogram.digest}, not "
            f"{capture.traffic_sha256}; give the old file, or remove traffic_sha256",
            path=printable(str(path)),
        )
    capture = evolve(capture, histogram=histogram, traffic_sha256=histogram.digest)
    return evolve(deployment, capture=capture)


def without_traffic(deployment: Deployment) -> Deployment:
    """``deployment`` as a plan keeps it: with the digest of its traffic in place of the counts."""
    histogram = deployment.capture.histogram
    if histogram is None:
        return deployment
    capture: CaptureSection = evolve(deployment.capture, histogram=None, traffic_sha256=histogram.digest)
    return evolve(deployment, capture=capture)
