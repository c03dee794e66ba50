"""``planner export``: from a Plan or Deployment to an engine's own arguments or config file."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from planner.cli.blocks import Block, Row
from planner.cli.check import tell_currency
from planner.cli.files import is_same_file, naming, read_document, shown_name, write_output
from planner.cli.options import examples
from planner.cli.render import show
from planner.documents.plan import Plan
from planner.importers.detect import ENGINES, TENSORRT_LLM

if TYPE_CHECKING:
    from planner.exporters.exported import Exported

ARGS, CONFIG = "args", "config"
FORMATS = (ARGS, "json", CONFIG)
EARLIER_EXPORT = rb'(?m)^(?:\{|"?[a-z][a-z_-]*"?: |--)'


@click.command(
    "export",
    epilog=examples(
        "planner export plan.yaml --to vllm --model Qwen/Qwen3-8B     # the whole command line",
        "planner export plan.yaml --to vllm --format config -o vllm.yaml",
        "vllm serve Qwen/Qwen3-8B --config vllm.yaml",
        "planner export deployment.yaml --to tensorrt-llm -o options.yaml",
        "planner export plan.yaml --to sglang     # decode sizes only, if the plan is of vllm",
    ),
)
@click.argument("source", metavar="PLAN|DEPLOYMENT")
@click.option(
    "--to", "engine", type=click.Choice(ENGINES), required=True, help="The engine that is to serve."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Arguments on one line, or the engine's config file as YAML or as JSON. "
    "[default: args; config for tensorrt-llm]",
)
@click.option("--model", metavar="NAME", help="Write the whole command line, which serves this model.")
@click.option(
    "--pin", "pinned", is_flag=True, help="Write all capture sizes out, also where they are the defaults."
)
@click.option("-o", "--output", metavar="FILE", help="Write to this file instead of standard output.")
@click.option(
    "-q",
    "--quiet",
    is_flag=True,
    help="No notes on standard error, only errors, and an environment that the server needs.",
)
def command(
    source: str,
    engine: str,
    form: str | None,
    model: str | None,
    pinned: bool,
    output: str | None,
    quiet: bool,
) -> None:
    """Write the settings under which an engine captures the graphs of a plan.

    Capture sizes that the engine's own rules do not give, as those of another policy or of a plan
    written by hand, are written out. The model is not part of a plan: --model names it.

    The settings are imported and planned before they are printed. What the engine captures beyond the
    plan and what it has no setting for goes to standard error; a graph that it would not capture is an
    error, and so is a --model that is known and gives another plan. - reads standard input.
    """
    from planner.exporters.export import export
    from planner.exporters.served import known_model

    if output is not None and is_same_file(source, output):
        raise click.UsageError(f"-o {shown_name(output)} would overwrite the source; give another file")
    form = form or (CONFIG if engine == TENSORRT_LLM and model is None else ARGS)
    if model is not None and form != ARGS:
        raise click.UsageError(
            f"--model is for --format {ARGS}; with a config file the command line names it"
        )
    if model is not None and (not model or model.startswith("-")):
        raise click.UsageError(f"--model {shown_name(model)} is no name of a model")
    document = read_document(source)
    with naming(source):
        served = None if model is None else known_model(model)
        exported = export(document, engine, form, pinned=pinned, served=served)
        text = exported.text(form) if model is None else exported.command(model)
    write_output(output, text, replaces=EARLIER_EXPORT)
    needed = tuple(_needed(exported)) if model is None else ()
    rest = () if quiet else tuple(_notes(exported))
    if rows := tuple(Row((note,)) for note in (*needed, *rest)):
        show((Block(rows, title=f"export to {exported.engine}"),), err=True)
    if isinstance(document, Plan) and not quiet:
        tell_currency(document, source)


def _needed(exported: Exported) -> Iterator[str]:
    """What the text alone leaves out, and without which the server captures another plan."""
    if exported.env:
        env = " ".join(f"{name}={shlex.quote(value)}" for name, value in exported.env.items())
        yield f"start it with the environment {env}, which no setting says"


def _notes(exported: Exported) -> Iterator[str]:
    yield from exported.notes
    if not exported.settings:
        yield "there is nothing to set: the defaults capture the plan"
