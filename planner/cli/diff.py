"""``planner diff``: what changed from one plan to another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from planner.cli.answers import record, to_json
from planner.cli.blocks import Block, Row, change_text, heading, reasoned_rows, value_text
from planner.cli.files import read_plan, refuse_two_stdins
from planner.cli.options import examples, output_format
from planner.cli.render import show
from planner.cli.streams import write_stdout
from planner.describe import by_shape, counted, size_runs
from planner.diff import Change, Difference, FamilyDiff, PlanDiff, diff
from planner.documents.data import plain
from planner.documents.deployment import Json
from planner.documents.plan import Decision, Finding

T = TypeVar("T")

LOST, GAINED = "lost", "gained"
SIGNS = {LOST: "-", GAINED: "+"}


@click.command(
    "diff",
    epilog=examples(
        "planner diff before.yaml after.yaml",
        "planner compile deployment.yaml -q | planner diff plan.yaml - --format json",
    ),
)
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@output_format("text", "json")
@click.pass_context
def command(ctx: click.Context, before: str, after: str, form: str) -> None:
    """Show what changes from plan A to plan B.

    Lists graphs gained and lost, the settings behind them, and the values, decisions and findings
    that differ. Exits with 1 if anything does. - reads one of the two from standard input.
    """
    refuse_two_stdins(before, after)
    changes = diff(read_plan(before), read_plan(after))
    if form == "json":
        write_stdout(to_json(as_json(changes)))
    else:
        show(tuple(summary(changes)))
    ctx.exit(0 if changes.same else 1)


def summary(changes: PlanDiff) -> Iterator[Block]:
    """The differences for a person."""
    if changes.same:
        yield heading("the plans do not differ")
    if changes.settings:
        yield Block(tuple(_change_row(change) for change in changes.settings), title="settings")
    for family in changes.families:
        yield Block(tuple(_family_rows(family)), title=_family_title(family))
    if changes.resolved:
        yield Block(tuple(_change_row(change) for change in changes.resolved), title="resolved values")
    if changes.decisions:
        yield Block(tuple(_both_sides(changes.decisions, _decision_rows)), title="decisions")
    if changes.findings:
        yield Block(tuple(_both_sides(changes.findings, _finding_rows)), title="findings")
    if changes.estimates:
        yield Block(tuple(_change_row(change) for change in changes.estimates), title="estimates")


def _change_row(change: Change) -> Row:
    if change.after is None:
        return Row((change.path, f"{value_text(change.before)} -> not given"))
    return Row((change.path, change_text(change.before, change.after)))


def _family_title(family: FamilyDiff) -> str:
    if family.only_after:
        return f"graphs of {family.family}, a new family"
    if family.only_before:
        return f"graphs of {family.family}, a family that is gone"
    return f"graphs of {family.family}"


def _family_rows(family: FamilyDiff) -> Iterator[Row]:
    for style, entries in ((LOST, family.graphs.lost), (GAINED, family.graphs.gained)):
        for shape, group in by_shape(entries):
            sizes = size_runs(sorted(entry.num_tokens for entry in group))
            yield Row((SIGNS[style], counted(len(group), "graph"), shape, f"{sizes} tokens"), style)
    if family.reordered:
        yield Row(("~", "captured in another order"))


def _both_sides(difference: Difference[T], rows: Callable[[T, str], Iterator[Row]]) -> Iterator[Row]:
    for style, items in ((LOST, difference.lost), (GAINED, difference.gained)):
        for item in items:
            yield from rows(item, style)


def _decision_rows(decision: Decision, style: str) -> Iterator[Row]:
    change = change_text(decision.asked, decision.became)
    return reasoned_rows((SIGNS[style], decision.path), change, decision.because, style)


def _finding_rows(finding: Finding, style: str) -> Iterator[Row]:
    yield Row((SIGNS[style], finding.severity, finding.code, finding.message), style)


def as_json(changes: PlanDiff) -> Json:
    """The differences for a program."""
    return {
        "same": changes.same,
        "settings": [record(change) for change in changes.settings],
        "resolved": [record(change) for change in changes.resolved],
        "families": {
            family.family: {
                "gained": plain(family.graphs.gained),
                "lost": plain(family.graphs.lost),
                "reordered": family.reordered,
                "only_before": family.only_before,
                "only_after": family.only_after,
            }
            for family in changes.families
        },
        "decisions": _sides(changes.decisions),
        "findings": _sides(changes.findings),
        "estimates": [record(change) for change in changes.estimates],
    }


def _sides(difference: Difference[Any]) -> Json:
    return {
        GAINED: [record(item) for item in difference.gained],
        LOST: [record(item) for item in difference.lost],
    }
