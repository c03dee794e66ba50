"""``planner import``: from an engine's own command line, script or manifest to a Deployment."""

from __future__ import annotations

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
    with_unused,
)
from planner.cli.files import naming, read_bytes, shown_name, write_output
from planner.cli.kinds import JSON, data_kind, unreadable
from planner.cli.options import examples
from planner.cli.render import show
from planner.documents.tree import printable
from planner.documents.writer import dump_deployment
from planner.errors import DocumentError
from planner.importers.detect import ENGINES, command_begins, has_containers, is_own_document

SUFFIXES = (".yaml", ".yml", ".json")
NO_COMMAND = "no command that starts a server is found"
OF_SETTINGS = (
    "a file of settings needs the name of its engine in front of it, such as planner import vllm FILE"
)
WANTED = (
    "give a command line, a script, a Kubernetes manifest or a Docker Compose file, or the engine's name and "
    "the file behind its --config"
)
"""What can be imported, for messages."""


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
    if not source[0].strip():
        raise click.UsageError("the source is empty; give a command line or a file, or - for standard input")
    refuse_other_command(source[0])
    text = text_of(source[0])
    if text is None:
        # Says what is wrong with the file.
        text = read_bytes(source[0]).decode("utf-8", "surrogateescape")
    if (fault := unreadable(text)) is not None:
        raise DocumentError(f"{fault}; {WANTED}", path=shown_name(source[0]))
    if starts_server(text) or has_containers(text):
        return open_text(text, source[0], engine, completing)
    is_config = source[0].endswith(SUFFIXES) and not is_own_document(text)
    if engine is not None and is_config:
        return _of_config(source[0], engine, completing)
    if (fault := _no_source(text, is_config=is_config)) is not None:
        raise DocumentError(fault, path=shown_name(source[0]))
    return open_text(text, source[0], engine, completing)


def _no_source(text: str, *, is_config: bool) -> str | None:
    """What a text is that can start no server, ``None`` if it may be a command."""
    if is_own_document(text):
        return "is a document already, which needs no import"
    kind = data_kind(text)
    if kind is not None and not (is_config and kind == JSON):
        return f"{NO_COMMAND} in this {kind}; {WANTED}"
    return f"{NO_COMMAND}; {OF_SETTINGS}" if is_config else None


def _of_config(source: str, engine: str, completing: Completing) -> EngineSource:
    """The server that is started with a file of settings and nothing else."""
    from planner.importers.source import import_config

    completion = completing.completion(folder_of(source))
    imported = import_config(Path(source), engine, completion)
    return EngineSource(shown_name(source), with_unused(imported, completing))


def _notes(found: EngineSource) -> Iterator[Block]:
    deployment = found.imported.deployment
    yield heading(f"{deployment.name or found.name}: {deployment.engine.name or ENGINES[0]}")
    yield from import_notes(found.imported)
    if found.imported.findings:
        yield Block(finding_rows(found.imported.findings), title="findings")
