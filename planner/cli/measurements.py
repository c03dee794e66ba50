"""What a cache knows of captures, in the terms of an estimate; and estimates as a person reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve

from planner.cli.blocks import Block, Row
from planner.describe import counted
from planner.documents.deployment import Deployment
from planner.documents.estimates import DeviceFit, Estimate, Quantity
from planner.documents.load import load_plan
from planner.documents.plan import Plan
from planner.errors import DocumentError
from planner.estimate import Measurement, estimate

if TYPE_CHECKING:
    from cache.captures import CaptureRecordV1
    from cache.store import PlanCache

MOST_RECORDS = 200
"""Captures that an estimate looks at, the last used first."""


def estimate_with_cache(plan: Plan, directory: str | None, *, tokens: int | None = None) -> Estimate:
    """The estimate of ``plan`` by what the cache in ``directory`` has of it, or of similar plans.

    Raises:
        CacheError: the cache cannot be read.
    """
    measurements = () if directory is None else measured_in(plan, directory)
    return estimate(plan, measurements=measurements, gathered_tokens=tokens)


def measured_in(plan: Plan, directory: str) -> tuple[Measurement, ...]:
    """The captures in a cache that the graphs of ``plan`` can be estimated by.

    Raises:
        CacheError: the cache cannot be read.
    """
    from cache.captures import CaptureRecordV1
    from cache.errors import CacheError
    from cache.keys import stable_digest
    from cache.store import PlanCache
    from cache.tables import Kind

    own = stable_digest(plan)
    deployments: dict[str, Deployment | None] = {own: plan.deployment}
    found = []
    with PlanCache(Path(directory), create=False) as cache:
        for summary in cache.find(kind=Kind.CAPTURE)[:MOST_RECORDS]:
            # A record that cannot be read is the cache's matter: planner cache check tells of it.
            with suppress(CacheError):
                record = cache.look(summary.key)
                if isinstance(record, CaptureRecordV1) and record.rank == 0:
                    if record.plan not in deployments:
                        deployments[record.plan] = _deployment_of(cache, record.plan)
                    found.append(_measurement(record, deployments[record.plan], is_own=record.plan == own))
    return tuple(found)


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


def _deployment_of(cache: PlanCache, digest: str) -> Deployment | None:
    """The deployment of a plan that the cache has."""
    from cache.errors import CacheError
    from cache.records import PlanRecord
    from cache.tables import Kind

    for summary in cache.find(kind=Kind.PLAN, digest_prefix=digest):
        with suppress(CacheError, DocumentError):
            record = cache.look(summary.key)
            if isinstance(record, PlanRecord):
                return load_plan({**record.document, "graphs": {}}).deployment
    return None


def with_measured_estimates(plan: Plan, directory: str) -> Plan:
    """``plan`` with estimates by what a cache has; unchanged where it has nothing, or cannot be read."""
    from cache.errors import CacheError

    with suppress(CacheError):
        if measurements := measured_in(plan, directory):
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
