"""Which class the records of a table have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cache.captures import CaptureRecordV1
from cache.errors import CacheError, Fault
from cache.keys import Key
from cache.records import ArtifactRecord, PlanRecord, Record, TrafficRecord
from cache.tables import Kind
from planner.documents.deployment import Json

CLASSES: Mapping[Kind, Any] = {
    Kind.PLAN: PlanRecord,
    Kind.CAPTURE: CaptureRecordV1,
    Kind.TRAFFIC: TrafficRecord,
    Kind.ARTIFACT: ArtifactRecord,
}


def record_under(key: Key, data: Json) -> Record:
    """The record in ``data``, which stands under ``key``.

    Raises:
        CacheError: it is none, or another's.
    """
    record: Record = CLASSES[key.kind].from_json(data)
    if record.key != key:
        raise CacheError("a record has another's key", fault=Fault.ALTERED)
    return record
