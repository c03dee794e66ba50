"""What an import gives, and what it needs to be told beside the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from attrs import field, frozen

from planner.documents.deployment import Deployment
from planner.documents.plan import Finding


@frozen(kw_only=True)
class Imported:
    """A Deployment that was read off a command line.

    ``name`` is that of the server among others in its source. ``notes`` are remarks for the user;
    ``unused`` are the flags and environment variables that have no effect on planning. ``findings``
    belong into the plan beside its own. ``line`` is where the command begins, ``lines`` where each
    setting is given, by its dotted path; both are there for a source that has lines.
    """

    deployment: Deployment
    name: str = ""
    notes: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    line: int | None = None
    lines: Mapping[str, int] = field(factory=dict)


@frozen(kw_only=True)
class Completion:
    """What no command line says: files with the models' configs, and the device's name.

    ``env`` is the environment in which the planner runs, ``folder`` where the source's own files are
    looked for. ``values`` are those of variables and substitutions that the source leaves open.
    """

    model_config: str | None = None
    draft_config: str | None = None
    device: str | None = None
    env: Mapping[str, str] = field(factory=dict)
    folder: Path = field(factory=Path)
    values: Mapping[str, str] = field(factory=dict)
