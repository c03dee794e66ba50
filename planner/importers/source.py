"""From a source that a user has - pasted line, script or manifest - to the one server that is meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeGuard

from attrs import evolve

from planner.documents.reader import read_foreign_yaml
from planner.documents.tree import Node, Table, printable
from planner.errors import DocumentError
from planner.importers.compose import compose_containers
from planner.importers.containers import Container, Source, launches_in_container
from planner.importers.detect import ENGINES, SGLANG, TENSORRT_LLM, VLLM, has_containers
from planner.importers.imported import Completion, Imported
from planner.importers.kubernetes import kubernetes_containers
from planner.importers.launches import Launch, launches_in_text, launches_of
from planner.importers.script import read_script
from planner.importers.unread import unread_in_compose, unread_in_script
from planner.importers.words import Word, unmarked

_HERE = re.compile(r"<<-?[ \t]*[\\\"']?\w")
"""A text that a script holds for a program to read."""

MAX_LISTED = 12
"""Servers that a message lists."""


def launches_in(text: str, path: str | None, values: Mapping[str, str]) -> list[Launch]:
    """Every start of a server in ``text``: a manifest of Kubernetes or Docker Compose, or a shell text.

    ``values`` are those of variables and substitutions that the text leaves open.

    Raises:
        DocumentError: the text cannot be read.
    """
    if _is_manifest(text, path):
        return launches_in_manifest(text, path, values)
    return launches_in_text(text, path, values)


def _is_manifest(text: str, path: str | None) -> bool:
    """Whether ``text`` is a manifest itself, and no script that holds one."""
    if not has_containers(text):
        return False
    if not _HERE.search(text):
        return True
    try:
        read_foreign_yaml(unmarked(text, path), path)
    except DocumentError:
        return False
    return True


def launches_in_manifest(text: str, path: str | None, values: Mapping[str, str]) -> list[Launch]:
    """Every start of a server in the containers of a manifest.

    Raises:
        DocumentError: it is no YAML, or a command in it cannot be read.
    """
    source = Source.of(text)
    containers = _containers(text, source, path, values)
    return [launch for item in containers for launch in launches_in_container(item, source, path, values)]


def _containers(text: str, source: Source, path: str | None, values: Mapping[str, str]) -> list[Container]:
    found: list[Container] = []
    roots = _roots(text, path)
    for root in roots:
        if _is_compose(root):
            found.extend(compose_containers(root, source, path, values))
    found.extend(kubernetes_containers([root for root in roots if not _is_compose(root)], values))
    return found


def _roots(text: str, path: str | None) -> list[Node]:
    try:
        return read_foreign_yaml(unmarked(text, path), path)
    except DocumentError as error:
        if "{{" in text and error.line is not None:
            error.message += "; a template has to be rendered first, such as by helm template"
        raise


def unread_in(text: str, path: str | None) -> list[str]:
    """Remarks on what a text without a server takes from elsewhere, where its servers may be.

    Raises:
        DocumentError: the text cannot be read.
    """
    if not _is_manifest(text, path):
        return list(unread_in_script(read_script(unmarked(text, path), path)))
    included = [
        remark for root in _roots(text, path) if _is_compose(root) for remark in unread_in_compose(root)
    ]
    containers = _containers(text, Source.of(text), path, {})
    return [*included, *(f"{item.name}: {remark}" for item in containers for remark in item.remarks)]


def _is_compose(root: Node) -> TypeGuard[Table]:
    return isinstance(root, Table) and isinstance(root.values.get("services"), Table)


def choose(
    launches: Sequence[Launch],
    engine: str | None,
    name: str | None,
    path: str | None,
    unread: Sequence[str] = (),
) -> Launch:
    """The one start that is meant.

    ``engine`` and ``name`` narrow them down; a name may be any part between slashes, if it is one's alone.
    ``unread`` are remarks on where else there may be servers.

    Raises:
        DocumentError: there is none or more than one.
    """
    fitting = [launch for launch in launches if engine in (None, launch.engine)]
    named = [launch for launch in fitting if name is None or name == launch.name]
    if name is not None and not named:
        named = [launch for launch in fitting if name in launch.name.split("/")]
    if len(named) == 1:
        return named[0]
    if not fitting:
        more = f"; {unread[0]}" if unread else ""
        raise DocumentError(_none_found(launches, engine) + more, path=path)
    if not named:
        raise DocumentError(f"no server is named {printable(name or '')}; {_listed(fitting)}", path=path)
    raise DocumentError(f"{len(named)} servers are found: {_listed(named)}; give one with --name", path=path)


def _none_found(launches: Sequence[Launch], engine: str | None) -> str:
    what = f"{engine} server" if engine else "server"
    if launches:
        others = ", ".join(dict.fromkeys(launch.engine for launch in launches))
        return f"no command that starts a {what} is found; it starts one of {others}"
    wanted = {VLLM: "vllm serve", SGLANG: "sglang serve", TENSORRT_LLM: "trtllm-serve"}
    commands = [wanted[name] for name in ENGINES if engine in (None, name)]
    return f"no command that starts a {what} is found, such as {' or '.join(commands)}"


def _listed(launches: Sequence[Launch]) -> str:
    names = [printable(launch.name) for launch in launches]
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more


def import_text(
    text: str,
    completion: Completion,
    *,
    path: str | None,
    engine: str | None = None,
    name: str | None = None,
) -> Imported:
    """The Deployment of the one server that ``text`` starts; ``engine`` and ``name`` choose among several.

    Raises:
        DocumentError: there is none or more than one, or a flag or value that the engine would refuse.
    """
    launches = launches_in(text, path, completion.values)
    unread = () if launches else unread_in(text, path)
    launch = choose(launches, engine, name, path, unread)
    return import_launch(launch, completion, path)


def import_words(words: Sequence[str], completion: Completion, *, engine: str | None = None) -> Imported:
    """The Deployment of a command that a shell has split into ``words`` already.

    Raises:
        DocumentError: it starts no server, or a flag or value that the engine would refuse.
    """
    command = [Word(text) for text in words]
    launches = list(launches_of(command, None, completion.values, {}))
    launch = choose(launches, engine, None, printable(words[0]))
    return import_launch(launch, completion, COMMANDS[launch.engine])


def import_config(file: Path, engine: str, completion: Completion) -> Imported:
    """The Deployment of a server that is started with nothing but the config file ``file``.

    Raises:
        DocumentError: the file cannot be read, or has a setting that the engine would refuse.
    """
    words = (Word("--config"), Word(file.name))
    launch = Launch(engine=engine, name="", words=words, where=Word(""))
    return import_launch(launch, evolve(completion, folder=file.parent), str(file))


COMMANDS: Mapping[str, str] = {VLLM: "vllm serve", SGLANG: "sglang serve", TENSORRT_LLM: "trtllm-serve"}
"""How messages call the command line of an engine that no file holds."""

Importer = Callable[[Launch, Completion, "str | None"], Imported]


def import_launch(launch: Launch, completion: Completion, path: str | None) -> Imported:
    """The Deployment of one start of a server.

    Raises:
        DocumentError: a flag or value that the engine would refuse. ``path`` is the source in messages.
    """
    return _importer(launch.engine)(launch, completion, path)


def _importer(engine: str) -> Importer:
    """The importer of an engine; the others are not loaded."""
    if engine == SGLANG:
        from planner.importers.sglang import import_sglang

        return import_sglang
    if engine == TENSORRT_LLM:
        from planner.importers.tensorrt_llm import import_tensorrt_llm

        return import_tensorrt_llm
    from planner.importers.vllm import import_vllm

    return import_vllm
