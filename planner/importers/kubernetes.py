"""Containers of Kubernetes manifests, of whatever kind of resource they are part.

Any mapping with a command, arguments or an image counts as a container, so that resources which are
made of pods under names of their own (LeaderWorkerSet, InferenceService) need no list of kinds.
Source: the fields of a Container in the API of Kubernetes v1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from planner.documents.tree import Items, Node, Scalar, Table, printable
from planner.importers.containers import Container
from planner.importers.nodes import tables_under, text_at, texts_of
from planner.importers.words import Word, hole, scalar_word

_SKIPPED = frozenset(
    {"initContainers", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "metadata", "status"}
)
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][\w.-]*)\)")


def kubernetes_containers(roots: Sequence[Node], given: Mapping[str, str]) -> Iterator[Container]:
    """The containers of all ``roots``, the documents of a manifest; ``given`` are values the user says."""
    files = _config_maps(roots)
    for root in roots:
        for table, above, key in tables_under(root, _SKIPPED.__contains__):
            if not {"command", "args", "image"}.isdisjoint(table.values):
                yield _container(table, above, key, given, files)


def _config_maps(roots: Sequence[Node]) -> dict[str, str]:
    """The texts of all ConfigMaps by their keys, which are names of files where a pod mounts them."""
    return {
        key: value.text
        for root in roots
        if isinstance(root, Table) and text_at(root, "kind") == "ConfigMap"
        for key, value in _entries(root.values.get("data"))
        if isinstance(value, Scalar)
    }


def _entries(node: Node | None) -> Iterator[tuple[str, Node]]:
    yield from node.values.items() if isinstance(node, Table) else ()


def _container(
    table: Table,
    above: Sequence[Table],
    key: str,
    given: Mapping[str, str],
    files: Mapping[str, str],
) -> Container:
    env, unread = _environment(table, given)
    command, args = (
        [
            scalar_word(scalar, _expanded(scalar.text, env, given))
            for scalar in texts_of(table.values.get(name))
        ]
        for name in ("command", "args")
    )
    owner = next((owner for owner in reversed(above) if text_at(owner, "metadata", "name")), None)
    title = text_at(owner, "metadata", "name") if owner else None
    kind = text_at(owner, "kind") if owner else None
    parts = (kind.lower() if kind else None, title, text_at(table, "name") or key)
    line, column = (table.place) or (None, None)
    return Container(
        name="/".join(PurePosixPath(part).name for part in parts if part),
        title=title,
        image=text_at(table, "image") or "",
        entrypoint=tuple(command) or None,
        arguments=tuple(args),
        env=env,
        place=Word("", line, column),
        files=files,
        remarks=tuple(unread),
    )


def _environment(table: Table, given: Mapping[str, str]) -> tuple[dict[str, Word], list[str]]:
    """The environment of a container, and remarks on where it takes more from that is not read."""
    env: dict[str, Word] = {}
    node = table.values.get("env")
    for item in node.items if isinstance(node, Items) else ():
        name = text_at(item, "name") if isinstance(item, Table) else None
        if not isinstance(item, Table) or name is None:
            continue
        value = item.values.get("value")
        if name in given or "valueFrom" in item.values:
            text = given.get(name, hole(f"${name}"))
        else:
            text = _expanded(value.text, env, given) if isinstance(value, Scalar) else ""
        place = value if isinstance(value, Scalar) else Scalar("", plain=True, place=item.place)
        env[name] = scalar_word(place, text)
    return env, [f"envFrom {source} is not read; give what it sets with --set" for source in _sources(table)]


def _sources(table: Table) -> Iterator[str]:
    node = table.values.get("envFrom")
    for item in node.items if isinstance(node, Items) else ():
        for reference in ("configMapRef", "secretRef"):
            name = text_at(item, reference, "name") if isinstance(item, Table) else None
            if name:
                yield f"{reference} {printable(name)}"


def _expanded(text: str, env: Mapping[str, Word], given: Mapping[str, str]) -> str:
    """``text`` with its references ``$(NAME)``, each of which is a hole where it is not known."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return "$"
        if name in given:
            return given[name]
        known = env.get(name)
        return known.text if known is not None and not known.unknown else hole(f"${name}")

    return _REFERENCE.sub(value, text)
