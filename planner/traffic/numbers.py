"""Numbers and times in rows of text; each is bounded, so that no later arithmetic overflows."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from planner.describe import range_fault
from planner.documents.tree import shown
from planner.traffic.lines import RowError

MAX_COUNT = 10**15
MAX_TOKENS = 10**7
"""Of one request or batch; the longest contexts of today have a tenth of it."""

MAX_SECONDS = 9 * 10**9
"""In the year 2255, counted from 1970."""

NANOSECONDS = 10**9

MOST_DIGITS = 100
"""Python makes no number of thousands of digits; one that is cut to these is as far out of range."""

# pandas writes whole numbers with a point where a column misses one of them.
_WHOLE = re.compile(r"([+-]?[0-9]+)(?:\.0*)?", re.ASCII)
_DECIMAL = re.compile(r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?", re.ASCII)
_DATE_TIME = re.compile(
    r"(\d{4}-\d{2}-\d{2})[ T](\d{2}:\d{2}:\d{2})(?:\.(\d{1,12}))? ?(Z|[+-]\d{2}:?\d{2})?", re.ASCII
)


def whole(name: str, text: str, least: int, most: int) -> int:
    """The whole number that ``text`` is.

    Raises:
        RowError: it is none, or out of range.
    """
    found = _WHOLE.fullmatch(text)
    if found is None:
        raise RowError(f"{name}: expected a whole number, found {described(text)}")
    return within(name, int(found[1][:MOST_DIGITS]), least, most)


def within(name: str, value: int, least: int, most: int) -> int:
    """``value`` where it is in range.

    Raises:
        RowError: it is not.
    """
    if fault := range_fault(value, least, most):
        raise RowError(f"{name}: {fault}")
    return value


def seconds(name: str, text: str) -> int:
    """The nanoseconds of a number of seconds.

    Raises:
        RowError: it is none, or out of range.
    """
    if not _DECIMAL.fullmatch(text):
        raise RowError(f"{name}: expected seconds, found {described(text)}")
    return nanoseconds(name, float(text), NANOSECONDS)


def nanoseconds(name: str, value: float, unit: int) -> int:
    """The nanoseconds of ``value`` times ``unit`` nanoseconds.

    Raises:
        RowError: it is out of range.
    """
    most = MAX_SECONDS * NANOSECONDS // unit
    if not 0 <= value <= most:
        raise RowError(f"{name}: expected a number from 0 to {most}, found {shown(str(value))}")
    return round(value * unit)


def date_time(name: str, text: str) -> int:
    """The nanoseconds since 1970 of a date and time, in UTC where no offset stands behind it.

    Raises:
        RowError: it is none, or out of range.
    """
    found = _DATE_TIME.fullmatch(text)
    if found is None:
        raise RowError(f"{name}: expected a time such as 2023-11-16 18:15:46.68, found {described(text)}")
    date, time, fraction, offset = found.groups()
    try:
        zone = "+00:00" if offset in (None, "Z") else offset
        moment = datetime.fromisoformat(f"{date}T{time}{zone}")
    except ValueError:
        raise RowError(f"{name}: there is no time {shown(text)}") from None
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    whole_seconds = within(name, since.days * 86_400 + since.seconds, 0, MAX_SECONDS)
    return whole_seconds * NANOSECONDS + int((fraction or "")[:9].ljust(9, "0"))


def described(text: str) -> str:
    """What a message says that it found."""
    return shown(text) if text else "nothing"
