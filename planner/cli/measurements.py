"""What a cache knows of captures, in the terms of an estimate; and estimates as a person reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve, field, frozen

from planner.cli.blocks import Block, Row
from planner.describe import counted
from planner.documents.deployment import Deployment
from planner.documents.estimates import DeviceFit, Estimate, Quantity
from planner.documents.load import load_plan
from planner.documents.plan import DRAFT, TARGET, Plan
from planner.errors import DocumentError
from planner.estimate import Measurement, estimate
from planner.estimate.shape import ELEMENT_BYTES, family_shape

if TYPE_CHECKING:
    from cache.captures import CaptureRecordV1
    from cache.store import PlanCache

MOST_RECORDS = 200
"""Captures that an estimate looks at, the last used first."""


@frozen
class Measured:
    """What a cache has to estimate a plan by, and of how many captures that is not so, by the reason."""

    captures: tuple[Measurement, ...] = ()
    left_out: Mapping[str, int] = field(factory=dict)

    def notes(self) -> Iterator[str]:
        """A remark on each kind of captures that tell nothing of the plan's own server."""
        for reason, number in self.left_out.items():
            yield f"{counted(number, 'capture')} in the cache left out: {reason}"


def measured_in(plan: Plan, directory: str) -> Measured:
    """The captures in a cache that the graphs of ``plan`` can be estimated by.

    Those of a CPU, and those of another model than their own deployment's, such as a shrunken one, are not.

    Raises:
        CacheError: the cache cannot be read.
    """
    from cache.captures import CaptureRecordV1
    from cache.errors import CacheError
    from cache.keys import stable_digest
    from cache.store import PlanCache
    from cache.tables import Kind

    own = stable_digest(plan)
    plans: dict[str, Plan | None] = {own: plan}
    found: list[Measurement] = []
    left_out: Counter[str] = Counter()
    with PlanCache(Path(directory), create=False) as cache:
        for summary in cache.find(kind=Kind.CAPTURE)[:MOST_RECORDS]:
            # A record that cannot be read is the cache's matter: planner cache check tells of it.
            with suppress(CacheError):
                record = cache.look(summary.key)
                if not isinstance(record, CaptureRecordV1) or record.rank != 0:
                    continue
                if record.plan not in plans:
                    plans[record.plan] = _plan_in(cache, record.plan)
                captured = plans[record.plan]
                if reason := _foreign(record, captured or plan):
                    left_out[reason] += 1
                else:
                    deployment = None if captured is None else captured.deployment
                    found.append(_measurement(record, deployment, is_own=record.plan == own))
    return Measured(tuple(found), left_out)


def _foreign(record: CaptureRecordV1, plan: Plan) -> str | None:
    """Why a capture tells nothing of a server of ``plan``, ``None`` where it does."""
    from cache.fingerprint import NONE

    if record.environment.gpu == NONE:
        return "they ran on a CPU"
    model = plan.deployment.model.config
    if model is None:
        return "the plan names no model that theirs could be compared with"
    if record.model.config not in (model.sha256, _stand_in_digest(plan)):
        return "they are of another model than the deployment's, such as a shrunken one"
    width = ELEMENT_BYTES.get(record.model.dtype)
    if width not in (None, family_shape(plan.deployment, TARGET).element_bytes):
        return f"their model computes in {record.model.dtype}, the deployment's does not"
    return None


def _stand_in_digest(plan: Plan) -> str | None:
    from executor.errors import ModelError
    from executor.models.stand_in import full_digest

    try:
        return full_digest(plan)
    except ModelError:
        return None


def _measurement(record: CaptureRecordV1, deployment: Deployment | None, *, is_own: bool) -> Measurement:
    return Measurement(
        family=record.family,
        entries=tuple(row.entry for row in record.entries if row.error is None),
        seconds=record.seconds,
        num_bytes=sum(row.num_bytes for row in record.entries),
        pool_bytes=record.pool_bytes,
        static_bytes=record.static_bytes,
        gpu=record.environment.gpu,
        torch=record.environment.torch,
        is_of_plan=is_own,
        deployment=deployment,
        created=record.created,
    )


def _plan_in(cache: PlanCache, digest: str) -> Plan | None:
    """A plan that the cache has, without its graphs but one of its drafter, by which that is known."""
    from cache.errors import CacheError
    from cache.records import PlanRecord
    from cache.tables import Kind

    for summary in cache.find(kind=Kind.PLAN, digest_prefix=digest):
        with suppress(CacheError, DocumentError):
            record = cache.look(summary.key)
            if isinstance(record, PlanRecord):
                drafts = record.document.get("graphs", {}).get(DRAFT, ())
                return load_plan({**record.document, "graphs": {DRAFT: drafts[:1]} if drafts else {}})
    return None


def with_measured_estimates(plan: Plan, directory: str) -> Plan:
    """``plan`` with estimates by what a cache has; unchanged where it has nothing, or cannot be read."""
    from cache.errors import CacheError

    with suppress(CacheError):
        if measurements := measured_in(plan, directory).captures:
            return evolve(plan, estimates=estimate(plan, measurements=measurements))
    return plan


def estimate_block(found: Estimate) -> Block:
    """An estimate as a block of a summary."""
    return Block(tuple(estimate_rows(found)), title="estimates")


def estimate_rows(found: Estimate) -> Iterator[Row]:
    """What is expected, within which range, and where the figures are from."""
    yield Row(("graphs", str(found.num_graphs)))
    yield Row(("memory", *_cells(found.memory_gib, "GiB"), found.memory_gib.source))
    yield Row(("start-up", *_cells(found.seconds, "s"), found.seconds.source))
    if found.device is not None:
        yield from _device_rows(found.device)


def _cells(quantity: Quantity, unit: str) -> tuple[str, str]:
    digits = 2 if quantity.expected < 10 else 1
    if quantity.expected < 0.1:
        digits = 3
    expected = f"{quantity.expected:.{digits}f} {unit}"
    return expected, f"{quantity.low:.{digits}f} to {quantity.high:.{digits}f}"


def _device_rows(device: DeviceFit) -> Iterator[Row]:
    yield Row(("share", f"{device.share:.1%}", f"of {device.memory_gib:g} GiB"))
    if device.weights_gib is not None:
        yield Row(("weights", f"{device.weights_gib:.2f} GiB"))
        tokens = counted(device.kv_cache_tokens or 0, "token")
        yield Row(("KV cache", f"{device.kv_cache_gib or 0:.2f} GiB", tokens))
