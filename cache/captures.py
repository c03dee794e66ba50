"""What a capture leaves for the next start: one record a family and rank, one row an entry."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from cache.errors import CacheError, Fault
from cache.fingerprint import EnvironmentFingerprint, Mismatch, ModelFingerprint, mismatches
from cache.keys import Key, capture_key
from cache.records import Labels, record_of
from planner.descriptors import PlanEntry
from planner.documents.data import plain
from planner.documents.deployment import Json

_COUNT = {"minimum": 0}


@frozen(kw_only=True)
class EntryCapture:
    """How the capture of one entry went.

    ``warmup_seconds`` is the forwards ahead of the recording, ``seconds`` the recording with making it
    ready to launch. ``num_bytes`` is what pool and graph grew by, ``num_graphs`` how many graphs the
    entry took. ``kernel_digest`` is over the names of its kernels, ``topology_digest`` over its nodes
    and edges. ``num_warmups`` is how many forwards it needs before it can be recorded when its kernels
    are loaded: more than 0 where something else is compiled or initialised. ``error`` says why there
    is no graph and ``fix`` what would help; ``verified_error`` is the largest relative error that was
    seen when its replay was last compared with an eager forward.
    """

    entry: PlanEntry
    seconds: float = 0.0
    warmup_seconds: float = 0.0
    num_bytes: int = 0
    num_nodes: int | None = field(default=None, metadata=_COUNT)
    num_graphs: int = field(default=0, metadata=_COUNT)
    kernel_digest: str | None = None
    topology_digest: str | None = None
    num_warmups: int = field(default=0, metadata=_COUNT)
    error: str | None = None
    fix: str | None = None
    verified_error: float | None = None


@frozen(kw_only=True)
class OutputShape:
    """Type and shape of a buffer for one tensor that the forward returns, long enough for every entry."""

    dtype: str
    shape: tuple[int, ...] = field(metadata=_COUNT)


@frozen(kw_only=True)
class CaptureRecordV1:
    """One capture of a plan's family on one rank; sizes in bytes, ``created`` in seconds since 1970.

    ``plan`` is the plan's ``stable_digest``. ``seconds`` is the whole run, ``peak_bytes`` the most that
    the device had allocated during it, ``pool_bytes`` what the graph pool holds, ``static_bytes`` the
    buffers that graphs read and write. ``device_bytes_before`` and ``device_bytes_after`` are the
    device's used memory around the run. ``outputs`` are the buffers of the forward's results.
    ``versions`` are those of the software that captured.
    """

    plan: str
    family: str
    rank: int = field(default=0, metadata=_COUNT)
    environment: EnvironmentFingerprint
    model: ModelFingerprint
    entries: tuple[EntryCapture, ...] = ()
    outputs: tuple[OutputShape, ...] = ()
    seconds: float = 0.0
    peak_bytes: int = 0
    pool_bytes: int = 0
    static_bytes: int = 0
    device_bytes_before: int = 0
    device_bytes_after: int = 0
    versions: Mapping[str, str] = field(factory=dict)
    model_name: str = ""
    created: float = 0.0

    @property
    def key(self) -> Key:
        """By plan, fingerprints, family and rank."""
        return capture_key(self.plan, self.environment.digest, self.model.digest, self.family, self.rank)

    @property
    def labels(self) -> Labels:
        """By model and GPU."""
        return Labels(
            plan=self.plan.removeprefix("sha256:"),
            model=self.model_name,
            gpu=self.environment.gpu,
            engine=f"torch {self.environment.torch}",
            family=self.family,
            rank=self.rank,
        )

    @property
    def blob(self) -> None:
        """Files that belong to a capture are artifacts of their own."""

    def as_json(self) -> Json:
        """The record as the table has it."""
        return plain(self)

    @classmethod
    def from_json(cls, data: Json) -> CaptureRecordV1:
        """The record in ``data``.

        Raises:
            CacheError: it is none.
        """
        record = record_of(cls, data)
        if len({row.entry for row in record.entries}) != len(record.entries):
            raise CacheError("a capture has an entry twice", fault=Fault.ALTERED)
        return record

    def mismatches(
        self, environment: EnvironmentFingerprint, model: ModelFingerprint
    ) -> tuple[Mismatch, ...]:
        """What differs between the circumstances of this capture and the current ones."""
        return (*mismatches(self.environment, environment), *mismatches(self.model, model))


@frozen
class CaptureLookup:
    """What a cache knows of a capture under the current circumstances.

    ``record`` is the one to use, if there is one. Otherwise ``mismatches`` says what differs from the
    nearest one that there is, and is empty where there is none at all.
    """

    record: CaptureRecordV1 | None = None
    mismatches: tuple[Mismatch, ...] = ()

    @property
    def reason(self) -> str:
        """Why there is no record to use, on one line."""
        if self.record is not None:
            return ""
        if not self.mismatches:
            return "never captured"
        return "; ".join(map(str, self.mismatches))
