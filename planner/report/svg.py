"""Drawings for a page: charts of matplotlib as SVG elements that take their colours from the page.

matplotlib writes colours as hexadecimal numbers. Every role of a colour has a number of its own here,
which becomes a CSS variable, so that one drawing is right in light and in dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from attrs import frozen

from planner.errors import MachineError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROLES = (
    *("ink", "faint", "grid", "paper"),
    *("full", "full-2", "pieces", "pieces-2", "eager"),
    *("first", "second", "default", "traffic"),
    *("part-1", "part-2", "part-3", "part-4"),
)
"""What colours are for; the page's style sheet has a variable of each name."""

WIDTH, POINTS_PER_INCH = 480, 72
"""Width of a drawing in its own units, in which letters are 12 high: it is legible on a phone, too."""

INSTALL = "pip install 'graphplan[report]'"

STYLE = {
    "svg.fonttype": "none",  # letters stay text: searchable, and in the reader's font
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.6,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "hatch.linewidth": 1.2,
    "legend.frameon": False,
    "legend.fontsize": 11,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "figure.dpi": POINTS_PER_INCH,
}

_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_ROLE = re.compile(r"fe([0-9a-f]{4})")
_REFERENCE = re.compile(r"#([A-Za-z][\w.-]*)")
_FONT = re.compile(r"font-family: [^;]*;? ?")


def color(role: str) -> str:
    """The colour that stands for ``role`` until the drawing is written."""
    return f"#fe{ROLES.index(role):04x}"


@contextmanager
def figure(height: float, *, name: str) -> Iterator[Figure]:
    """An empty figure of ``height``; ``name`` makes the same drawing the same bytes.

    Raises:
        MachineError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib import style
        from matplotlib.figure import Figure
    except ImportError:
        raise MachineError(f"a report needs matplotlib, which is not installed: {INSTALL}") from None
    inks = {
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), "ink"),
        **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), "faint"),
        "grid.color": "grid",
    }
    colors = {key: color(role) for key, role in inks.items()}
    settings: dict[Any, Any] = {**STYLE, **colors, "svg.hashsalt": name}
    # What the machine's own matplotlibrc says would make other bytes.
    with (
        style.context("default", after_reset=True),
        mpl.rc_context(settings),
    ):
        yield Figure(figsize=(WIDTH / POINTS_PER_INCH, height / POINTS_PER_INCH), layout="constrained")


@frozen(kw_only=True)
class Drawing:
    """A chart in a page. ``name`` is unlike that of every other one there.

    ``title`` and ``description`` are for who does not see it, and say the same as it does.
    """

    name: str
    title: str
    description: str
    svg: str


def drawn(
    figure: Figure, *, name: str, title: str, description: str, hints: Mapping[str, str] | None = None
) -> Drawing:
    """``figure`` as an element of HTML; ``hints`` are what shows over its parts, by their ``gid``."""
    written = io.BytesIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(written, format="svg", metadata=nothing)
    root = ET.fromstring(written.getvalue())  # noqa: S314 - matplotlib wrote it just now
    _strip(root, name, hints or {})
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-labelledby": f"{name}-title {name}-desc",
    }
    root.insert(0, _told("desc", f"{name}-desc", description))
    root.insert(0, _told("title", f"{name}-title", title))
    return Drawing(name=name, title=title, description=description, svg=ET.tostring(root, encoding="unicode"))


def _told(tag: str, identity: str, text: str) -> ET.Element:
    element = ET.Element(tag, {"id": identity})
    element.text = text
    return element


def _strip(root: ET.Element, name: str, hints: Mapping[str, str]) -> None:
    """Leaves what HTML needs: no namespaces, no fonts, ids only where referred to, colours by role."""
    elements = list(root.iter())
    used = {
        found
        for element in elements
        for value in element.attrib.values()
        for found in _REFERENCE.findall(value)
    }
    for element in elements:
        for child in [one for one in element if one.tag in (f"{_SVG}metadata", f"{_SVG}style")]:
            element.remove(child)
        element.tag = element.tag.removeprefix(_SVG)
        element.tail = None
        identity = element.attrib.pop("id", None)
        attributes = {
            "href" if key == _LINK else key: _themed(value, name) for key, value in element.attrib.items()
        }
        if identity in used:
            attributes["id"] = f"{name}-{identity}"
        element.attrib = attributes
        if element.text is not None and not element.text.strip():
            element.text = None
        if identity is not None and identity in hints:
            hint = ET.Element("title")
            hint.text = hints[identity]
            element.insert(0, hint)


def _themed(value: str, name: str) -> str:
    value = " ".join(_FONT.sub("", value).split())
    return (
        _REFERENCE.sub(lambda found: _role(found[1]) or f"#{name}-{found[1]}", value)
        if "#" in value
        else value
    )


def _role(number: str) -> str | None:
    """``var(--full)`` for the number of that colour."""
    found = _ROLE.fullmatch(number)
    return f"var(--{ROLES[int(found[1], 16)]})" if found is not None else None
