"""A trace: when requests arrived, and how many tokens each brought and got."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from operator import le

from attrs import frozen

from planner.traffic.lines import Lines

MAX_REQUESTS = 5_000_000
"""Some hundred megabytes of memory; a week of a large service has more than that, a day has not."""


@frozen
class Request:
    """One request: its arrival in nanoseconds, the tokens of its prompt and those that it generates."""

    arrival: int
    prompt: int
    output: int


@frozen(eq=False)
class Trace:
    """Requests in order of their arrival, in nanoseconds since the first of them.

    ``without_output`` is how many more there were that generated nothing: they failed, or were aborted.
    """

    arrivals: Sequence[int]
    prompts: Sequence[int]
    outputs: Sequence[int]
    without_output: int = 0

    def __len__(self) -> int:
        return len(self.arrivals)

    @property
    def span(self) -> int:
        """Nanoseconds from the first arrival to the last."""
        return self.arrivals[-1] if self.arrivals else 0


def trace_of(requests: Iterable[Request], lines: Lines) -> Trace:
    """The trace of ``requests``, in whatever order they are; ``lines`` are those that they are read from.

    Raises:
        DocumentError: there are none, or too many.
    """
    arrivals, prompts, outputs = array("q"), array("q"), array("q")
    without_output = 0
    for request in requests:
        if not request.output:
            without_output += 1
            continue
        if len(arrivals) == MAX_REQUESTS:
            raise lines.error(f"more than {MAX_REQUESTS} requests; give a part of the trace")
        arrivals.append(request.arrival)
        prompts.append(request.prompt)
        outputs.append(request.output)
    if not arrivals:
        raise lines.error_of_file("has no request that generated a token")
    return _in_order(arrivals, prompts, outputs, without_output)


def _in_order(arrivals: array[int], prompts: array[int], outputs: array[int], without_output: int) -> Trace:
    if not all(map(le, arrivals, arrivals[1:])):
        order = sorted(range(len(arrivals)), key=arrivals.__getitem__)
        arrivals, prompts, outputs = (
            array("q", map(values.__getitem__, order)) for values in (arrivals, prompts, outputs)
        )
    first = arrivals[0]
    since = array("q", (arrival - first for arrival in arrivals))
    return Trace(since, prompts, outputs, without_output)
