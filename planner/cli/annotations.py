"""Findings as annotations of a GitHub workflow, which shows them beside the lines of a change.

Source: the workflow commands ``error``, ``warning`` and ``notice`` of GitHub Actions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from planner.documents.plan import Finding, Severity

LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def annotation(
    severity: str,
    message: str,
    *,
    file: str | None,
    line: int | None = None,
    column: int | None = None,
    title: str | None = None,
) -> str:
    """One line that a workflow prints to annotate a line of ``file``."""
    pairs = (("file", file), ("line", line), ("col", column), ("title", title))
    properties = ",".join(f"{key}={_property(str(value))}" for key, value in pairs if value is not None)
    return f"::{LEVELS[severity]}{' ' if properties else ''}{properties}::{_data(message)}\n"


def line_of(finding: Finding, lines: Mapping[str, int]) -> int | None:
    """The line that gives the setting which a finding is about, by its fix and else by its message.

    ``lines`` has the line of each setting by its dotted path.
    """
    for text in (finding.fix or "", finding.message):
        words = set(re.findall(r"[\w.]+", text))
        for path, line in lines.items():
            if path in words or path.rpartition(".")[2] in words:
                return line
    return None


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
