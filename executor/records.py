"""What a capture tells of itself: one record an entry, and the report of them all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from executor.backends.base import Digests
from planner.descriptors import PlanEntry
from planner.documents.data import entry_data


@frozen(kw_only=True)
class CaptureRecord:
    """How the capture of one entry went.

    ``warmup_seconds`` is the forward ahead of the recording, ``seconds`` the recording with making it
    ready to launch. ``num_bytes`` is what pool and graph grew by, ``num_graphs`` how many graphs the
    entry took: one, or a piece more than it has marked operations. ``num_warmups`` counts the forwards
    ahead of the recording. ``digests`` are over what was recorded. ``error`` says why there is no graph,
    ``fix`` what would help; ``needed_warm_up`` that recording failed without a warm-up forward.
    ``restored`` says that the graph was rebuilt instead of captured, ``refused`` why it was not.
    """

    entry: PlanEntry
    warmup_seconds: float = 0.0
    seconds: float = 0.0
    num_bytes: int = 0
    num_nodes: int | None = None
    num_graphs: int = 0
    num_warmups: int = 0
    needed_warm_up: bool = False
    digests: Digests | None = None
    restored: bool = False
    refused: str | None = None
    error: str | None = None
    fix: str | None = None

    def as_json(self) -> Mapping[str, Any]:
        """The record as JSON has it; entry fields that are not set are left out."""
        measured = ("warmup_seconds", "seconds", "num_bytes", "num_nodes", "num_graphs", "num_warmups")
        told = {name: getattr(self, name) for name in (*measured, "refused", "error", "fix")}
        if self.restored:
            told["restored"] = True
        if self.digests is not None:
            told.update(kernel_digest=self.digests.kernels, topology_digest=self.digests.topology)
        return {
            **entry_data(self.entry),
            **{name: value for name, value in told.items() if value is not None},
        }


@frozen(kw_only=True)
class CaptureReport:
    """How the capture of a family went; ``seconds`` is the whole loop, ``num_remaining`` what it left."""

    family: str
    device: str
    seconds: float
    records: tuple[CaptureRecord, ...]
    num_remaining: int = 0

    @property
    def captured(self) -> tuple[CaptureRecord, ...]:
        """Entries that have a graph."""
        return tuple(record for record in self.records if record.error is None)

    @property
    def failed(self) -> tuple[CaptureRecord, ...]:
        """Entries that have none; their batches go to larger entries, or run eagerly."""
        return tuple(record for record in self.records if record.error is not None)

    @property
    def num_bytes(self) -> int:
        """What all entries grew pool and graphs by."""
        return sum(record.num_bytes for record in self.records)

    def as_json(self) -> Mapping[str, Any]:
        """The report as JSON has it."""
        return {
            "family": self.family,
            "device": self.device,
            "seconds": self.seconds,
            "num_bytes": self.num_bytes,
            "entries": [record.as_json() for record in self.records],
        }
