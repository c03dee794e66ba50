"""What a script or manifest starts servers with, or sets, in other files that are not read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import dropwhile, pairwise, takewhile

from planner.documents.tree import Items, Node, Scalar, Table, printable
from planner.importers.blocks import Command
from planner.importers.detect import has_containers, is_command, is_shell
from planner.importers.nodes import text_at, texts_of
from planner.importers.script import Script
from planner.importers.words import Word

_SOURCING = frozenset({"source", "."})
_FILE_OPTIONS = frozenset({"-f", "--filename", "--file"})
_APPLYING = frozenset({"kubectl", "oc", "docker", "podman", "docker-compose", "podman-compose"})
_VERBS = frozenset({"apply", "create", "replace", "compose", "up"})
_CALLING = frozenset({"sudo", "exec", "env", "nohup"})
_BY_ITSELF = "save it as a file of its own and import that"


def unread_in_script(script: Script) -> Iterator[str]:
    """Remarks on what a script reads or runs beside its own commands."""
    for command in script.commands:
        yield from _of_command(command)
        if command.piped and (shell := _reading_shell(command)) is not None:
            yield f"line {shell.line}: what {shell.text} reads from the pipe is not read; {_BY_ITSELF}"
    for program, text in script.inputs:
        if has_containers(text) or is_command(text):
            what = f"line {program.line}: the text that {printable(program.text)} reads out of the script"
            yield f"{what} is not read; {_BY_ITSELF}"
    for name, text in script.files.items():
        if has_containers(text) or is_command(text):
            yield f"{printable(name)}, which the script writes, is not read; {_BY_ITSELF}"


def _of_command(command: Command) -> Iterator[str]:
    words = command.run
    texts = [word.text for word in words]
    where = f"line {words[0].line}"
    if texts[0] in _SOURCING and len(texts) > 1:
        yield f"{where}: {printable(texts[1])} is not read; give what it sets with --set"
    elif texts[0] == "eval" and any(word.unknown or is_command(word.text) for word in words):
        yield f"{where}: what eval runs is not read; import that command by itself"
    elif texts[0].startswith("EnvironmentFile="):
        name = texts[0].partition("=")[2].removeprefix("-")
        yield f"{where}: EnvironmentFile {printable(name)} is not read; give what it sets with --set"
    elif texts[0] in _APPLYING and not _VERBS.isdisjoint(texts):
        for option, name in pairwise(texts):
            if option in _FILE_OPTIONS and name != "-":
                yield f"{where}: {printable(name)} is not read; import it by itself"


def _reading_shell(command: Command) -> Word | None:
    """The shell that a command starts without a script, so that it runs what it reads."""
    words = list(dropwhile(lambda word: word.text in _CALLING or "=" in word.text, command.run))
    if not words or not is_shell(words[0].text):
        return None
    texts = [word.text for word in words[1:]]
    options = list(takewhile(lambda text: text.startswith("-"), texts))
    letters = "".join(text for text in options if not text.startswith("--"))
    reads = "c" not in letters and ("s" in letters or len(options) == len(texts))
    return words[0] if reads else None


def unread_in_service(service: Table) -> Iterator[str]:
    """Remarks on what a service of Docker Compose takes from elsewhere."""
    for scalar in _env_files(service.values.get("env_file")):
        yield f"env_file {printable(scalar.text)} is not read; give what it sets with --set"
    extended = service.values.get("extends")
    if isinstance(extended, Scalar):
        yield f"extends {printable(extended.text)} is not followed; what that service sets is missing"
    elif isinstance(extended, Table):
        name, file = text_at(extended, "service") or "", text_at(extended, "file")
        of_file = f" of {printable(file)}" if file else ""
        yield f"extends {printable(name)}{of_file} is not followed; what that service sets is missing"


def unread_in_compose(root: Table) -> Iterator[str]:
    """Remarks on the other files that a file of Docker Compose is made of."""
    included = root.values.get("include")
    for item in texts_of(included):
        yield f"include {printable(item.text)} is not read; import it by itself"
    for entry in included.items if isinstance(included, Items) else ():
        for path in texts_of(entry.values.get("path") if isinstance(entry, Table) else None):
            yield f"include {printable(path.text)} is not read; import it by itself"


def _env_files(node: Node | None) -> Iterator[Scalar]:
    yield from texts_of(node)
    for item in node.items if isinstance(node, Items) else ():
        if isinstance(item, Table) and isinstance(named := item.values.get("path"), Scalar):
            yield named
