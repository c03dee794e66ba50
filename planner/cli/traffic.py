"""``planner traffic``: a trace in, the histogram of a server's batches out, and a summary beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click
from attrs import evolve
from click.core import ParameterSource

from planner.cli.blocks import Block, Row, heading
from planner.cli.files import reading, shown_name, write_output
from planner.cli.options import count, examples, number
from planner.cli.render import show
from planner.describe import counted
from planner.traffic.batching import Batching
from planner.traffic.histogram import Histogram, dump_histogram
from planner.traffic.load import Traffic, read_traffic
from planner.traffic.numbers import NANOSECONDS
from planner.traffic.trace import Trace

EARLIER = rb"(?m)^(block,)?num_reqs,num_tokens,count\r?$"
"""What the file of an earlier histogram has in it."""

DEFAULTS = Batching()

PERCENTILES = (50, 90, 99)

OF_REPLAY = ("max_num_seqs", "rate", "step_time", "prefill_rate", "chunk", "tokens_per_step")
"""Options that say how requests are replayed, and nothing where steps are counted already."""


@click.command(
    "traffic",
    epilog=examples(
        "planner traffic requests.csv -o histogram.csv",
        "planner traffic requests.jsonl --rate 0.25 --max-num-seqs 128 > histogram.csv",
        "planner traffic server.log     # the tables of vllm serve --cudagraph-metrics",
        "planner cache show traffic/3ffe8162 --format json | planner traffic - -o histogram.csv",
    ),
)
@click.argument("source", metavar="TRACE")
@click.option(
    "-o", "--output", metavar="FILE", help="Write the histogram to this file instead of standard output."
)
@click.option(
    "--rate",
    metavar="X",
    type=number(1e-6, 1e6),
    default="1",
    show_default=True,
    help="Speed of arrivals: 0.25 serves a quarter of the trace's load.",
)
@click.option(
    "--max-num-seqs",
    metavar="N",
    type=count(1),
    default=str(DEFAULTS.max_num_seqs),
    show_default=True,
    help="Requests that run at once.",
)
@click.option(
    "--step-time",
    metavar="X",
    type=number(0.001, 1e6),
    default=f"{DEFAULTS.step_time:g}",
    show_default=True,
    help="Milliseconds of a step without prefill.",
)
@click.option(
    "--prefill-rate",
    metavar="N",
    type=count(1),
    default=str(DEFAULTS.prefill_rate),
    show_default=True,
    help="Tokens of prefill a second.",
)
@click.option(
    "--chunk",
    metavar="N",
    type=count(1),
    default=str(DEFAULTS.chunk),
    show_default=True,
    help="Tokens of a step at most, as max_num_batched_tokens.",
)
@click.option(
    "--query-len",
    metavar="N",
    type=count(1),
    default=str(DEFAULTS.query_len),
    show_default=True,
    help="Tokens of a decode request: 1, and those that are speculated.",
)
@click.option(
    "--tokens-per-step",
    metavar="X",
    type=number(1, 1e6),
    default=f"{DEFAULTS.tokens_per_step:g}",
    show_default=True,
    help="Tokens that a decode request gains a step, on average, with speculation.",
)
@click.option("--about", metavar="TEXT", help="What the histogram says of its source, such as its licence.")
@click.option("--skip-malformed", is_flag=True, help="Leave out rows that cannot be read, and count them.")
@click.option("-q", "--quiet", is_flag=True, help="No summary on standard error, only errors.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    source: str,
    output: str | None,
    about: str | None,
    skip_malformed: bool,
    quiet: bool,
    **server: float,
) -> None:
    """Count the batches that serving TRACE would bring, for capture.policy traffic.

    TRACE is a file, or - for standard input: requests as CSV of Azure, BurstGPT or vidur, or as Mooncake's
    JSON lines, which are replayed through continuous batching; or counts already: a CSV with num_tokens
    and count (num_reqs for decode batches), the tables in a log of vllm serve --cudagraph-metrics, or
    the usage counts of a cache. Which of them it is shows in what it holds.

    In the replay, requests are served in the order of their arrival, and a step carries one decode of
    every running request and prefill up to the chunk. It lasts the step time, and its prefill at the
    prefill rate.

    A step is counted by its running decodes alone. Prefill in the same step is left aside, so that mixed
    steps appear as decode, though vLLM runs those with another graph; steps without decode are left out.

    Counts cannot be replayed: the options of the server are refused for them, but for --query-len.
    """
    batching = Batching(**server)  # type: ignore[arg-type]
    with reading(source, lambda name: open(name, "rb")) as stream:
        traffic = read_traffic(stream, shown_name(source), batching, skip_malformed=skip_malformed)
    if isinstance(traffic.content, Trace):
        batching.checked()
    else:
        _refuse_replay(ctx, traffic)
    histogram = traffic.as_histogram(batching)
    if about is not None:
        histogram = evolve(histogram, source="\n".join(filter(None, (histogram.source, about))))
    write_output(output, dump_histogram(histogram), replaces=EARLIER)
    if not quiet:
        show(tuple(_summary(traffic, histogram, batching)), err=True)


def _refuse_replay(ctx: click.Context, traffic: Traffic) -> None:
    """Refuses options that would do nothing to counts."""
    given = [name for name in OF_REPLAY if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT]
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise click.UsageError(
            f"{options}: {traffic.name} ({traffic.kind}) holds steps that are counted already, which "
            "cannot be replayed; give the trace of the requests, or leave these options away"
        )


def _summary(traffic: Traffic, histogram: Histogram, batching: Batching) -> Iterator[Block]:
    yield heading(f"{traffic.name}: {_title(traffic)}")
    rows = [
        *_trace_rows(traffic, batching),
        *_decode_rows(histogram.decode_steps(), batching),
        *_other_rows(histogram.token_steps()),
    ]
    if traffic.skipped:
        rows.append(
            Row((f"{counted(traffic.skipped, 'malformed row')} left out", traffic.first_skipped), "warning")
        )
    yield Block(tuple(rows))


def _title(traffic: Traffic) -> str:
    if not isinstance(traffic.content, Trace):
        return traffic.kind
    hours, seconds = divmod(traffic.content.span // NANOSECONDS, 3600)
    time = f"{hours}:{seconds // 60:02}:{seconds % 60:02}"
    return f"{traffic.kind}, {counted(len(traffic.content), 'request')} in {time}"


def _trace_rows(traffic: Traffic, batching: Batching) -> Iterator[Row]:
    if not isinstance(traffic.content, Trace):
        return
    yield Row(("replayed at", str(batching)))
    if traffic.content.without_output:
        yield Row(("without output", f"{counted(traffic.content.without_output, 'request')} left out"))


def _decode_rows(steps: Mapping[int, int], batching: Batching) -> Iterator[Row]:
    if not steps:
        return
    total = sum(steps.values())
    requests = sum(number * count for number, count in steps.items())
    yield Row(("decode steps", f"{total}, of {requests / total:.1f} requests on average"))
    shares = ", ".join(f"p{percent} {_percentile(steps, percent)}" for percent in PERCENTILES)
    yield Row(("requests in a step", f"{shares}, max {max(steps)}"))
    full = steps.get(batching.max_num_seqs, 0)
    if full:
        yield Row(("at max_num_seqs", f"{full / total:.1%} of the steps; other requests may wait"))
    yield Row(("padding of vLLM's default", _default_padding(steps, batching)))


def _other_rows(steps: Mapping[int, int]) -> Iterator[Row]:
    if steps:
        largest = max(steps)
        yield Row(("other steps", f"{sum(steps.values())}, of up to {counted(largest, 'token')}"))


def _percentile(steps: Mapping[int, int], percent: int) -> int:
    """The smallest batch that so many percent of the steps do not pass."""
    left = sum(steps.values()) * percent
    for size in sorted(steps):
        left -= 100 * steps[size]
        if left <= 0:
            return size
    return max(steps)


def _default_padding(steps: Mapping[int, int], batching: Batching) -> str:
    from planner.traffic.engine_sizes import vllm_default_plan
    from planner.traffic.padding import decode_sizes, padding_of

    most = max(batching.max_num_seqs, *steps)
    sizes = decode_sizes(vllm_default_plan(most, batching.chunk, batching.query_len))
    padding = padding_of(sizes, steps)
    text = f"{padding.share:.1%}, in {len(padding.used)} of its {counted(len(sizes), 'decode graph')}"
    return f"{text}; {padding.uncovered_share:.1%} of the steps have none" if padding.uncovered else text
