"""``planner import``: from an engine's own command line, script or manifest to a Deployment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from planner.cli.blocks import Block, finding_rows, heading
from planner.cli.commands import (
    Completing,
    EngineCommand,
    EngineSource,
    completing_options,
    folder_of,
    import_notes,
    open_text,
    open_words,
    refuse_other_command,
    starts_server,
    text_of,
)
from planner.cli.files import STDIO, naming, shown_name, write_output
from planner.cli.options import examples
from planner.cli.render import show
from planner.documents.tree import printable
from planner.documents.writer import dump_deployment
from planner.errors import DocumentError
from planner.importers.detect import ENGINES, command_begins, has_containers, is_document


@click.command(
    "import",
    cls=EngineCommand,
    epilog=examples(
        "planner import vllm serve Qwen/Qwen3-8B --max-num-seqs 64 --port 8000",
        "planner import --device H200 start-server.sh -o deployment.yaml",
        "planner import manifests.yaml --name decode      # one server of several",
        "planner import run.sh --set MODEL=Qwen/Qwen3-8B --set '$((TP * 2))=4'",
        "planner import tensorrt-llm extra-llm-api-options.yaml",
    ),
)
@click.argument("source", metavar="[vllm|sglang|tensorrt-llm] SOURCE...", nargs=-1, required=True)
@click.option(
    "-o", "--output", metavar="FILE", help="Write the Deployment to this file instead of standard output."
)
@completing_options
@click.option("-q", "--quiet", is_flag=True, help="No notes on standard error, only errors.")
def command(source: tuple[str, ...], output: str | None, completing: Completing, quiet: bool) -> None:
    """Write the Deployment of a server that is started by an engine's own means.

    SOURCE is a command line as it is pasted (in one argument, or in several behind the options), a
    script, a Kubernetes manifest, a Docker Compose file, or, behind the name of the engine, a YAML file
    as its --config takes it; - reads standard input. Nothing in it is run: what a shell would look up
    is named, and --set gives its value.

    The Deployment goes to standard output or to a file, notes to standard error.
    """
    engine, source = _engine_of(source)
    found = _open(source, engine, completing)
    with naming(found.name):
        text = dump_deployment(found.imported.deployment)
    write_output(output, text, replaces=rb'\bkind"?: *"?Deployment\b')
    if not quiet:
        show(tuple(_notes(found)), err=True)


def _engine_of(source: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """The engine that the first argument names, and the other arguments."""
    if source[0] not in ENGINES or command_begins(source) == 0:
        return None, source
    if len(source) == 1:
        raise click.UsageError(f"name what to import behind {source[0]}: a command line or a file")
    return source[0], source[1:]


def _open(source: tuple[str, ...], engine: str | None, completing: Completing) -> EngineSource:
    if command_begins(source) is not None:
        return open_words(source, engine, completing)
    if len(source) > 1:
        raise click.UsageError(f"one source at a time; {printable(source[1])} is a second")
    refuse_other_command(source[0])
    text, name = text_of(source[0]), shown_name(source[0])
    if text is None:
        # Says what is wrong with the file.
        from planner.cli.files import read_bytes

        text = read_bytes(source[0]).decode("utf-8", "replace")
    if starts_server(text) or has_containers(text):
        return open_text(text, source[0], engine, completing)
    if is_document(text):
        raise DocumentError("is a document already, which needs no import", path=name)
    if engine is not None and source[0] != STDIO and os.path.splitext(source[0])[1] in (".yaml", ".yml"):
        return _of_config(source[0], engine, completing)
    return open_text(text, source[0], engine, completing)


def _of_config(source: str, engine: str, completing: Completing) -> EngineSource:
    """The server that is started with a file of settings and nothing else."""
    from planner.importers.source import import_config

    completion = completing.completion(folder_of(source))
    return EngineSource(shown_name(source), import_config(Path(source), engine, completion))


def _notes(found: EngineSource) -> Iterator[Block]:
    deployment = found.imported.deployment
    yield heading(f"{deployment.name or found.name}: {deployment.engine.name or ENGINES[0]}")
    yield from import_notes(found.imported)
    if found.imported.findings:
        yield Block(finding_rows(found.imported.findings), title="findings")
