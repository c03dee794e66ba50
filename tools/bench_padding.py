#!/usr/bin/env python3
"""How much decode is padded under each engine's default sizes and under each policy, held out.

Sizes are fitted to the first half of a trace by time span and scored on the second, so that they are
those that a plan made yesterday would have. TRACE is whatever `planner traffic` reads; a histogram
without time spans has no halves, and is scored on what it was fitted to. All sizes are numbers of
requests, of servers that capture for decode only.

    tools/bench_padding.py requests.csv
    tools/bench_padding.py requests.jsonl --rate 0.25 --graphs 24 --json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from planner.cli.blocks import Block, Row, heading
from planner.cli.render import plain
from planner.compile import compile_plan
from planner.documents.deployment import (
    CaptureSection,
    CompilationSection,
    Deployment,
    SchedulerSection,
)
from planner.documents.plan import TARGET
from planner.documents.sources import open_file
from planner.documents.tree import shown
from planner.engines.sglang.grids import decode_grid
from planner.engines.tensorrt_llm.sizes import DEFAULT_MAXIMUM, generated_sizes, held_sizes
from planner.errors import GraphplanError
from planner.modes import CapturePolicy, CUDAGraphMode
from planner.policies.optimum import optimal_sizes
from planner.traffic.batching import BLOCKS, Batching
from planner.traffic.engine_sizes import vllm_default_plan
from planner.traffic.histogram import Histogram, histogram_of
from planner.traffic.load import read_traffic
from planner.traffic.padding import decode_sizes, padding_of

MOST = 1 << 20
"""The largest number that an option takes."""

MOST_GRAPHS = 512
"""More sizes than any engine captures; each further one takes as long to find as the one before."""

MOST_SEQS = 1 << 16
"""Far more requests than any server runs at once; sizes for more take minutes to find."""

OPTIONS: tuple[tuple[str, type[int] | type[float], int, str], ...] = (
    ("rate", float, MOST, "speed of arrivals"),
    ("max_num_seqs", int, MOST_SEQS, "requests that run at once"),
    ("step_time", float, MOST, "milliseconds of a step without prefill"),
    ("prefill_rate", int, MOST, "tokens of prefill a second"),
    ("chunk", int, MOST, "tokens of a step at most"),
)

FEWER_GRAPHS = 16
"""With which the traffic policy is also tried: fewer than half of what engines capture."""


@frozen(kw_only=True)
class Grid:
    """Sizes in requests, and what captures them; ``graphs`` is how many sizes there are in all."""

    key: str
    title: str
    sizes: Sequence[int]
    graphs: int
    exact: bool = False


@frozen(kw_only=True)
class Halves:
    """What sizes are fitted to, and what they are scored on."""

    fitted: Histogram
    scored: Histogram
    is_held_out: bool


def halves_of(histogram: Histogram) -> Halves:
    """The two halves of a histogram by time, or all of it twice."""
    middle = len(histogram.blocks) // 2
    fitted = histogram_of(histogram.blocks[:middle], source=histogram.source)
    scored = histogram_of(histogram.blocks[middle:], source=histogram.source)
    if not fitted.decode_steps() or not scored.decode_steps():
        return Halves(fitted=histogram, scored=histogram, is_held_out=False)
    return Halves(fitted=fitted, scored=scored, is_held_out=True)


def engine_grids(server: Batching) -> Iterator[Grid]:
    """What each engine captures by default."""
    limit = server.max_num_seqs
    plan = vllm_default_plan(limit, server.chunk, 1)
    graphs = len(plan.resolved[TARGET].cudagraph_capture_sizes)
    yield Grid(key="vllm", title="vLLM", sizes=decode_sizes(plan), graphs=graphs)
    sizes = decode_grid(limit, speculative=False, padding=True)
    yield Grid(key="sglang", title="SGLang", sizes=sizes, graphs=len(sizes))
    default = held_sizes(
        generated_sizes(DEFAULT_MAXIMUM, padding=False, doubling=False), limit, padding=False
    )
    yield Grid(
        key="tensorrt_llm",
        title="TensorRT-LLM (pads nothing)",
        sizes=default,
        graphs=len(default),
        exact=True,
    )
    for key, title, doubling in (
        ("tensorrt_llm_padding", "TensorRT-LLM, enable_padding", False),
        ("tensorrt_llm_1_2_padding", "TensorRT-LLM 1.2, enable_padding", True),
    ):
        sizes = generated_sizes(limit, padding=True, doubling=doubling)
        yield Grid(key=key, title=title, sizes=sizes, graphs=len(sizes))


def policy_grids(server: Batching, fitted: Histogram, graphs: int) -> Iterator[Grid]:
    """What each policy captures; ``traffic`` with ``graphs``, and with fewer."""
    plain_sizes = plain_fit(fitted.decode_steps(), server.max_num_seqs, graphs)
    yield Grid(key="plain_fit", title="fit without smoothing", sizes=plain_sizes, graphs=len(plain_sizes))
    yield _compiled("engine", "policy engine", server, CaptureSection(policy=CapturePolicy.ENGINE))
    yield _compiled("covering", "policy covering", server, CaptureSection(policy=CapturePolicy.COVERING))
    for most in sorted({min(FEWER_GRAPHS, graphs), graphs}):
        capture = CaptureSection(policy=CapturePolicy.TRAFFIC, max_graphs=most, histogram=fitted)
        key = "traffic" if most == graphs else f"traffic_{most}"
        yield _compiled(key, f"policy traffic, max_graphs {most}", server, capture)


def plain_fit(steps: Mapping[int, int], limit: int, graphs: int) -> tuple[int, ...]:
    """The best sizes for exactly these steps, with ``limit`` as the last."""
    weights = [steps.get(number, 0) for number in range(limit + 1)]
    optima = optimal_sizes(weights, range(limit + 1), range(1, limit + 1), most=graphs)
    return optima.sizes(min(graphs, optima.most)) if optima else ()


def _compiled(key: str, title: str, server: Batching, capture: CaptureSection) -> Grid:
    limit = server.max_num_seqs
    plan = compile_plan(
        Deployment(
            scheduler=SchedulerSection(max_num_seqs=limit, max_num_batched_tokens=max(server.chunk, limit)),
            compilation=CompilationSection(cudagraph_mode=CUDAGraphMode.FULL_DECODE_ONLY),
            capture=capture,
        )
    )
    sizes = plan.resolved[TARGET].cudagraph_capture_sizes
    return Grid(key=key, title=title, sizes=decode_sizes(plan), graphs=len(sizes))


def scored(grid: Grid, halves: Halves) -> dict[str, Any]:
    """How a grid does; shares are from 0 to 1."""
    padding = padding_of(grid.sizes, halves.scored.decode_steps(), exact=grid.exact)
    return {
        "graphs": grid.graphs,
        "used": len(padding.used),
        "held_out_padding" if halves.is_held_out else "padding": padding.share,
        "uncovered": padding.uncovered_share,
        "decode_sizes": list(grid.sizes),
    }


def report_of(name: str, server: Batching, graphs: int) -> dict[str, Any]:
    """All figures of the trace in the file ``name``.

    Raises:
        GraphplanError: it cannot be read, or ``graphs`` are too few.
    """
    with open_file(Path(name)) as stream:
        traffic = read_traffic(stream, name, server)
    histogram = traffic.as_histogram(server, blocks=2 * BLOCKS)
    if not histogram.decode_steps():
        raise GraphplanError(f"{name}: has no decode batches; sizes for decode are what is compared")
    halves = halves_of(histogram)
    policies = {grid.key: grid for grid in policy_grids(server, halves.fitted, graphs)}
    engines = {grid.key: grid for grid in engine_grids(server)}
    traffic_policy = scored(policies["traffic"], halves)
    return {
        "trace": Path(name).name,
        "kind": traffic.kind,
        "server": asdict(server),
        "held_out": halves.is_held_out,
        "held_out_padding": traffic_policy.get("held_out_padding"),
        "fitted_steps": sum(halves.fitted.decode_steps().values()),
        "scored_steps": sum(halves.scored.decode_steps().values()),
        "engines": {key: scored(grid, halves) for key, grid in engines.items()},
        "policies": {key: scored(grid, halves) for key, grid in policies.items()},
        "titles": {key: grid.title for key, grid in (engines | policies).items()},
    }


def table_of(report: Mapping[str, Any]) -> str:
    """The figures for people."""
    rows = [Row(("", "graphs", "used", "padded", "without"))]
    for key, figures in (report["engines"] | report["policies"]).items():
        share = figures.get("held_out_padding", figures.get("padding"))
        cells = (str(figures["graphs"]), str(figures["used"]), f"{share:.2%}", f"{figures['uncovered']:.2%}")
        rows.append(Row((report["titles"][key], *cells)))
    how = (
        "fitted to the first half, scored on the second" if report["held_out"] else "fitted and scored on all"
    )
    title = f"{report['trace']} ({report['kind']}): {how} ({report['scored_steps']} decode steps)"
    return plain((heading(title), Block(tuple(rows), numbers=frozenset({1, 2, 3, 4}))))


def positive(convert: type[int] | type[float], most: int) -> Callable[[str], float]:
    """The type of arguments that are numbers above 0, up to ``most``."""
    kind = "whole number" if issubclass(convert, int) else "number"

    def checked(text: str) -> float:
        try:
            value = convert(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{shown(text)} is not a {kind}") from None
        if not 0 < value <= most:
            raise argparse.ArgumentTypeError(f"{shown(text)} is not a {kind} above 0, up to {most}")
        return value

    return checked


def main() -> None:
    """Print the figures of one trace."""
    default = Batching()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", metavar="TRACE", help="requests or counts, as planner traffic reads them")
    parser.add_argument(
        "--graphs",
        type=positive(int, MOST_GRAPHS),
        default=24,
        metavar="N",
        help=f"sizes of policy traffic, up to {MOST_GRAPHS} (default 24)",
    )
    for name, convert, most, what in OPTIONS:
        value = getattr(default, name)
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=positive(convert, most),
            default=value,
            metavar="N",
            help=f"{what} (default {value:g})",
        )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = vars(parser.parse_args())
    name, graphs, as_json = given.pop("trace"), given.pop("graphs"), given.pop("json")
    try:
        report = report_of(name, Batching(**given), graphs)
    except GraphplanError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    print(json.dumps(report, indent=1) if as_json else table_of(report), end="\n" if as_json else "")


if __name__ == "__main__":
    main()
