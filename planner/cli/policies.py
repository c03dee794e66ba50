"""Policies on the command line: which one a deployment is compiled by, and what it was chosen against."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click
from attrs import evolve, frozen

from planner.cli.blocks import Block, Row
from planner.cli.cache import cache_option
from planner.cli.files import STDIO
from planner.cli.options import count
from planner.documents.deployment import CaptureSection, Deployment
from planner.documents.load import load_plan
from planner.documents.plan import TARGET, Plan
from planner.documents.traffic import FROM_CACHE, with_traffic
from planner.errors import DocumentError
from planner.modes import CapturePolicy
from planner.traffic.histogram import Histogram, HistogramRow

CURVE = "traffic-curve"
"""The rule of the decision that has the trade-off curve, which takes a table of its own."""

F = TypeVar("F", bound=Callable[..., Any])


@frozen(kw_only=True)
class Overriding:
    """What the command line says of the policy in place of the document."""

    policy: CapturePolicy | None = None
    traffic: str | None = None
    max_graphs: int | None = None
    cache: str | None = None

    def applied(self, deployment: Deployment, source: str) -> Deployment:
        """``deployment``, which the document ``source`` gave, as the command line wants it.

        Raises:
            DocumentError: the traffic to plan for cannot be read.
        """
        capture = deployment.capture
        if self.traffic is not None:
            capture = evolve(
                capture,
                policy=CapturePolicy.TRAFFIC,
                traffic=self.traffic,
                traffic_sha256=None,
                histogram=None,
            )
        if self.policy is not None:
            capture = evolve(capture, policy=self.policy)
        if self.max_graphs is not None:
            capture = evolve(capture, max_graphs=self.max_graphs)
        deployment = evolve(deployment, capture=capture)
        if capture.policy is not CapturePolicy.TRAFFIC or capture.histogram is not None:
            return deployment
        if capture.traffic == FROM_CACHE:
            histogram = counted_by_cache(deployment, self.cache)
            return evolve(deployment, capture=evolve(capture, histogram=histogram))
        is_own = self.traffic is None and source != STDIO
        return with_traffic(deployment, Path(source).parent if is_own else Path())


def policy_options(function: F) -> F:
    """The options of ``Overriding``, which the command takes as ``overriding``."""

    @click.option(
        "--policy",
        type=click.Choice([str(policy) for policy in CapturePolicy]),
        help="Who chooses the capture sizes, whatever the document says.",
    )
    @click.option(
        "--traffic",
        metavar="FILE",
        help="The histogram or trace to choose them for; means --policy traffic.",
    )
    @click.option("--max-graphs", type=count(1), metavar="N", help="No more capture sizes than this.")
    @cache_option
    @functools.wraps(function)
    def with_overriding(
        *args: Any,
        policy: str | None,
        traffic: str | None,
        max_graphs: int | None,
        directory: str | None,
        **options: Any,
    ) -> Any:
        overriding = Overriding(
            policy=CapturePolicy(policy) if policy else None,
            traffic=traffic,
            max_graphs=max_graphs,
            cache=directory,
        )
        return function(*args, overriding=overriding, **options)

    return with_overriding  # type: ignore[return-value]


def counted_by_cache(deployment: Deployment, directory: str | None) -> Histogram:
    """What a cache counted for the plans of this deployment, whatever their policy was.

    Raises:
        DocumentError: it counted nothing.
        CacheError: the cache cannot be read.
    """
    from cache.errors import CacheError
    from cache.keys import stable_digest
    from cache.records import PlanRecord
    from cache.store import PlanCache
    from cache.tables import Kind
    from planner.traffic.histogram import histogram_of
    from planner.traffic.usage import usage_histogram

    rows: list[HistogramRow] = []
    with PlanCache(directory, create=False) as cache:
        for summary in cache.find(kind=Kind.PLAN):
            # A record that cannot be read is the cache's matter: planner cache check tells of it.
            with suppress(CacheError, DocumentError):
                record = cache.look(summary.key)
                plan = load_plan(record.document) if isinstance(record, PlanRecord) else None
                if plan is not None and _is_of(plan, deployment):
                    usage = cache.usage(stable_digest(plan), TARGET)
                    counts = [(row.entry, row.count) for row in usage.counts] if usage else []
                    rows.extend(usage_histogram(counts).rows)
    if not rows:
        raise DocumentError(
            "no cache has counted batches of this deployment's plans; serve one with a cache first, or name "
            "a histogram",
            key="capture.traffic",
        )
    return histogram_of([rows], source="counted by a cache")


def _is_of(plan: Plan, deployment: Deployment) -> bool:
    """Whether a plan is one of ``deployment``, under whatever name and policy."""
    others = (evolve(one, name=None, capture=CaptureSection()) for one in (plan.deployment, deployment))
    return next(others) == next(others)


def curve_blocks(plan: Plan) -> Iterator[Block]:
    """The trade-off between graphs and padding that a plan was chosen from."""
    chosen = len(plan.resolved[TARGET].cudagraph_capture_sizes) if TARGET in plan.resolved else 0
    for decision in plan.decisions:
        if decision.rule != CURVE or not isinstance(decision.became, list):
            continue
        rows = [Row(("sizes", "graphs", "padded", "GiB", "start-up"))]
        for point in decision.became:
            cells = (str(point["sizes"]), str(point["graphs"]), f"{point['padding']:.1%}")
            costs = (f"{point['memory_gib']:.2f}", f"{point['startup_seconds']:.1f} s")
            rows.append(Row((*cells, *costs), "good" if point["sizes"] == chosen else None))
        yield Block(
            tuple(rows), title="what other numbers of sizes would cost", numbers=frozenset({0, 1, 2, 3, 4})
        )
