"""``planner check``: what is wrong with documents, or worth knowing about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click
from attrs import frozen

from planner.cli.answers import record, to_json
from planner.cli.blocks import SEVERITIES, Block, Row, by_severity, finding_rows
from planner.cli.files import naming, read_document, refuse_two_stdins, shown_name
from planner.cli.options import examples, output_format
from planner.cli.render import show
from planner.cli.server_logs import AgainstLog, Log, comparison_block, comparison_json, read_log
from planner.cli.streams import write_stderr, write_stdout
from planner.compile import compile_plan
from planner.describe import counted
from planner.diff import FamilyDiff, family_diff
from planner.documents.deployment import Deployment, Json
from planner.documents.digest import is_edited
from planner.documents.plan import Finding, Plan, Severity
from planner.errors import GraphplanError, PlanError
from planner.verify import verify
from planner.verify.against_log import compare_with_log


@frozen
class Report:
    """What was found in one file: findings, or the error that kept it from being looked at."""

    file: str
    kind: str | None = None
    findings: tuple[Finding, ...] = ()
    error: GraphplanError | None = None
    against: AgainstLog | None = None

    def count(self, severity: str) -> int:
        """The number of findings of ``severity``."""
        return sum(finding.severity == severity for finding in self.findings)

    def exit_code(self, *, strict: bool) -> int:
        """What the command exits with for this file."""
        if self.error is not None:
            return self.error.exit_code
        return int(bool(self.count(Severity.ERROR) or (strict and self.count(Severity.WARNING))))


@click.command(
    "check",
    epilog=examples(
        "planner check plans/*.yaml",
        "planner check plan.yaml --strict",
        "planner check deployment.yaml --format json | jq '.[].findings'",
        "vllm serve my-model ... 2>&1 | tee server.log",
        "    planner check plan.yaml --log server.log",
    ),
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@click.option(
    "--log", metavar="LOG", help="Compare with what a vLLM server printed at start; - for standard input."
)
@output_format("text", "json")
@click.pass_context
def command(ctx: click.Context, files: tuple[str, ...], strict: bool, log: str | None, form: str) -> None:
    """Check each FILE, a Deployment or a Plan, and list the findings.

    A deployment is compiled. A plan is verified as it stands; one that was compiled is also
    compared with its digest (edited) and with what its own deployment compiles to now (stale).
    Every file is looked at, and the worst decides the exit code: 2 for one that cannot be read or
    that the engine refuses, 1 for findings that are errors. - reads standard input.

    With --log, one FILE is compared with a server's own log: sizes, mode, and the number of graphs
    captured, and a difference is an error. Of several starts in a log the last counts, and what a
    log does not say is listed.
    """
    if log is not None and len(files) > 1:
        raise click.UsageError(f"--log is compared with one FILE, not with {len(files)}")
    refuse_two_stdins(*files, *([] if log is None else [log]))
    server = None if log is None else read_log(log)
    reports = [report_on(file, server) for file in files]
    if form == "json":
        write_stdout(to_json([as_json(report) for report in reports]))
    else:
        show(tuple(summary(reports)))
    for report in reports:
        if report.error is not None:
            write_stderr(f"planner: error: {report.error}\n")
    ctx.exit(max(report.exit_code(strict=strict) for report in reports))


def report_on(file: str, log: Log | None = None) -> Report:
    """Everything that is to be said about one file, and about it beside the ``log`` of its server."""
    kind = against = None
    try:
        document = read_document(file)
        kind = type(document).__name__
        with naming(file):
            if isinstance(document, Deployment):
                plan = compile_plan(document)
                findings = plan.findings
            else:
                plan, findings = document, plan_findings(document)
        if log is not None:
            against = AgainstLog(log, compare_with_log(plan, log.said))
            findings = (*against.comparison.findings, *findings)
    except GraphplanError as error:
        return Report(shown_name(file), kind, error=error)
    return Report(shown_name(file), kind, by_severity(findings), against=against)


def plan_findings(plan: Plan) -> tuple[Finding, ...]:
    """What is to be said about a plan: what it says itself, what verification and its digest say."""
    edited = is_edited(plan)
    stated = () if edited or plan.digest is None else plan.findings
    findings = dict.fromkeys((*stated, *verify(plan)))
    if edited:
        findings[_edited()] = None
    if plan.digest is not None and plan.deployment != Deployment():
        findings.update(dict.fromkeys(_staleness(plan)))
    return tuple(findings)


def _edited() -> Finding:
    return Finding(
        severity=Severity.WARNING,
        code="edited",
        message="the plan was changed after it was compiled: its digest does not fit",
        fix="planner compile PLAN -o PLAN compiles it anew; to keep the change, remove the line digest",
    )


def _staleness(plan: Plan) -> Iterator[Finding]:
    """Whether the plan's own deployment still compiles, and to the same graphs."""
    try:
        fresh = compile_plan(plan.deployment)
    except PlanError as error:
        yield Finding(
            severity=Severity.ERROR,
            code="deployment-refused",
            message=f"the deployment inside is refused: {error}",
        )
        return
    families = dict.fromkeys((*plan.graphs, *fresh.graphs))
    changes = [change for family in families if (change := family_diff(plan, fresh, family))]
    if changes:
        yield Finding(
            severity=Severity.WARNING,
            code="stale",
            message="the deployment inside compiles to other graphs: "
            + "; ".join(map(_change_text, changes)),
            fix="planner compile PLAN -o PLAN",
        )


def _change_text(change: FamilyDiff) -> str:
    gained, lost = len(change.graphs.gained), len(change.graphs.lost)
    if change.reordered and not change.graphs:
        return f"{change.family} in another order"
    return f"{change.family} +{gained} -{lost}"


def summary(reports: Sequence[Report]) -> Iterator[Block]:
    """The reports for a person: a line a file, then what each was compared with, and its findings."""
    yield Block(tuple(Row((report.file, report.kind or "-", *_verdict(report))) for report in reports))
    for report in reports:
        if report.against is not None:
            yield comparison_block(report.against)
        if report.findings:
            yield Block(finding_rows(report.findings), title=report.file if len(reports) > 1 else "findings")


def _verdict(report: Report) -> tuple[str]:
    if report.error is not None:
        return ("refused" if isinstance(report.error, PlanError) else "cannot be read",)
    nouns = zip(SEVERITIES, ("error", "warning", "note"), strict=True)
    counts = [counted(number, noun) for severity, noun in nouns if (number := report.count(severity))]
    return (", ".join(counts) or "ok",)


def as_json(report: Report) -> Json:
    """A report for a program."""
    return {
        "file": report.file,
        "kind": report.kind,
        "error": None if report.error is None else str(report.error),
        "findings": [record(finding) for finding in report.findings],
        "log": None if report.against is None else comparison_json(report.against),
    }
