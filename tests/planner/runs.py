"""The short notation of size lists in tests: ``1, 2, 4, 8..256/8``."""

from __future__ import annotations


def sizes(text: str) -> tuple[int, ...]:
    """The sizes that ``text`` stands for; ``a..b/s`` is a, a+s, … up to b inclusive."""
    found: list[int] = []
    for part in text.split(","):
        first, dots, rest = part.strip().partition("..")
        if not dots:
            found.append(int(first))
            continue
        last, step = rest.split("/")
        found.extend(range(int(first), int(last) + 1, int(step)))
    return tuple(found)
