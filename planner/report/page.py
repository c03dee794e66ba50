"""Writing a page: one HTML file without scripts, which fetches nothing and takes any text for text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner.documents.plan import Plan
from planner.documents.tree import printable
from planner.errors import MachineError
from planner.report.svg import INSTALL
from planner.report.view import Source, View, view_of
from planner.traffic.histogram import Histogram

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATE = "report.html"

GENERATOR = '<meta name="generator" content="graphplan report">'
"""What every page has in it."""


def report(
    plan: Plan,
    *,
    against: Plan | None = None,
    histogram: Histogram | None = None,
    name: str = "plan",
    against_name: str = "other plan",
) -> str:
    """A page about ``plan``, beside the plan ``against`` where that is given.

    ``histogram`` is a traffic that the padding is weighed by; ``name`` and ``against_name`` are where the
    plans come from. Equal plans give equal bytes.

    Raises:
        MachineError: the packages of the extra ``report`` are not installed.
    """
    environment = _environment()
    other = None if against is None else Source(plan=against, name=against_name)
    return _written(environment, view_of(Source(plan=plan, name=name), other, histogram))


def _written(environment: Environment, view: View) -> str:
    return environment.get_template(TEMPLATE).render(view=view, generator=GENERATOR) + "\n"


def _environment() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise MachineError(f"a report needs Jinja2, which is not installed: {INSTALL}") from None
    return Environment(
        loader=PackageLoader("planner.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _shown(value: Any) -> Any:
    """Text as it can stand in a page: none of a stranger's characters turns it around or breaks it."""
    return printable(value) if type(value) is str else value
