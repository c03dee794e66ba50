"""The traffic that a deployment names, read from its file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve

from planner.documents.deployment import CaptureSection, Deployment
from planner.documents.tree import printable
from planner.errors import DocumentError, PlanError
from planner.modes import CapturePolicy

if TYPE_CHECKING:
    from planner.traffic.batching import Batching

FROM_CACHE = "cache"
"""In place of a file: what a cache has counted, which whoever opens the cache brings."""


class OtherTrafficError(DocumentError):
    """A file whose traffic, of this ``digest``, is not what the deployment was planned for."""

    def __init__(self, message: str, *, path: str, digest: str) -> None:
        super().__init__(message, path=path)
        self.digest = digest


def with_traffic(deployment: Deployment, folder: Path) -> Deployment:
    """``deployment`` with the histogram that its policy plans for; relative paths start at ``folder``.

    The requests of a trace are replayed on a server with the deployment's own limits.

    Raises:
        DocumentError: the file cannot be read or holds no traffic.
        OtherTrafficError: it holds other traffic than a plan was made for.
    """
    capture = deployment.capture
    if capture.policy is not CapturePolicy.TRAFFIC or capture.traffic in (None, FROM_CACHE):
        return deployment
    from planner.traffic.load import load_histogram

    path = folder / str(capture.traffic)
    histogram = load_histogram(path, batching=_server_of(deployment))
    if capture.traffic_sha256 not in (None, histogram.digest):
        raise OtherTrafficError(
            f"counts other traffic than this was planned for: its SHA-256 is {histogram.digest}, not "
            f"{capture.traffic_sha256}; give the old file, or remove traffic_sha256",
            path=printable(str(path)),
            digest=histogram.digest,
        )
    capture = evolve(capture, histogram=histogram, traffic_sha256=histogram.digest)
    return evolve(deployment, capture=capture)


def _server_of(deployment: Deployment) -> Batching:
    """A server with the limits that the engine settles on for ``deployment``, those left open included."""
    from planner.rules.settings import settle
    from planner.traffic.batching import Batching

    try:
        settings = settle(deployment)
    except PlanError:
        # Whoever compiles the deployment says what the engine refuses; no replay matters then.
        return Batching()
    return Batching(
        max_num_seqs=min(settings.max_num_seqs, settings.max_num_active_seqs or settings.max_num_seqs),
        chunk=settings.max_num_batched_tokens,
    )


def without_traffic(deployment: Deployment) -> Deployment:
    """``deployment`` as a plan keeps it: with the digest of its traffic in place of the counts."""
    histogram = deployment.capture.histogram
    if histogram is None:
        return deployment
    capture: CaptureSection = evolve(deployment.capture, histogram=None, traffic_sha256=histogram.digest)
    return evolve(deployment, capture=capture)
