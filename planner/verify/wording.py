"""Plain words for ranges and LoRA cases, for the messages of findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

SHOWN_RANGES = 4
"""How many ranges a message names before it only counts the others."""


def joined(parts: Iterable[object], conjunction: str = "and") -> str:
    """``a, b and c``."""
    words = [str(part) for part in parts]
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {conjunction} {words[-1]}"


def span(first: int, last: int) -> str:
    """``33 to 128``, or one number alone."""
    return str(first) if first == last else f"{first} to {last}"


def span_of(first: int, last: int, noun: str) -> str:
    """``33 to 128 tokens``, ``1 token``."""
    return f"{span(first, last)} {noun}{'' if first == last == 1 else 's'}"


def spans_of(ranges: Iterable[tuple[int, int]], noun: str) -> str:
    """``1 to 4, 9 and 12 to 16 requests``; ranges that touch become one."""
    merged = merge(ranges)
    if len(merged) == 1:
        return span_of(*merged[0], noun)
    parts = [span(*one) for one in merged[:SHOWN_RANGES]]
    if len(merged) > SHOWN_RANGES:
        parts.append(f"{len(merged) - SHOWN_RANGES} more ranges up to {merged[-1][1]}")
    return f"{joined(parts)} {noun}s"


def merge(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """``ranges`` ascending, those that touch or overlap as one."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return merged


def of_cases(cases: Sequence[int]) -> str:
    """`` without LoRA or in LoRA case 4``, and nothing where all batches are meant."""
    words = ["without LoRA"] if 0 in cases else []
    if any(cases):
        words.append(f"in LoRA case {joined([case for case in cases if case], 'or')}")
    return f" {' or '.join(words)}" if words else ""
