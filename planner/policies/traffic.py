"""The traffic policy: the capture sizes that cost a known traffic the least.

They are the exact optimum for the histogram of a deployment, smoothed so that it holds on other days.
How many there are follows from the limits of the deployment; the widest batch of every query length is
always among them, so that nothing that a server may form goes without its graph.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property

from attrs import frozen

from planner.describe import counted
from planner.documents.deployment import CaptureSection
from planner.documents.traffic import FROM_CACHE
from planner.errors import PlanError
from planner.policies.beyond import traffic_beyond
from planner.policies.budgets import Passed, passed
from planner.policies.closure import closed
from planner.policies.expected import Expected, checked_times
from planner.policies.optimum import Optima
from planner.policies.request import Choice, Outcome, PolicyRequest
from planner.policies.smoothing import Smoothing, cross_validated
from planner.policies.tradeoff import Chosen, decisions_of
from planner.rules.sizes import MAX_FIELD, SIZES_FIELD
from planner.traffic.histogram import Histogram

TRAFFIC_FIELD = "capture.traffic"


DEFAULT_PADDING = 0.05
"""The padding aimed at where a deployment sets no limit; engines pad half as much again and more."""

MOST_SIZES = 256
"""Up to how many sizes a padding target or a budget is filled."""

TESTED_SIZES = 24
"""With how many sizes smoothing is tested where their number is not given."""

CURVE_SIZES = 64
"""How far the trade-off curve goes beyond the sizes that are chosen."""


def for_traffic(request: PolicyRequest) -> Choice:
    """The sizes for the traffic of ``request``'s deployment.

    Raises:
        PlanError: there is no traffic, or a limit cannot be kept.
    """
    capture = request.deployment.capture
    histogram = histogram_of_deployment(capture)
    maximum = request.maximum(_largest_mixed(request, histogram))
    if not maximum:
        return Choice(request.outcome(()), ())
    expected = Expected(
        request.needs, maximum, checked_times(capture.step_times), has_mixed=request.has_mixed
    )
    fitting = _Fitting(request, expected, histogram)
    number, because = fitting.number()
    chosen = Chosen(
        number=number,
        because=because,
        outcome=fitting.outcome(number),
        smoothing=fitting.smoothing,
        expected=expected,
        histogram=histogram,
    )
    others = range(fitting.optima.fewest, min(fitting.optima.most, max(CURVE_SIZES, number)) + 1)
    return Choice(
        chosen.outcome,
        tuple(decisions_of(request, chosen, others, fitting.outcome)),
        tuple(traffic_beyond(histogram, request.needs, maximum if request.has_mixed else 0)),
    )


def histogram_of_deployment(capture: CaptureSection) -> Histogram:
    """The traffic that a deployment is planned for.

    Raises:
        PlanError: it gives none, or only the digest of it.
    """
    histogram = capture.histogram
    if histogram is None:
        if capture.traffic is None:
            problem = (
                "the policy is traffic, but no traffic is given; name the file of a histogram or a trace"
            )
        elif capture.traffic == FROM_CACHE:
            problem = "the counts of a cache are asked for, but no cache is given; name a histogram's file"
        else:
            problem = (
                f"{capture.traffic} was not read: a plan keeps the SHA-256 of its traffic alone; load the "
                "deployment from its own file, or give compile_plan the histogram"
            )
        raise PlanError(problem, fields=(TRAFFIC_FIELD,))
    if not (histogram.decode_steps() or histogram.token_steps()):
        raise PlanError("no batch was counted; give traffic that has some", fields=(TRAFFIC_FIELD,))
    return histogram


def _largest_mixed(request: PolicyRequest, histogram: Histogram) -> int:
    """The largest mixed batch that was counted, but no more than the engine captures; 0 without any."""
    if not request.has_mixed:
        return 0
    return min(max(histogram.token_steps(), default=0), request.engine_sizes.maximum)


@frozen(slots=False)
class _Fitting:
    """The search for the number of sizes."""

    request: PolicyRequest
    expected: Expected
    histogram: Histogram

    @property
    def capture(self) -> CaptureSection:
        return self.request.deployment.capture

    @cached_property
    def most(self) -> int:
        """The most sizes that are considered."""
        if not self.capture.limits:
            return max(len(self.request.engine_sizes.sizes), len(self.expected.required))
        return self.capture.max_graphs or MOST_SIZES

    @cached_property
    def smoothing(self) -> Smoothing:
        """How much the counts are spread."""
        number = max(min(self.capture.max_graphs or TESTED_SIZES, self.most), len(self.expected.required))

        def fit(span: Histogram, width: int) -> tuple[int, ...]:
            among = self.expected.tested_candidates
            optima = self.expected.optima(span, width, number, candidates=among)
            return optima.sizes(optima.most) if optima else ()

        return cross_validated(self.histogram, fit, self.expected.padding)

    @cached_property
    def optima(self) -> Optima:
        """The best sizes for every number."""
        fewest = len(self.expected.required)
        most = max(self.most, CURVE_SIZES, fewest)
        optima = self.expected.optima(self.histogram, self.smoothing.width, most)
        if optima is None or fewest > self.most:
            raise PlanError(
                f"the limit is {counted(self.most, 'size')}, but {fewest} are always captured: the widest "
                "batch of each query length, and the maximum; raise it",
                fields=("capture.max_graphs", MAX_FIELD),
            )
        return optima

    def sizes(self, number: int) -> tuple[int, ...]:
        """The ``number`` best sizes, and what several query lengths need beside one another."""
        return tuple(sorted(closed(self.optima.sizes(number), self.request.needs)))

    def outcome(self, number: int) -> Outcome:
        """What is captured with them."""
        return self.request.outcome(self.sizes(number))

    def number(self) -> tuple[int, str]:
        """How many sizes there are to be, and why.

        Raises:
            PlanError: a limit cannot be kept.
        """
        numbers = range(self.optima.fewest, min(self.most, self.optima.most) + 1)
        within = bisect_left(numbers, True, key=lambda number: self._passed(number) is not None)
        limit = self._passed(numbers[within]) if within < len(numbers) else None
        if not within and limit is not None:
            raise PlanError(
                f"{limit.value} is the limit, but the fewest sizes need {limit.needed}; raise it",
                fields=(f"capture.{limit.name}",),
            )
        numbers = numbers[:within]
        target = self.capture.max_padding if self.capture.limits else DEFAULT_PADDING
        if target is None:
            return numbers[-1], self._why_no_more(limit)
        place = bisect_left(numbers, True, key=lambda number: self._padding(number) <= target)
        if place < len(numbers):
            return numbers[place], f"the fewest that pad no more than {target:.1%}"
        if self.capture.max_padding is not None:
            raise PlanError(
                f"{target:.1%} is the target, but {self._padding(numbers[-1]):.1%} are left with "
                f"{counted(numbers[-1], 'size')}, {self._why_no_more(limit)}; raise it, or the other limits",
                fields=("capture.max_padding", SIZES_FIELD),
            )
        return numbers[-1], "as many as the engine captures"

    def _passed(self, number: int) -> Passed | None:
        sizes, capture = self.sizes(number), self.capture
        has_budget = capture.memory_budget is not None or capture.startup_budget is not None
        families = self.request.outcome(sizes).families if has_budget else ()
        return passed(self.request.deployment, sizes, families)

    def _padding(self, number: int) -> float:
        return self.expected.padding(self.sizes(number), self.histogram)

    def _why_no_more(self, limit: Passed | None) -> str:
        if limit is not None:
            return f"as many as {limit.name} {limit.value} allows"
        if self.capture.max_graphs is not None and self.most <= self.optima.most:
            return f"as many as max_graphs {self.capture.max_graphs} allows"
        return "more would serve nothing better"
