"""Reading Deployments and Plans: the one entrance for files, text and Python mappings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import evolve, fields

from planner.documents.deployment import API_VERSION, Deployment
from planner.documents.hf_config import with_configs
from planner.documents.plan import Plan
from planner.documents.scalars import is_null, to_str
from planner.documents.sources import Document, Source, read_source
from planner.documents.structure import structure
from planner.documents.traffic import with_traffic
from planner.documents.tree import Node, NodeError, Table, described, shown, under
from planner.engines.shared import engine_faults
from planner.errors import ArgumentError, GraphplanError
from planner.modes import Runner

DEPLOYMENT = Deployment.__name__
PLAN = Plan.__name__


def load_deployment(source: Source, *, path: str | None = None) -> Deployment:
    """The Deployment in ``source``: a Path or one-line string is a file, other text is YAML.

    ``path`` is the name of the source in messages, by default its own.

    Raises:
        ArgumentError: ``source`` is a document already.
        DocumentError: the source cannot be read or is no valid Deployment.
    """
    if isinstance(source, Deployment | Plan):
        raise _loaded("load_deployment", source, Plan="its Deployment is plan.deployment")
    document = read_source(source, path=path)
    with _named(document):
        _expect_kind(document.root, DEPLOYMENT)
        return _deployment(document)


def load_plan(source: Source, *, path: str | None = None) -> Plan:
    """The Plan in ``source``, which is as for ``load_deployment``.

    Raises:
        ArgumentError: ``source`` is a document already.
        DocumentError: the source cannot be read or is no valid Plan.
    """
    if isinstance(source, Deployment | Plan):
        raise _loaded("load_plan", source, Deployment="compile_plan makes a plan of it")
    document = read_source(source, path=path)
    with _named(document):
        _expect_kind(document.root, PLAN)
        return _plan(document)


def load_document(source: Source, *, path: str | None = None) -> Deployment | Plan:
    """The Deployment or Plan in ``source``, whichever its ``kind`` says.

    Raises:
        ArgumentError: ``source`` is a document already.
        DocumentError: the source cannot be read or is no valid document.
    """
    if isinstance(source, Deployment | Plan):
        raise _loaded("load_document", source)
    document = read_source(source, path=path)
    with _named(document):
        return _plan(document) if _kind(document.root) == PLAN else _deployment(document)


def _loaded(function: str, document: Deployment | Plan, **instead: str) -> ArgumentError:
    """The error of a loader that is given what loaders return."""
    kind = type(document).__name__
    hint = instead.get(kind, "use it as it is")
    return ArgumentError(f"{function} takes a path, YAML text or a mapping; this is a {kind} already: {hint}")


@contextmanager
def _named(document: Document) -> Iterator[None]:
    try:
        yield
    except NodeError as error:
        raise error.in_document(document.name) from None


def _kind(root: Node) -> str:
    """The kind of a document whose version and kind are known."""
    if not isinstance(root, Table):
        raise NodeError(
            f"expected a mapping that begins with apiVersion and kind, found {described(root)}", root.place
        )
    if (version := _header(root, "apiVersion", API_VERSION)) != API_VERSION:
        message = f"{shown(version)} is not a version that this program reads; it reads {API_VERSION}"
        raise _header_error(root, "apiVersion", message)
    kind = _header(root, "kind", f"{DEPLOYMENT} or {PLAN}")
    if kind not in (DEPLOYMENT, PLAN):
        raise _header_error(
            root, "kind", f"{shown(kind)} is no kind of document; write {DEPLOYMENT} or {PLAN}"
        )
    return kind


def _expect_kind(root: Node, expected: str) -> None:
    kind = _kind(root)
    if kind != expected and isinstance(root, Table):
        raise _header_error(root, "kind", f"this is a {kind}, where a {expected} is expected")


def _header(root: Table, key: str, example: str) -> str:
    value = root.values.get(key)
    if value is None or is_null(value):
        raise NodeError(f"the key {key} is missing; begin the document with {key}: {example}", root.place)
    with under(key):
        return to_str(value)


def _header_error(root: Table, key: str, message: str) -> NodeError:
    error = NodeError(message, root.values[key].place)
    error.keys.append(key)
    return error


def _refuse_mislabelled(root: Table, kind: str) -> None:
    """Refuse a document of one kind under the name of the other: every one of its keys would be unknown."""
    keys, classes = root.values.keys() - {"apiVersion", "kind"}, {DEPLOYMENT: Deployment, PLAN: Plan}
    known = {name: {field.name for field in fields(cls)} for name, cls in classes.items()}
    other = DEPLOYMENT if kind == PLAN else PLAN
    foreign = [key for key in root.values if key in keys & known[other] - known[kind]]
    if foreign and not keys & known[kind] - known[other]:
        words = f"{', '.join(foreign)} {'is a key' if len(foreign) == 1 else 'are keys'}"
        raise _header_error(
            root, "kind", f"this says {kind}, but {words} of a {other}; write kind: {other} if it is one"
        )


def _body(document: Document, kind: str) -> Table:
    """The document, which says that it is a ``kind``, without its header."""
    root = document.root
    if not isinstance(root, Table):
        raise NodeError(f"expected a mapping, found {described(root)}", root.place)
    _refuse_mislabelled(root, kind)
    values = {key: value for key, value in root.values.items() if key not in ("apiVersion", "kind")}
    return Table(values, root.keys, root.place)


def _deployment(document: Document) -> Deployment:
    body = with_configs(_body(document, DEPLOYMENT), document.folder)
    deployment = structure(body, Deployment)
    _refuse_settings_of_other_engines(body, deployment)
    return _with_traffic(body, deployment, document.folder)


def _with_traffic(body: Table, deployment: Deployment, folder: Path) -> Deployment:
    """``deployment`` with the traffic that it is planned for."""
    capture = body.values.get("capture")
    if not isinstance(capture, Table) or "traffic" not in capture.values:
        return deployment
    with under("capture"), under("traffic"):
        try:
            return with_traffic(deployment, folder)
        except GraphplanError as error:
            raise NodeError(str(error), capture.values["traffic"].place) from None


def _plan(document: Document) -> Plan:
    body = _body(document, PLAN)
    deployment = body.values.get("deployment")
    if isinstance(deployment, Table):
        with under("deployment"):
            body.values["deployment"] = with_configs(deployment, document.folder)
    plan = structure(body, Plan)
    if isinstance(deployment, Table):
        with under("deployment"):
            _refuse_settings_of_other_engines(deployment, plan.deployment)
    return _with_lora_families(plan)


def _refuse_settings_of_other_engines(body: Table, deployment: Deployment) -> None:
    """Refuse what the deployment's engine has no name for, as a key that nobody knows is refused."""
    for fault in engine_faults(deployment):
        section, _, key = fault.path.partition(".")
        table, name = (body.values[section], key) if key else (body, section)
        if not isinstance(table, Table):
            raise TypeError(f"{section} was read from no mapping")
        error = NodeError(fault.message, table.values[name].place if fault.of_value else table.keys[name])
        error.keys.extend(reversed(fault.path.split(".")))
        raise error


def _with_lora_families(plan: Plan) -> Plan:
    """``plan`` with the entries of its LoRA families marked as such; V1's need no mark."""
    graphs = {
        family: tuple(entry.in_lora_family() for entry in entries) if _has_lora(plan, family) else entries
        for family, entries in plan.graphs.items()
    }
    return evolve(plan, graphs=graphs)


def _has_lora(plan: Plan, family: str) -> bool:
    resolved = plan.resolved.get(family)
    if resolved is not None and resolved.runner is Runner.V1:
        return False
    if any(entry.num_active_loras > 0 for entry in plan.graphs[family]):
        return True
    # A draft of a deployment with LoRA has none: what was resolved for the family itself decides.
    if resolved is not None:
        return any(case > 0 for case in resolved.lora_cases)
    return plan.deployment.lora is not None
