"""``planner check``: what is wrong with documents, or worth knowing about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
from attrs import evolve, field, frozen

from planner.cli.annotations import annotation, line_of
from planner.cli.answers import record, to_json
from planner.cli.blocks import SEVERITIES, Block, Row, by_severity, finding_rows
from planner.cli.commands import Completing, completing_options, folder_of, starts_server, text_of
from planner.cli.files import STDIN_NAME, STDIO, naming, read_document, refuse_two_stdins, shown_name
from planner.cli.options import examples, output_format
from planner.cli.render import show
from planner.cli.server_logs import AgainstLog, Log, comparison_block, comparison_json, read_log
from planner.cli.streams import write_stderr, write_stdout
from planner.compile import compile_plan
from planner.describe import counted
from planner.diff import FamilyDiff, family_diff
from planner.documents.deployment import Deployment, Json
from planner.documents.digest import is_edited
from planner.documents.load import load_document
from planner.documents.plan import Finding, Plan, Severity
from planner.errors import DocumentError, GraphplanError, PlanError
from planner.importers.detect import is_own_document
from planner.verify import verify
from planner.verify.against_log import compare_with_log
from planner.verify.own_traffic import own_traffic


@frozen
class Report:
    """What was found in one file: findings, or the error that kept it from being looked at.

    ``server`` is which of the servers that the file starts is meant, ``line`` where that begins, and
    ``lines`` has the line of each of its settings; a document has none of the three.
    """

    file: str
    kind: str | None = None
    findings: tuple[Finding, ...] = ()
    error: GraphplanError | None = None
    against: AgainstLog | None = None
    server: str | None = None
    line: int | None = None
    lines: Mapping[str, int] = field(factory=dict)

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
        "planner check k8s/*.yaml --device H100 --format github     # in a workflow",
        "vllm serve my-model ... 2>&1 | tee server.log",
        "    planner check plan.yaml --log server.log",
    ),
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@click.option(
    "--log", metavar="LOG", help="Compare with what a vLLM server printed at start; - for standard input."
)
@completing_options
@click.option("--skip-others", is_flag=True, help="Pass over files that are no document and start no server.")
@output_format("text", "json", "github")
@click.pass_context
def command(
    ctx: click.Context,
    files: tuple[str, ...],
    strict: bool,
    log: str | None,
    completing: Completing,
    skip_others: bool,
    form: str,
) -> None:
    """Check each FILE, a Deployment, a Plan, or what starts a server, and list the findings.

    A deployment is compiled. A plan is verified as it stands; one that was compiled is also
    compared with its digest (edited) and with what its own deployment compiles to now (stale).
    Of a script or a manifest, every server that it starts is imported and compiled; --device, --set
    and the like are for those alone.
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
    reports = [
        report for file in files for report in reports_on(file, completing, server, skip_others=skip_others)
    ]
    if form == "json":
        write_stdout(to_json([as_json(report) for report in reports]))
    elif form == "github":
        write_stdout("".join(line for report in reports for line in github_lines(report)))
    elif reports:
        show(tuple(summary(reports)))
    for report in reports:
        if report.error is not None:
            write_stderr(f"planner: error: {report.error}\n")
    for remark in completing.values.unused():
        write_stderr(f"planner: note: {remark}\n")
    ctx.exit(max((report.exit_code(strict=strict) for report in reports), default=0))


def reports_on(
    file: str, completing: Completing, log: Log | None = None, *, skip_others: bool = False
) -> list[Report]:
    """Everything that is to be said about one file: about a document, or about each server it starts."""
    try:
        text = text_of(file)
        if text is not None and starts_server(text):
            return _reports_on_servers(text, file, completing, log, skip_others=skip_others)
        if skip_others and text is not None and not is_own_document(text):
            return []
    except GraphplanError as error:
        return [Report(shown_name(file), error=error)]
    return [_report_on_document(text, file, log)]


def _reports_on_servers(
    text: str, file: str, completing: Completing, log: Log | None, *, skip_others: bool
) -> list[Report]:
    """A report on each server that ``text`` starts, or on the one that the user names.

    Raises:
        DocumentError: there is none, or options say for one server what several would take.
    """
    from planner.importers.source import choose, import_launch, launches_in, unread_in

    path, folder = shown_name(file), folder_of(file)
    launches = launches_in(text, path, completing.values)
    if skip_others and not launches:
        return []
    if completing.name is not None or not launches:
        unread = () if launches else unread_in(text, path)
        launches = [choose(launches, None, completing.name, path, unread)]
    if len(launches) > 1 and (completing.model_config or completing.draft_config or log):
        choose(launches, None, None, path)
    reports = []
    for launch in launches:
        report = Report(path, server=launch.name or None, line=launch.where.line)
        try:
            imported = import_launch(launch, completing.completion(folder), path)
            report = evolve(report, kind=Deployment.__name__, lines=imported.lines)
            with naming(file):
                plan = compile_plan(imported.deployment)
            against = None if log is None else AgainstLog(log, compare_with_log(plan, log.said))
            compared = () if against is None else against.comparison.findings
            remarks = (
                Finding(severity=Severity.INFO, code="command-line", message=remark)
                for remark in launch.remarks
            )
            findings = by_severity((*compared, *plan.findings, *imported.findings, *remarks))
            reports.append(evolve(report, findings=findings, against=against))
        except GraphplanError as error:
            reports.append(evolve(report, error=error))
    return reports


