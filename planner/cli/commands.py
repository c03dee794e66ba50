"""Sources of commands that are an engine's own command line, script or manifest instead of a document."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from attrs import evolve, field, frozen

from planner.cli.blocks import Block, Row
from planner.cli.files import STDIN_NAME, STDIO, read_bytes, read_document, shown_name
from planner.documents.deployment import Deployment
from planner.documents.load import load_document
from planner.documents.plan import Plan
from planner.documents.tree import printable
from planner.errors import DocumentError
from planner.importers.detect import (
    begins_command,
    command_begins,
    is_command,
    is_document,
    is_manifest,
    is_other_command,
    start_of,
    with_assignments,
)

if TYPE_CHECKING:
    from planner.importers.imported import Completion, Imported

ONLY_SERVE = "only a command that starts a server can be planned, such as vllm serve"
NO_SERVER = "no vllm serve command and no document is found"

F = TypeVar("F", bound=Callable[..., Any])


class EngineCommand(click.Command):
    """A command whose arguments may end in an engine's command line, with flags of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Takes everything from the engine's command on as arguments, flags included."""
        start = self._engine_command(ctx, args)
        if start is None and is_other_command(args):
            raise click.UsageError(ONLY_SERVE)
        if start is not None:
            args = [*args[:start], "--", *args[start:]]
        return super().parse_args(ctx, args)

    def _engine_command(self, ctx: click.Context, args: list[str]) -> int | None:
        """Where the engine's command begins among arguments and options of this command, if one does."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        valued = {name for option in options if not (option.is_flag or option.count) for name in option.opts}
        least = at = 0
        while at < len(args) and args[at] != "--":
            if begins_command(args, at):
                return with_assignments(args, at, least)
            is_option = args[at].startswith("-")
            at += 1 + _takes_next(args[at], valued)
            if is_option:
                # What it takes is none of the words of the command, however it looks.
                least = at
        return None


def _takes_next(word: str, valued: set[str]) -> bool:
    """Whether the option that ``word`` is takes the next argument; ``valued`` are those with a value."""
    if word.startswith("--"):
        return word in valued
    letters = word[1:] if word.startswith("-") else ""
    # Of letters that stand together, the first that takes a value takes the rest for it.
    first = next((index for index, letter in enumerate(letters) if f"-{letter}" in valued), None)
    return first is not None and first == len(letters) - 1


@frozen
class EngineSource:
    """A deployment that was read off a command line, and how messages call that line."""

    name: str
    imported: Imported


class Settings(Mapping[str, str]):
    """Values that the user says for names in a source; remembers which of them anything has asked for."""

    def __init__(self, values: Mapping[str, str]) -> None:
        """Nothing has been asked for yet."""
        self._values = dict(values)
        self._asked: set[str] = set()

    def __getitem__(self, name: str) -> str:
        value = self._values[name]
        self._asked.add(name)
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def unused(self) -> Iterator[str]:
        """A remark on each of the values that nothing has asked for."""
        for name in self._values:
            if name not in self._asked:
                yield f"--set {printable(name)} has no effect: nothing asks for its value"


@frozen(kw_only=True)
class Completing:
    """Options that say what a command line does not: which server of a file, and what it leaves open."""

    device: str | None = None
    model_config: str | None = None
    draft_config: str | None = None
    name: str | None = None
    values: Settings = field(factory=lambda: Settings({}))

    def given(self) -> Iterator[str]:
        """The options that are given, as a user writes them."""
        for option, value in (
            ("--device", self.device),
            ("--model-config", self.model_config),
            ("--draft-config", self.draft_config),
            ("--name", self.name),
            ("--set", "" if self.values else None),
        ):
            if value is not None:
                yield option

    def refuse_all(self, text: str | None, path: str) -> None:
        """Refuses to complete a document, which ``text`` is if it is anything.

        Raises:
            UsageError: one of the options is given.
            DocumentError: one is given, and there is neither a document nor a command.
        """
        option = next(self.given(), None)
        # What cannot be read at all is a matter of whoever reads the document.
        if option is None or text is None or _is_torn(text):
            return
        if not is_document(text):
            raise DocumentError(NO_SERVER, path=path)
        raise click.UsageError(f"{option} completes a command line; a document says it itself")

    def completion(self, folder: Path) -> Completion:
        """The options as the importers take them; ``folder`` is that of the source."""
        from planner.importers.imported import Completion

        return Completion(
            model_config=self.model_config,
            draft_config=self.draft_config,
            device=self.device,
            env=dict(os.environ),
            folder=folder,
            values=self.values,
        )


