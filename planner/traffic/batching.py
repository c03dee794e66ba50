"""Continuous batching: what a server's steps looked like, had it served a trace.

Requests are served in the order of their arrival, at most ``max_num_seqs`` at once. Each step carries
one decode of every request that has its first token, and prefill up to ``chunk`` tokens in all. It
lasts the step time and the time of its prefill; the step with the last tokens of a prompt yields that
request's first token. A step's sample is its number of decodes; steps without any tell nothing. Prefill
beside them is left aside, so that a mixed step counts as decode though vLLM runs it with another graph.

All times are whole nanoseconds, so that every machine counts the same steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from attrs import Factory, define, frozen

from planner.describe import counted
from planner.errors import GraphplanError
from planner.traffic.histogram import Histogram, HistogramRow, histogram_of
from planner.traffic.numbers import NANOSECONDS
from planner.traffic.trace import Trace

BLOCKS = 8
"""Time spans that a histogram tells apart, for cross-validation."""

MAX_RUNS = 10_000_000
"""Runs of equal steps that are counted before giving up, after a minute: those of millions of requests."""


class ReplayError(GraphplanError):
    """A trace that takes too long to replay."""


class BatchingError(GraphplanError):
    """A server that cannot be."""


@frozen(kw_only=True)
class Batching:
    """The server of the model.

    ``step_time`` is in milliseconds, ``prefill_rate`` in tokens a second, ``chunk`` the most tokens of a
    step. ``rate`` speeds up arrivals: at 0.25 the times between them are four times as long. A decode
    of ``query_len`` tokens gains ``tokens_per_step``, more than one with speculative decoding only.
    """

    max_num_seqs: int = 256
    step_time: float = 25.0
    prefill_rate: int = 20_000
    chunk: int = 8_192
    rate: float = 1.0
    query_len: int = 1
    tokens_per_step: float = 1.0

    def __str__(self) -> str:
        speculation = ""
        if self.query_len != 1 or self.tokens_per_step != 1:
            speculation = f", decode of {self.query_len} tokens that gains {self.tokens_per_step:g}"
        return (
            f"rate {self.rate:g}, step time {self.step_time:g} ms, prefill {self.prefill_rate} tokens/s, "
            f"chunk {self.chunk}, max_num_seqs {self.max_num_seqs}{speculation}"
        )

    def checked(self) -> Batching:
        """This server, once it is known that one can be so.

        Source: vLLM 0.33, the checks of its scheduler config and of its speculative slots.

        Raises:
            BatchingError: decodes gain more tokens than they have, or a step has no room for a token of
                every request or for one decode.
        """
        if self.tokens_per_step > self.query_len:
            raise BatchingError(
                f"a decode of {counted(self.query_len, 'token')} gains at most as many a step, not "
                f"{self.tokens_per_step:g}; raise the query length or lower the tokens per step"
            )
        if self.max_num_seqs > self.chunk:
            raise BatchingError(
                f"{counted(self.max_num_seqs, 'request')} (max_num_seqs) do not fit into a step of "
                f"{counted(self.chunk, 'token')} (chunk), which vLLM refuses; raise the chunk or lower "
                "max_num_seqs"
            )
        if self.query_len > self.chunk:
            raise BatchingError(
                f"a decode of {self.query_len} tokens does not fit into a step of "
                f"{counted(self.chunk, 'token')} (chunk); raise the chunk or lower the query length"
            )
        return self

    def decodes(self, output: int) -> int:
        """The decode steps of a request that generates ``output`` tokens; its prefill yields the first."""
        return -int(-(output - 1) // self.tokens_per_step)

    def scaled(self, nanoseconds: int) -> int:
        """When something happens at this rate."""
        return nanoseconds if self.rate == 1 else round(nanoseconds / self.rate)


@frozen
class Run:
    """``steps`` equal steps in a row, of ``decodes`` each.

    ``start`` is when the first begins and ``duration`` how long each lasts, in nanoseconds.
    """

    start: int
    duration: int
    steps: int
    decodes: int


def replay(trace: Trace, batching: Batching) -> Iterator[Run]:
    """The steps that serve ``trace``, in order, those without a decode left out.

    Raises:
        ReplayError: there are too many.
    """
    server = _Server(trace, batching)
    for _ in range(MAX_RUNS):
        if server.is_idle:
            if server.admitted == len(trace):
                return
            server.wait()
        server.admit()
        decodes, start = server.decodes, server.now
        duration, steps = server.prefill() if server.can_prefill else server.only_decode()
        server.pass_time(duration, steps)
        if decodes:
            yield Run(start, duration, steps, decodes)
    raise ReplayError(
        f"the batch changes more than {MAX_RUNS} times, after which {server.head} of {len(trace)} requests "
        "have their first token; give a part of the trace"
    )


@define(eq=False)
class _Server:
    """A server at the beginning of a step.

    Requests up to ``head`` have their first token, those up to ``admitted`` run, in order of arrival;
    ``left`` is what the prompt of the next still lacks. ``ends`` are the steps ahead of which the
    ``decodes`` requests end.
    """

    trace: Trace
    batching: Batching
    now: int = 0
    step: int = 0
    decodes: int = 0
    head: int = 0
    admitted: int = 0
    left: int = 0
    ends: list[int] = Factory(list)
    following: int = 0
    step_time: int = 0

    def __attrs_post_init__(self) -> None:
        self.step_time = max(1, round(self.batching.step_time * 1_000_000))
        if self.trace.prompts:
            self.left = self.trace.prompts[0]

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs."""
        return not self.decodes and self.head == self.admitted

    @property
    def can_prefill(self) -> bool:
        """Whether a prompt waits and the step has room for some of it."""
        return self.head < self.admitted and self._room > 0

    @property
    def _room(self) -> int:
        return self.batching.chunk - self.decodes * self.batching.query_len

    @property
    def _has_place(self) -> bool:
        return self.decodes + self.admitted - self.head < self.batching.max_num_seqs

    def wait(self) -> None:
        """Lets time pass until the next request arrives."""
        self.now = max(self.now, self.following)

    def admit(self) -> None:
        """Takes the requests that have arrived, as far as there is a place for them."""
        arrivals = self.trace.arrivals
        while self.admitted < len(arrivals) and self.following <= self.now and self._has_place:
            self.admitted += 1
            if self.admitted < len(arrivals):
                self.following = self.batching.scaled(arrivals[self.admitted])

    def prefill(self) -> tuple[int, int]:
        """How long a step with prefill lasts, and how many are the same: one, if it yields a first token.

        Those that arrive meanwhile wait for the prompt ahead of them, whenever they are admitted.
        """
        room = left = self._room
        whole = (self.left - 1) // room
        if whole > 0:
            steps = min(whole, self.ends[0] - self.step) if self.ends else whole
            self.left -= steps * room
            return self._lasting(room), steps
        while left > 0 and self.head < self.admitted:
            taken = min(self.left, left)
            left -= taken
            self.left -= taken
            if not self.left:
                self._begin_decode()
        return self._lasting(room - left), 1

    def _lasting(self, prefilled: int) -> int:
        return self.step_time + prefilled * NANOSECONDS // self.batching.prefill_rate

    def _begin_decode(self) -> None:
        more = self.batching.decodes(self.trace.outputs[self.head])
        self.head += 1
        if self.head < len(self.trace):
            self.left = self.trace.prompts[self.head]
        if more:
            heappush(self.ends, self.step + 1 + more)
            self.decodes += 1

    def only_decode(self) -> tuple[int, int]:
        """How long a step without prefill lasts, and how many are the same until a request ends or comes."""
        steps = self.ends[0] - self.step
        if self.head == self.admitted < len(self.trace) and self._has_place:
            steps = min(steps, -((self.now - self.following) // self.step_time))
        return self.step_time, steps

    def pass_time(self, duration: int, steps: int) -> None:
        """Moves to the step after ``steps`` of ``duration``; requests that are done have left."""
        self.now += duration * steps
        self.step += steps
        while self.ends and self.ends[0] == self.step:
            heappop(self.ends)
            self.decodes -= 1


def replayed(trace: Trace, batching: Batching, *, blocks: int = BLOCKS, source: str = "") -> Histogram:
    """The histogram of the steps that serve ``trace``.

    It has ``blocks`` spans of the time from the first arrival to the last; what is left to be served
    then counts to the last.

    Raises:
        ReplayError: there are too many steps.
    """
    span = batching.scaled(trace.span)
    counts: list[dict[int, int]] = [{} for _ in range(blocks)]
    for run in replay(trace, batching):
        for block, steps in _by_block(run, span, blocks):
            counts[block][run.decodes] = counts[block].get(run.decodes, 0) + steps
    length = batching.query_len
    rows = (
        [HistogramRow(num_reqs=reqs, num_tokens=reqs * length, count=count) for reqs, count in block.items()]
        for block in counts
    )
    return histogram_of(list(rows), source=source)


def _by_block(run: Run, span: int, blocks: int) -> Iterator[tuple[int, int]]:
    """How many steps of ``run`` begin in each time span."""
    start, left = run.start, run.steps
    while left:
        block = min(start * blocks // span, blocks - 1) if span else 0
        steps = left
        if span and block < blocks - 1:
            border = -(-(block + 1) * span // blocks)
            steps = min(left, -((start - border) // run.duration))
        yield block, steps
        start += run.duration * steps
        left -= steps