def _report_on_document(text: str | None, file: str, log: Log | None) -> Report:
    """Everything that is to be said about a document, and about it beside the ``log`` of its server."""
    kind = against = None
    try:
        if file == STDIO and text is not None:
            # Standard input can be read once.
            document = load_document(text.encode("utf-8", "surrogateescape"), path=STDIN_NAME)
        else:
            document = read_document(file)
        kind = type(document).__name__
        with naming(file):
            if isinstance(document, Deployment):
                plan = compile_plan(document)
                findings = plan.findings
            else:
                plan, findings = document, plan_findings(document, folder_of(file))
        if log is not None:
            against = AgainstLog(log, compare_with_log(plan, log.said))
            findings = (*against.comparison.findings, *findings)
    except GraphplanError as error:
        return Report(shown_name(file), kind, error=error)
    return Report(shown_name(file), kind, by_severity(findings), against=against)


def plan_findings(plan: Plan, folder: Path) -> tuple[Finding, ...]:
    """What is to be said about a plan: what it says itself, what verification and its digest say.

    Relative names of files in it start at ``folder``.
    """
    edited = is_edited(plan)
    stated = () if edited or plan.digest is None else plan.findings
    return tuple(dict.fromkeys((*stated, *verify(plan), *currency(plan, folder))))


def currency(plan: Plan, folder: Path) -> Iterator[Finding]:
    """Whether a plan that was compiled is still as it came out, and as it would come out now.

    Relative names of files in it start at ``folder``.
    """
    if is_edited(plan):
        yield _edited()
    if plan.digest is not None and plan.deployment != Deployment():
        yield from _staleness(plan, folder)


def tell_currency(plan: Plan, source: str) -> None:
    """Says on standard error that a plan from ``source`` is not as it was compiled, or would be now."""
    for finding in currency(plan, folder_of(source)):
        if finding.severity != Severity.INFO:
            write_stderr(
                f"planner: {finding.severity}: {shown_name(source)}: {finding.code}: {finding.message}\n"
            )


def _edited() -> Finding:
    return Finding(
        severity=Severity.WARNING,
        code="edited",
        message="the plan was changed after it was compiled: its digest does not fit",
        fix="planner compile PLAN -o PLAN compiles it anew; to keep the change, remove the line digest",
    )


def _staleness(plan: Plan, folder: Path) -> Iterator[Finding]:
    """Whether the plan's own deployment still compiles, and to the same graphs."""
    own = own_traffic(plan, folder)
    if own.finding is not None:
        yield own.finding
        return
    try:
        fresh = compile_plan(own.deployment)
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
    yield Block(tuple(Row((_title(report), report.kind or "-", *_verdict(report))) for report in reports))
    for report in reports:
        if report.against is not None:
            yield comparison_block(report.against)
        if report.findings:
            title = _title(report) if len(reports) > 1 else "findings"
            yield Block(finding_rows(report.findings), title=title)


def _title(report: Report) -> str:
    return f"{report.file} ({report.server})" if report.server else report.file


def github_lines(report: Report) -> Iterator[str]:
    """The report as annotations of a GitHub workflow, each at the line that it is about."""
    file = None if report.file == STDIN_NAME else report.file
    about = f"{report.server}: " if report.server else ""
    if report.error is not None:
        error = report.error
        text, line, column = str(error), report.line, None
        if isinstance(error, DocumentError):
            # The place may be one of another file, which the message then names.
            if error.path == report.file and error.line is not None:
                line, column = error.line, error.column
                text = f"{error.key}: {error.message}" if error.key else error.message
        elif isinstance(error, PlanError):
            line = next((report.lines[name] for name in error.fields if name in report.lines), line)
        yield annotation(Severity.ERROR, f"{about}{text}", file=file, line=line, column=column)
    for finding in report.findings:
        fix = f"; fix: {finding.fix}" if finding.fix else ""
        yield annotation(
            finding.severity,
            f"{about}{finding.message}{fix}",
            file=file,
            line=line_of(finding, report.lines) or report.line,
            title=finding.code,
        )


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
        "server": report.server,
        "kind": report.kind,
        "error": None if report.error is None else str(report.error),
        "findings": [record(finding) for finding in report.findings],
        "log": None if report.against is None else comparison_json(report.against),
    }
