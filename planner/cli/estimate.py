"""``planner estimate``: what the graphs of a plan will take, before any is captured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from planner.cli.answers import to_json
from planner.cli.blocks import Block, Row, finding_rows, heading
from planner.cli.check import tell_currency
from planner.cli.files import naming, read_document, shown_name
from planner.cli.measurements import Measured, estimate_block, measured_in
from planner.cli.options import examples, output_format
from planner.cli.render import show
from planner.cli.streams import write_stderr, write_stdout
from planner.compile import compile_plan
from planner.documents.data import plain
from planner.documents.estimates import Estimate, Quantity
from planner.documents.plan import Finding, Plan
from planner.estimate import estimate
from planner.estimate.findings import memory_found
from planner.estimate.stand_in import gathered_tokens
from planner.estimate.weights import unknown_because


@click.command(
    "estimate",
    epilog=examples(
        "planner estimate plan.yaml",
        "planner estimate deployment.yaml",
        "planner estimate plan.yaml --cache /var/cache/graphplan",
        "planner compile deployment.yaml -q | planner estimate - --format json | jq .memory_gib.expected",
    ),
)
@click.argument("source", metavar="PLAN|DEPLOYMENT")
@click.option("--cache", "directory", metavar="DIR", help="Go by the captures that this cache has.")
@click.option(
    "--stand-in",
    is_flag=True,
    help="What planner capture takes with its reference models, instead of an engine's server.",
)
@output_format("text", "json")
@click.pass_context
def command(ctx: click.Context, source: str, directory: str | None, stand_in: bool, form: str) -> None:
    """Estimate the memory and the start-up time of the graphs in PLAN.

    Each figure has a range and a source: a formula, or what was measured. With --cache, a capture of the
    same graphs replaces the formulas, and one of other graphs is scaled; captures on a CPU or of another
    model, such as a shrunken one, are left out. A deployment is compiled first. - reads from standard
    input.

    Exits with 1 if the graphs do not fit on the deployment's device.
    """
    document = read_document(source)
    with naming(source):
        plan = document if isinstance(document, Plan) else compile_plan(document)
        measured = Measured() if directory is None else measured_in(plan, directory)
        tokens = gathered_tokens(plan) if stand_in else None
        found = estimate(plan, measurements=measured.captures, gathered_tokens=tokens)
        findings = tuple(memory_found(plan, found))
    if isinstance(document, Plan):
        tell_currency(document, source)
    for note in measured.notes():
        write_stderr(f"planner: note: {note}\n")
    if form == "json":
        write_stdout(to_json({**plain(found), "findings": plain(findings)}))
    else:
        show(tuple(summary(plan, found, findings, plan.name or shown_name(source))))
    ctx.exit(int(bool(findings)))


def summary(plan: Plan, found: Estimate, findings: Sequence[Finding], name: str) -> Iterator[Block]:
    """The estimate for a person."""
    entries = sum(len(graphs) for graphs in plan.graphs.values())
    yield heading(f"{name}: {entries} entries in {len(plan.graphs)} families")
    yield estimate_block(found)
    if found.device is not None and (reason := unknown_because(plan.deployment)):
        yield Block((Row((f"weights and KV cache are not estimated: {reason}",)),))
    yield Block(tuple(_parts(found.memory_gib, "GiB", 3)), title="memory by part", numbers=frozenset({1}))
    yield Block(tuple(_parts(found.seconds, "s", 2)), title="start-up by part", numbers=frozenset({1}))
    if findings:
        yield Block(finding_rows(findings), title="findings")


def _parts(quantity: Quantity, unit: str, digits: int) -> Iterator[Row]:
    for part, amount in quantity.parts.items():
        yield Row((part, f"{amount:.{digits}f} {unit}"))