def completing_options(function: F) -> F:
    """The options of ``Completing``, which the command takes as ``completing``."""

    @click.option(
        "--device", metavar="NAME", help="The accelerator that the server will run on, such as H200."
    )
    @click.option("--model-config", metavar="FILE", help="The config.json of the server's model.")
    @click.option("--draft-config", metavar="FILE", help="The config.json of the server's draft model.")
    @click.option("--name", "server", metavar="NAME", help="Which server, where a file starts several.")
    @click.option(
        "--set",
        "settings",
        metavar="NAME=VALUE",
        multiple=True,
        help="The value of a variable that a script or manifest leaves open; may be repeated.",
    )
    @functools.wraps(function)
    def with_completing(
        *args: Any,
        device: str | None,
        model_config: str | None,
        draft_config: str | None,
        server: str | None,
        settings: tuple[str, ...],
        **options: Any,
    ) -> Any:
        if device is not None and not device.strip():
            raise click.UsageError("--device is empty; give a name, such as H200")
        completing = Completing(
            device=device,
            model_config=model_config,
            draft_config=draft_config,
            name=server,
            values=Settings(dict(map(_setting, settings))),
        )
        return function(*args, completing=completing, **options)

    return with_completing  # type: ignore[return-value]


def _setting(text: str) -> tuple[str, str]:
    """The name and the value of ``--set``; the name may be a whole substitution, such as ``$(nproc)``."""
    from planner.importers.substitutions import end_of_name, parameter_name

    end = end_of_name(text)
    name, equals, value = text[:end], text[end : end + 1], text[end + 1 :]
    if equals != "=" or not name:
        raise click.UsageError(f"--set {printable(text)}: write NAME=VALUE")
    return parameter_name(name), value


def open_source(source: tuple[str, ...], completing: Completing) -> Deployment | Plan | EngineSource:
    """The document or the engine's command line that the arguments of a command name or hold.

    Raises:
        UsageError: several documents are given, or a document and options that complete a command line.
        DocumentError: the source cannot be read, or its engine would refuse it.
    """
    if command_begins(source) is not None:
        return open_words(source, None, completing)
    if len(source) > 1:
        more = printable(source[1])
        raise click.UsageError(f"one deployment at a time; {more} is a second (planner check takes several)")
    refuse_other_command(source[0])
    text, name = text_of(source[0]), shown_name(source[0])
    if text is not None and starts_server(text):
        return open_text(text, source[0], None, completing)
    completing.refuse_all(text, name)
    if source[0] == STDIO and text is not None:
        return load_document(text.encode("utf-8", "surrogateescape"), path=STDIN_NAME)
    return read_document(source[0])


def starts_server(text: str) -> bool:
    """Whether ``text`` is a command, script or manifest that starts a server."""
    return is_command(text) or is_manifest(text)


def open_words(words: tuple[str, ...], engine: str | None, completing: Completing) -> EngineSource:
    """The server of a command that stands on the command line, cut into words by the user's shell.

    Raises:
        DocumentError: it starts no server, or a flag or value that the engine would refuse.
    """
    from planner.importers.source import COMMANDS, import_words

    start = start_of(words)
    name = COMMANDS[start.engine] if start is not None else printable(words[0])
    imported = import_words(words, completing.completion(Path()), engine=engine)
    return EngineSource(name, with_unused(imported, completing))


def open_text(text: str, source: str, engine: str | None, completing: Completing) -> EngineSource:
    """The server that ``text`` starts, which is the argument ``source`` itself or what that names.

    Raises:
        DocumentError: it starts none or several, or a flag or value that the engine would refuse.
    """
    from planner.importers.source import COMMANDS, import_text

    is_line = text is source
    start = start_of(text.split()) if is_line else None
    name = COMMANDS[start.engine] if start is not None else "command" if is_line else shown_name(source)
    completion = completing.completion(Path() if is_line else folder_of(source))
    imported = import_text(text, completion, path=name, engine=engine, name=completing.name)
    return EngineSource(name, with_unused(imported, completing))


def with_unused(imported: Imported, completing: Completing) -> Imported:
    """An import with the remarks on values that the user gives for nothing."""
    return evolve(imported, notes=(*imported.notes, *completing.values.unused()))


def folder_of(source: str) -> Path:
    """The folder in which the files that a source names are looked for."""
    return Path() if source == STDIO else Path(source).parent


def refuse_other_command(source: str) -> None:
    """Refuses a command of an engine that starts no server.

    Raises:
        UsageError: ``source`` is one.
    """
    words = source.split()
    if (words in (["vllm"], ["sglang"]) or is_other_command(words)) and not os.path.exists(source):
        raise click.UsageError(ONLY_SERVE)


def _is_torn(text: str) -> bool:
    """Whether some bytes of a text were none of UTF-8."""
    return any("\udc80" <= letter <= "\udcff" for letter in text)


def text_of(source: str) -> str | None:
    """The text of a source, or the source itself where that is a command; ``None`` for no text.

    Raises:
        DocumentError: standard input cannot be read.
    """
    if is_command(source) and not Path(source).is_file():
        return source
    try:
        return read_bytes(source).decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    except DocumentError:
        if source == STDIO:
            raise
        # Whoever reads the document says what is wrong with the file.
        return None


def import_notes(imported: Imported) -> Iterator[Block]:
    """What a reader should know of the command line that a deployment comes from."""
    rows = [Row((note,)) for note in imported.notes]
    if imported.unused:
        rows.append(Row((f"without effect on planning: {', '.join(imported.unused)}",)))
    if rows:
        yield Block(tuple(rows), title="command line")
