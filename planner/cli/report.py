"""``planner report``: a page to look at, about one plan or two beside each other."""

from __future__ import annotations

import re

import click
from attrs import evolve

from planner.cli.check import plan_findings
from planner.cli.commands import folder_of
from planner.cli.files import (
    STDIO,
    is_same_file,
    naming,
    read_document,
    reading,
    refuse_two_stdins,
    shown_name,
    write_output,
)
from planner.cli.options import examples
from planner.documents.plan import TARGET, Plan
from planner.traffic.histogram import Histogram


@click.command(
    "report",
    epilog=examples(
        "planner report plan.yaml -o report.html",
        "planner report plan.yaml --traffic histogram.csv -o report.html",
        "planner report new.yaml --against old.yaml -o report.html     # side by side, and what changed",
    ),
)
@click.argument("source", metavar="PLAN|DEPLOYMENT")
@click.option("--against", metavar="OTHER", help="Another plan or deployment, to stand beside it.")
@click.option("--traffic", metavar="FILE", help="A histogram or trace that the padding is weighed by.")
@click.option("-o", "--output", metavar="FILE", help="Write to this file instead of standard output.")
def command(source: str, against: str | None, traffic: str | None, output: str | None) -> None:
    """Draw a plan as a page: which batch goes to which graph, what that costs, and why.

    The page is one HTML file that runs nothing and fetches nothing. It has a map of the batches that every
    graph serves, the padding beside that of the engine's own sizes, memory and time, findings, decisions
    and the graphs in capture order. A deployment is compiled first. Without --traffic, the padding is
    weighed by the traffic that the plan was made for. - reads one of the files from standard input.
    """
    names = [name for name in (source, against, traffic) if name is not None]
    refuse_two_stdins(*names)
    for name in names:
        if output is not None and is_same_file(name, output):
            raise click.UsageError(f"-o {shown_name(output)} would overwrite a source; give another file")
    from planner.report.page import GENERATOR, report

    plan, counted = _plan(source)
    other = _plan(against)[0] if against is not None else None
    histogram = _histogram(traffic, plan) if traffic is not None else counted
    if traffic is not None and histogram is not None:
        plan = _with_traffic_findings(plan, histogram)
        other = None if other is None else _with_traffic_findings(other, histogram)
    with naming(source):
        page = report(
            plan,
            against=other,
            histogram=histogram,
            name=shown_name(source),
            against_name=shown_name(against or STDIO),
        )
    write_output(output, page, replaces=re.escape(GENERATOR.encode()))


def _plan(name: str) -> tuple[Plan, Histogram | None]:
    """The plan that a document is or compiles to, and the traffic that it was compiled for.

    The findings are those of ``planner check``.
    """
    document = read_document(name)
    if isinstance(document, Plan):
        from planner.verify.own_traffic import own_traffic

        folder = folder_of(name)
        with naming(name):
            plan = evolve(document, findings=plan_findings(document, folder))
        return plan, own_traffic(document, folder).deployment.capture.histogram
    from planner.compile import compile_plan

    with naming(name):
        return compile_plan(document), document.capture.histogram


def _with_traffic_findings(plan: Plan, histogram: Histogram) -> Plan:
    from planner.report.traffic import traffic_findings

    return evolve(plan, findings=tuple(dict.fromkeys((*plan.findings, *traffic_findings(plan, histogram)))))


def _histogram(name: str, plan: Plan) -> Histogram:
    """The histogram in a file; the requests of a trace are replayed on a server with the plan's limits."""
    from planner.traffic.batching import Batching
    from planner.traffic.load import read_traffic

    batching, target = Batching(), plan.resolved.get(TARGET)
    if target is not None:
        batching = evolve(
            batching,
            max_num_seqs=target.max_num_seqs or batching.max_num_seqs,
            chunk=target.max_num_batched_tokens or batching.chunk,
            query_len=target.decode_query_len or batching.query_len,
        )
    with reading(name, lambda path: open(path, "rb")) as stream:
        return read_traffic(stream, shown_name(name), batching).as_histogram(batching)
