"""``planner schema``: JSON Schemas of the documents, for editors."""

from __future__ import annotations

import click

from planner.cli.files import write_output
from planner.cli.options import examples
from planner.documents.schema import KINDS, schema_text


@click.command(
    "schema",
    epilog=examples(
        "planner schema deployment -o deployment.schema.json",
        "# then, in an editor with a YAML language server, as the first line of a deployment:",
        "# yaml-language-server: $schema=deployment.schema.json",
    ),
)
@click.argument("kind", type=click.Choice(sorted(KINDS)))
@click.option("-o", "--output", metavar="FILE", help="Write to this file instead of standard output.")
def command(kind: str, output: str | None) -> None:
    """Print the JSON Schema (2020-12) of a deployment or a plan."""
    write_output(output, schema_text(kind), replaces=rb'"\$schema"')
