"""``planner compile``: a deployment in, its plan out, and a summary beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click
from attrs import evolve

from planner.cli.blocks import Block, Row, attention_text, decision_blocks, finding_rows, heading
from planner.cli.commands import (
    Completing,
    EngineCommand,
    EngineSource,
    completing_options,
    import_notes,
    open_source,
)
from planner.cli.files import STDIO, is_same_file, naming, shown_name, write_output
from planner.cli.measurements import estimate_block, with_measured_estimates
from planner.cli.options import examples, output_format
from planner.cli.policies import CURVE, Overriding, curve_blocks, policy_options
from planner.cli.render import show
from planner.cli.streams import write_stderr
from planner.compile import compile_plan
from planner.describe import counted, size_runs
from planner.documents.deployment import Deployment
from planner.documents.plan import TARGET, Finding, Plan, ResolvedFamily, Severity
from planner.documents.writer import dump_plan, plan_to_json
from planner.engines.lookup import is_decode
from planner.errors import DocumentError
from planner.modes import CUDAGraphMode

MODE_PATH = "compilation.cudagraph_mode"

ENGINE_DEFAULT = "engine-default"
"""The rule of plain defaults of the engine section, which take one line together."""


@click.command(
    "compile",
    cls=EngineCommand,
    epilog=examples(
        "planner compile deployment.yaml -o plan.yaml",
        "planner compile plan.yaml -o plan.yaml     # anew, from the deployment inside",
        "planner compile -o plan.yaml --device H200 vllm serve Qwen/Qwen3-8B --max-num-seqs 64",
        "planner compile --device H100 start-server.sh     # a file with such a command",
        "planner compile deployment.yaml --policy covering | planner diff plan.yaml -",
        "planner compile deployment.yaml --cache /var/cache/graphplan -o plan.yaml",
        "planner compile deployment.yaml --traffic histogram.csv --max-graphs 24 -o plan.yaml",
        "cat deployment.yaml | planner compile - --format json --quiet | jq .graphs",
    ),
)
@click.argument("source", metavar="DEPLOYMENT|COMMAND", nargs=-1, required=True)
@click.option(
    "-o", "--output", metavar="PLAN", help="Write the plan to this file instead of standard output."
)
@policy_options
@completing_options
@output_format("yaml", "json")
@click.option("-q", "--quiet", is_flag=True, help="No summary on standard error, only errors.")
@click.pass_context
def command(
    ctx: click.Context,
    source: tuple[str, ...],
    output: str | None,
    completing: Completing,
    overriding: Overriding,
    form: str,
    quiet: bool,
) -> None:
    """Compile a deployment into the plan of its server's CUDA graphs.

    DEPLOYMENT is a file, or - for standard input; it may also be a plan, whose own deployment is then
    compiled anew. COMMAND is an engine's own command line as it is pasted: in one argument, in several
    behind the options, or in a file, which may be a script or a manifest. The plan goes to standard
    output or to a file, a summary to standard error.

    Exits with 1 if the plan has findings that are errors; it is written all the same.
    """
    found = open_source(source, completing)
    findings: tuple[Finding, ...] = ()
    notes: tuple[Block, ...] = ()
    if isinstance(found, EngineSource):
        name, deployment, findings = found.name, found.imported.deployment, found.imported.findings
        notes = tuple(import_notes(found.imported))
    else:
        name, deployment = shown_name(source[0]), _deployment_of(found, source[0], output)
    deployment = overriding.applied(deployment, STDIO if isinstance(found, EngineSource) else source[0])
    with naming(name):
        plan, cached = _planned(deployment, overriding.cache)
    if overriding.cache is not None:
        plan = with_measured_estimates(plan, overriding.cache)
    if cached:
        notes = (Block((Row(("the plan was found, not compiled",)),), title="cache"), *notes)
    plan = evolve(plan, findings=(*plan.findings, *findings))
    text = plan_to_json(plan) if form == "json" else dump_plan(plan)
    write_output(output, text, replaces=rb'\bkind"?: *"?Plan\b')
    if not quiet:
        show((*summary(plan, name), *notes), err=True)
    errors = [finding for finding in plan.findings if finding.severity == Severity.ERROR]
    for finding in errors if quiet else ():
        write_stderr(f"planner: {finding.code}: {finding.message}\n")
    if errors:
        ctx.exit(1)


def _planned(deployment: Deployment, directory: str | None) -> tuple[Plan, bool]:
    """The plan of ``deployment``, and whether the cache in ``directory`` had it; it has from now on."""
    if directory is None:
        return compile_plan(deployment), False
    from cache.safe import SafeCache

    cache = SafeCache(directory, warn=lambda line: write_stderr(f"planner: warning: {line}\n"))
    try:
        found = cache.get_plan(deployment)
        if found is not None:
            return found, True
        plan = compile_plan(deployment)
        cache.put_plan(plan)
        return plan, False
    finally:
        cache.close()


def _deployment_of(document: Deployment | Plan, source: str, output: str | None) -> Deployment:
    if isinstance(document, Deployment):
        if output is not None and is_same_file(source, output):
            name = shown_name(output)
            raise click.UsageError(f"-o {name} would overwrite the deployment; give another file")
        return document
    if document.deployment == Deployment():
        raise DocumentError(
            "the plan has no deployment to compile; give a Deployment",
            path=shown_name(source),
            key="deployment",
        )
    return document.deployment


def summary(plan: Plan, source: str) -> Iterator[Block]:
    """What a person wants to know of a plan at a glance."""
    target = plan.resolved[TARGET]
    engine = plan.deployment.engine
    version = engine.version or _became(plan, "engine.version") or ""
    runner = "" if target.lookup is not None else f", runner {target.runner}"
    yield heading(f"{plan.name or source}: {engine.name or 'vllm'} {version}{runner}")
    yield Block(tuple(_facts(plan, target)))
    yield _graphs(plan)
    if plan.estimates is not None:
        yield estimate_block(plan.estimates)
    told = (MODE_PATH, ENGINE_DEFAULT, CURVE)
    yield from decision_blocks(
        [decision for decision in plan.decisions if decision.path not in told and decision.rule not in told]
    )
    yield from curve_blocks(plan)
    if plan.findings:
        yield Block(finding_rows(plan.findings), title="findings")


def _became(plan: Plan, path: str) -> str | None:
    return next((str(decision.became) for decision in plan.decisions if decision.path == path), None)


def _facts(plan: Plan, target: ResolvedFamily) -> Iterator[Row]:
    asked = plan.deployment.compilation.cudagraph_mode
    steps = [decision for decision in plan.decisions if decision.path == MODE_PATH]
    if asked is not None:
        yield Row(("mode", f"{asked} (asked for)"))
    for index, step in enumerate(steps):
        arrow = "" if asked is None and index == 0 else "-> "
        yield Row(("mode" if not arrow else "", f"{arrow}{step.became} ({step.because})"))
    yield from _phases(plan, target) if target.lookup is not None else _sizes(target)
    if target.lora_cases != (0,):
        yield Row(("LoRA", f"captured for {size_runs(target.lora_cases)} active"))
    if target.attention_support is not None:
        yield Row(("attention", attention_text(target.attention_support, target.limiting_groups)))
    defaults = [decision for decision in plan.decisions if decision.rule == ENGINE_DEFAULT]
    if defaults:
        values = (f"{decision.path.removeprefix('engine.')} {decision.became}" for decision in defaults)
        yield Row(("defaults", ", ".join(values)))


def _sizes(target: ResolvedFamily) -> Iterator[Row]:
    sizes = target.cudagraph_capture_sizes
    yield Row(("sizes", _sizes_text(sizes, "token") if sizes else "none"))
    length = target.decode_query_len or 1
    lengths = size_runs(target.uniform_query_lens or (length,))
    requests = counted(target.max_num_seqs or 0, "request")
    yield Row(("decode", f"up to {requests} of {lengths} token{'s' if length > 1 else ''}"))
    yield Row(("step", f"up to {counted(target.max_num_batched_tokens or 0, 'token')}"))


def _sizes_text(sizes: Sequence[int], noun: str) -> str:
    plural = "" if tuple(sizes) == (1,) else "s"
    return f"{size_runs(sizes)} {noun}{plural} ({counted(len(sizes), 'size')})"


def _phases(plan: Plan, target: ResolvedFamily) -> Iterator[Row]:
    """The sizes of engines that look decode up by requests."""
    entries = plan.graphs.get(TARGET, ())
    decode = sorted({entry.num_reqs or 0 for entry in entries if is_decode(entry)})
    prefill = sorted({entry.num_tokens for entry in entries if not is_decode(entry)})
    length = counted(target.decode_query_len or 1, "token")
    yield Row(("decode", _sizes_text(decode, "request") if decode else "no graphs"))
    yield Row(("prefill", _sizes_text(prefill, "token") if prefill else "no graphs"))
    yield Row(("step", f"decode of up to {counted(target.max_num_seqs or 0, 'request')} of {length}"))
    if target.max_num_batched_tokens is not None:
        yield Row(("", f"prefill of up to {counted(target.max_num_batched_tokens, 'token')}"))


def _graphs(plan: Plan) -> Block:
    modes = (CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL)
    rows = [Row(("", *(str(mode) for mode in modes), ""))]
    for family, entries in plan.graphs.items():
        counts = [sum(entry.mode is mode for entry in entries) for mode in modes]
        prologues = sorted({entry.prologue.kind for entry in entries if entry.prologue is not None})
        after = f"each after {', '.join(prologues)}" if prologues else ""
        rows.append(Row((family, *(str(count or "-") for count in counts), after)))
    return Block(tuple(rows), title="graphs", numbers=frozenset({1, 2}))
