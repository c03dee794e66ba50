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

from planner.documents.sources import read_source
from planner.documents.tree import Scalar, Table
from planner.errors import DocumentError

CONFIG_NAME = "config.json"
HUB_IDS = "hub-ids.yaml"
_HUB_ID = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
_REVISION = re.compile(r"[0-9a-f]{40}")

_PACKAGE = Path(__file__).resolve().parent.parent
_FOLDERS = (_PACKAGE / "shipped_models", _PACKAGE.parent / "plans" / "models")
"""In an installed package, and in a checkout."""


@frozen
class ModelConfig:
    """A config that was found, and a word on where."""

    path: Path
    origin: str


def find_model_config(model: str, env: Mapping[str, str]) -> ModelConfig | None:
    """The config of ``model``, a local folder or a hub id; ``None`` where there is none.

    ``env`` is the environment, for the place of the Hugging Face cache.

    Raises:
        DocumentError: a folder of that name has no ``config.json``.
    """
    return _in_folder(model) or _shipped(model) or _in_hub_cache(model, env)


def _in_folder(model: str) -> ModelConfig | None:
    try:
        if not Path(model).is_dir():
            return None
        path = Path(model) / CONFIG_NAME
        if path.is_file():
            return ModelConfig(path, f"read from {path}")
    except (OSError, ValueError):
        return None
    raise DocumentError(f"the folder has no {CONFIG_NAME}; give the file with --model-config", path=model)


def _shipped(model: str) -> ModelConfig | None:
    folder = next((folder for folder in _FOLDERS if (folder / HUB_IDS).is_file()), None)
    name = shipped_models().get(model.casefold())
    if folder is None or name is None:
        return None
    return ModelConfig(folder / name / CONFIG_NAME, f"facts shipped for {model}")


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


def _in_hub_cache(model: str, env: Mapping[str, str]) -> ModelConfig | None:
    if not _HUB_ID.fullmatch(model):
        return None
    home = env.get("HF_HOME") or str(Path(env.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    hub = Path(env.get("HF_HUB_CACHE") or str(Path(home) / "hub")).expanduser()
    repository = hub / f"models--{model.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text(encoding="utf-8").strip()
        path = repository / "snapshots" / revision / CONFIG_NAME
        if _REVISION.fullmatch(revision) and path.is_file():
            return ModelConfig(path, f"Hugging Face cache, revision {revision[:12]}")
    except (OSError, ValueError):
        return None
    return None
