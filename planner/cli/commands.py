"""Sources of ``planner compile`` that are an engine's own command line instead of a document."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from attrs import frozen

from planner.cli.files import STDIN_NAME, STDIO, read_bytes, read_document, shown_name
from planner.documents.deployment import Deployment
from planner.documents.load import load_document
from planner.documents.plan import Plan
from planner.documents.tree import printable
from planner.errors import DocumentError
from planner.importers.detect import command_begins, is_command, is_document, is_manifest, is_other_command

if TYPE_CHECKING:
    from planner.importers.vllm import Completion, Imported

NAME = "vllm serve"
ONLY_SERVE = "only vllm serve can be planned"


class EngineCommand(click.Command):
    """A command whose arguments may end in an engine's command line, with flags of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Takes everything from the engine's command on as arguments, flags included."""
        start = command_begins(args) if "--" not in args else None
        if start is None and is_other_command(args):
            raise click.UsageError(ONLY_SERVE)
        if start is not None:
            args = [*args[:start], "--", *args[start:]]
        return super().parse_args(ctx, args)


@frozen
class EngineSource:
    """A deployment that was read off a command line, and how messages call that line."""

    name: str
    imported: Imported


@frozen(kw_only=True)
class Completing:
    """Options that say what a command line does not."""

    device: str | None
    model_config: str | None
    draft_config: str | None

    def refuse_all(self, text: str | None, path: str) -> None:
        """Refuses to complete a document, which ``text`` is if it is anything.

        Raises:
            UsageError: one of the options is given.
            DocumentError: one is given, and there is neither a document nor a command.
        """
        if (self.device, self.model_config, self.draft_config) == (None, None, None):
            return
        # What cannot be read at all is a matter of whoever reads the document.
        if text is None or _is_torn(text):
            return
        if not is_document(text):
            raise DocumentError("no vllm serve command and no document is found", path=path)
        for name in ("device", "model_config", "draft_config"):
            if getattr(self, name) is not None:
                option = name.replace("_", "-")
                raise click.UsageError(f"--{option} completes a command line; a document says it itself")


def open_source(source: tuple[str, ...], completing: Completing) -> Deployment | Plan | EngineSource:
    """The document or the engine's command line that the arguments of a command name or hold.

    Raises:
        UsageError: several documents are given, or a document and options that complete a command line.
        DocumentError: the source cannot be read, or its engine would refuse it.
    """
    if completing.device is not None and not completing.device.strip():
        raise click.UsageError("--device is empty; give a name, such as H200")
    if command_begins(source) is not None:
        from planner.importers.vllm import import_words

        return EngineSource(NAME, import_words(source, _completion(completing)))
    if len(source) > 1:
        more = printable(source[1])
        raise click.UsageError(f"one deployment at a time; {more} is a second (planner check takes several)")
    _refuse_other_command(source[0])
    text, name = _text(source[0]), shown_name(source[0])
    if text is not None and is_manifest(text):
        raise DocumentError("is a manifest; give the vllm serve line itself", path=name)
    if text is not None and is_command(text):
        from planner.importers.vllm import import_text

        name = NAME if text is source[0] else name
        return EngineSource(name, import_text(text, _completion(completing), path=name))
    completing.refuse_all(text, name)
    if source[0] == STDIO and text is not None:
        return load_document(text.encode("utf-8", "surrogateescape"), path=STDIN_NAME)
    return read_document(source[0])


def _refuse_other_command(source: str) -> None:
    words = source.split()
    if (words == ["vllm"] or is_other_command(words)) and not os.path.exists(source):
        raise click.UsageError(ONLY_SERVE)


def _is_torn(text: str) -> bool:
    """Whether some bytes of a text were none of UTF-8."""
    return any("\udc80" <= letter <= "\udcff" for letter in text)


def _text(source: str) -> str | None:
    """The text of a source, or the source itself where that is a command; ``None`` for no text."""
    if is_command(source) and not Path(source).is_file():
        return source
    try:
        return read_bytes(source).decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    except DocumentError:
        if source == STDIO:
            raise
        # Whoever reads the document says what is wrong with the file.
        return None


def _completion(completing: Completing) -> Completion:
    from planner.importers.vllm import Completion

    return Completion(
        model_config=completing.model_config,
        draft_config=completing.draft_config,
        device=completing.device,
        env=dict(os.environ),
    )
