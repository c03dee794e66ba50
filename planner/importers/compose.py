"""Containers of Docker Compose files.

Source: the services of the Compose specification, its interpolation, and its forms of commands.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

from planner.documents.tree import Items, Node, Scalar, Table
from planner.errors import DocumentError
from planner.importers.containers import Container, Source
from planner.importers.nodes import text_at, texts_of
from planner.importers.unread import unread_in_service
from planner.importers.words import Word, hole, scalar_word, word_of

_VARIABLE = re.compile(r"\$(?:(\$)|\{(\w+)([^}]*)\}|([A-Za-z_]\w*))")
_DEFAULT = re.compile(r":?[-?].*", re.DOTALL)


def compose_containers(
    root: Table, source: Source, path: str | None, given: Mapping[str, str]
) -> Iterator[Container]:
    """The services of a Compose file; ``given`` are values that the user says.

    Raises:
        DocumentError: a command has a quote that is never closed.
    """
    services = root.values.get("services")
    for name, service in services.values.items() if isinstance(services, Table) else ():
        if isinstance(service, Table):
            yield _container(name, service, source, path, given)


def _container(
    name: str, service: Table, source: Source, path: str | None, given: Mapping[str, str]
) -> Container:
    entrypoint = service.values.get("entrypoint")
    line, column = service.place or (None, None)
    return Container(
        name=name,
        title=name,
        image=_interpolated(text_at(service, "image") or "", given),
        # An empty entrypoint takes away the image's own.
        entrypoint=None if entrypoint is None else _words(entrypoint, source, path, given),
        arguments=_words(service.values.get("command"), source, path, given),
        env=dict(_environment(service.values.get("environment"), given)),
        place=Word("", line, column),
        files=dict(_configs(service)),
        remarks=tuple(unread_in_service(service)),
    )


def _configs(service: Table) -> Iterator[tuple[str, str]]:
    """The texts of configs that a service itself holds; others stand at the top of the file."""
    node = service.values.get("configs")
    for item in node.items if isinstance(node, Items) else ():
        target, content = (
            text_at(item, key) if isinstance(item, Table) else None for key in ("target", "content")
        )
        if target and content:
            yield target, content


def _words(node: Node | None, source: Source, path: str | None, given: Mapping[str, str]) -> tuple[Word, ...]:
    """The words of a command: those of a list as they are, those of a string as a shell cuts it."""
    if not isinstance(node, Scalar):
        return tuple(scalar_word(scalar, _interpolated(scalar.text, given)) for scalar in texts_of(node))
    text = _interpolated(node.text, given).replace("\\\n", " ")
    scalar = scalar_word(node, "")
    try:
        words = shlex.split(text)
    except ValueError:
        raise DocumentError(
            "a quote in the command is never closed", path=path, line=scalar.line, column=scalar.column
        ) from None
    return source.words([word_of(word, None, None) for word in words], scalar)


def _environment(node: Node | None, given: Mapping[str, str]) -> Iterator[tuple[str, Word]]:
    """The environment of a service, a list of ``NAME=VALUE`` or a mapping; a name alone has no value here."""
    pairs: list[tuple[str, str | None, Scalar]] = []
    if isinstance(node, Table):
        for name, value in node.values.items():
            scalar = value if isinstance(value, Scalar) else Scalar("", plain=True, place=node.keys[name])
            is_set = bool(scalar.text) or not scalar.plain
            pairs.append((name, scalar.text if is_set else None, scalar))
    else:
        for scalar in texts_of(node):
            name, equals, text = scalar.text.partition("=")
            pairs.append((name, text if equals else None, scalar))
    for name, written, scalar in pairs:
        known = hole(f"${name}") if written is None else _interpolated(written, given)
        yield name, scalar_word(scalar, given.get(name, known))


def _interpolated(text: str, given: Mapping[str, str]) -> str:
    """``text`` with its variables, each of which is a hole where the user does not say its value."""

    def value(match: re.Match[str]) -> str:
        escaped, braced, rest, plain = match.groups()
        if escaped:
            return "$"
        name = braced or plain
        is_plain = not rest or _DEFAULT.fullmatch(rest) is not None
        return given[name] if is_plain and name in given else hole(f"${name}")

    return _VARIABLE.sub(value, text)
