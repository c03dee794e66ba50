"""Where the ``config.json`` of a model lies, given the name under which it is served.

Nothing is downloaded. A name is a local folder, one of the models that are shipped with the planner,
or one in the local Hugging Face cache, in this order, so that a hub id gives the same plan everywhere
if it is a shipped one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from attrs import frozen

from planner.documents.sources import read_file, read_source
from planner.documents.tree import Scalar, Table, printable
from planner.errors import DocumentError

CONFIG_NAME = "config.json"
HUB_IDS = "hub-ids.yaml"
_HUB_ID = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
_REVISION = re.compile(r"[0-9a-f]{40}")
_REFERENCE = re.compile(r"[\w.-]{1,96}(?:/[\w.-]{1,96}){0,4}")
_MAX_REFERENCE = 1024
"""Longest file that names a commit, in bytes."""
_LOCAL = ("./", "../", "/", "~")

_PACKAGE = Path(__file__).resolve().parent.parent
_FOLDERS = (_PACKAGE / "shipped_models", _PACKAGE.parent / "plans" / "models")
"""In an installed package, and in a checkout."""


@frozen
class ModelConfig:
    """A config that was found, and a word on where."""

    path: Path
    origin: str


def find_model_config(model: str, env: Mapping[str, str], revision: str | None = None) -> ModelConfig | None:
    """The config of ``model``, a local folder or a hub id; ``None`` where there is none.

    ``env`` is the environment, for the place of the Hugging Face cache. ``revision`` is a branch, a tag
    or a commit of the hub's repository.

    Raises:
        DocumentError: a folder of that name has no ``config.json``, or a local path does not exist.
    """
    model = model.rstrip("/") or model
    found = _in_folder(model)
    if found is None and model.startswith(_LOCAL):
        _refuse_missing(model)
    return found or _shipped(model, revision) or _in_hub_cache(model, env, revision or "main")


def config_in(name: str) -> str:
    """The config that a user names: a file, or a folder that holds it."""
    try:
        return str(Path(name) / CONFIG_NAME) if Path(name).is_dir() else name
    except (OSError, ValueError):
        return name


def _refuse_missing(model: str) -> None:
    try:
        if _local(model).exists():
            return
    except (OSError, ValueError):
        pass
    raise DocumentError(
        "there is no such folder here; give the model's config.json with --model-config",
        path=printable(model),
    )


def _local(model: str) -> Path:
    """A local path as a shell would pass it on."""
    try:
        return Path(model).expanduser()
    except RuntimeError:
        return Path(model)


def _in_folder(model: str) -> ModelConfig | None:
    try:
        folder = _local(model)
        if not folder.is_dir():
            return None
        path = folder / CONFIG_NAME
        if path.is_file():
            return ModelConfig(path, f"read from {path}")
    except (OSError, ValueError):
        return None
    raise DocumentError(f"the folder has no {CONFIG_NAME}; give the file with --model-config", path=model)


def _shipped(model: str, revision: str | None) -> ModelConfig | None:
    folder = next((folder for folder in _FOLDERS if (folder / HUB_IDS).is_file()), None)
    name = shipped_models().get(model.casefold())
    if folder is None or name is None:
        return None
    aside = f", without regard to revision {printable(revision)}" if revision else ""
    return ModelConfig(folder / name / CONFIG_NAME, f"facts shipped for {model}{aside}")


@cache
def shipped_models() -> Mapping[str, str]:
    """The shipped folder of each hub id that one fits; ids are in lower case."""
    for folder in _FOLDERS:
        if (folder / HUB_IDS).is_file():
            table = read_source(folder / HUB_IDS).root
            return dict(_rows(table.values.items())) if isinstance(table, Table) else {}
    return {}


def _rows(items: Iterable[tuple[str, object]]) -> Iterable[tuple[str, str]]:
    return ((key.casefold(), node.text) for key, node in items if isinstance(node, Scalar))


def _in_hub_cache(model: str, env: Mapping[str, str], revision: str) -> ModelConfig | None:
    if not _HUB_ID.fullmatch(model) or not _REFERENCE.fullmatch(revision) or ".." in revision:
        return None
    home = env.get("HF_HOME") or str(Path(env.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    hub = Path(env.get("HF_HUB_CACHE") or str(Path(home) / "hub")).expanduser()
    repository = hub / f"models--{model.replace('/', '--')}"
    try:
        if not _REVISION.fullmatch(revision):
            revision = _first_line(repository / "refs" / revision)
        path = repository / "snapshots" / revision / CONFIG_NAME
        if _REVISION.fullmatch(revision) and path.is_file():
            return ModelConfig(path, f"Hugging Face cache, revision {revision[:12]}")
    except (DocumentError, OSError, ValueError):
        return None
    return None


def _first_line(path: Path) -> str:
    return read_file(path, max_bytes=_MAX_REFERENCE).decode("utf-8").strip()
