"""The corpus of command lines and manifests, for every test that goes through all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from planner.importers.imported import Completion, Imported
from planner.importers.source import import_text

CORPUS = Path(__file__).resolve().parents[2] / "data" / "corpus"
OPTIONS: dict[str, Any] = json.loads((CORPUS / "options.json").read_text())
BESIDE = (".expected.yaml", ".refused.txt", ".settings.yaml")
SOURCES = sorted(path for path in CORPUS.glob("*/*") if path.is_file() and not path.name.endswith(BESIDE))


def case_name(source: Path) -> str:
    """The name of a source within the corpus."""
    return source.relative_to(CORPUS).as_posix()


def beside(source: Path, suffix: str) -> Path:
    """The file that belongs to a source."""
    return source.with_name(source.name.partition(".")[0] + suffix)


def import_case(source: Path) -> Imported:
    """The import of a source with the options that it needs; nothing on this machine has a say."""
    options = OPTIONS.get(case_name(source), {})
    completion = Completion(
        env={"HF_HOME": "/nonexistent"}, folder=source.parent, values=options.get("values", {})
    )
    return import_text(source.read_text(), completion, path=source.name, name=options.get("name"))


ACCEPTED = [source for source in SOURCES if beside(source, ".expected.yaml").exists()]
REFUSED = [source for source in SOURCES if beside(source, ".refused.txt").exists()]
