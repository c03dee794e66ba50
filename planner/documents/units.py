"""Units that people write behind numbers whose unit is fixed: what the number is in that one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

UNIT = "unit"
"""The key of a field's metadata that has the unit of its number."""

GIB, SECONDS, SHARE = "GiB", "seconds", "a share from 0 to 1"

_UNITS: Mapping[str, Mapping[str, float]] = {
    GIB: {
        "b": 2.0**-30,
        **{f"{letter}ib": 1024.0**power for power, letter in enumerate("kmgt", -2)},
        **{f"{letter}i": 1024.0**power for power, letter in enumerate("kmgt", -2)},
        **{letter: 1024.0**power for power, letter in enumerate("kmgt", -2)},
        **{f"{letter}b": 1000.0**power / 2**30 for power, letter in enumerate("kmgt", 1)},
    },
    SECONDS: {
        **dict.fromkeys(("ms", "msec"), 0.001),
        **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
        **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
        **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    },
    SHARE: {"%": 0.01, "percent": 0.01},
}
"""What each spelling is worth in a unit."""

_WITH_UNIT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) ?([a-z%]{1,10})", re.IGNORECASE | re.ASCII)


def in_unit(text: str, unit: str) -> str | None:
    """The number of ``unit`` that ``text``, a number and another unit, is; ``None`` where it is none."""
    found = _WITH_UNIT.fullmatch(text.strip())
    factor = _UNITS[unit].get(found[2].lower()) if found else None
    if found is None or factor is None:
        return None
    return f"{Decimal(f'{float(found[1]) * factor:.3g}'):f}"
