"""What ``planner capture`` prints: a table for each family, and what the cache was good for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from planner.cli.blocks import Block, Row
from planner.cli.rebuilt import rebuilt_json, rebuilt_lines
from planner.describe import counted, label

if TYPE_CHECKING:
    from executor.capturing import FamilyOutcome, Outcome
    from executor.restart import Restart

MIB = 2**20

NAMED = 5
"""Entries that a message names before it counts the others."""


def summary(outcome: Outcome) -> Iterator[Block]:
    """A table for each family, and what the whole took."""
    for family in outcome.families:
        report = family.report
        yield Block(
            tuple(_rows(family)),
            title=f"{report.family} on {report.device}: {len(report.captured)} of {len(report.records)} "
            f"entries in {report.seconds:.2f} s, {report.num_bytes / MIB:.1f} MiB",
            numbers=frozenset({1, 2, 3, 4}),
        )
        if family.restart is not None:
            lines = (
                *_restart(family, family.restart),
                _order(family.restart),
                *rebuilt_lines(family),
            )
            yield Block(tuple(Row((line,)) for line in lines), title="restart")
    for name in outcome.left_out:
        yield Block((Row((f"{name}: not captured, as the reference models have no such family",)),))


def _restart(family: FamilyOutcome, restart: Restart) -> Iterator[str]:
    """What the cache was good for."""
    if not restart.is_warm:
        yield f"cold, {_why_cold(restart)}"
        return
    warm_ups = sum(made.num_warmups for made in family.report.records)
    loaded, left_out = family.preloaded.made, family.preloaded.left_out
    yield (
        f"warm: ready after {family.ready_seconds:.2f} s, {counted(loaded, 'call')} loaded kernels ahead"
        f"{f', {left_out} could not' if left_out else ''}; {counted(warm_ups, 'warm-up forward')}"
    )
    record = restart.record
    if record is not None and restart.num_bytes is not None:
        yield (
            f"the graphs take {restart.num_bytes / MIB:.1f} MiB by the record, so no trial capture "
            f"({record.seconds:.2f} s when it was cold) is needed to size the KV cache"
        )
    if family.differing:
        names = ", ".join(label(entry) for entry in family.differing[:NAMED])
        more = len(family.differing) - NAMED
        yield (
            f"warning: other graphs than the record has, in the same circumstances: {names}"
            f"{f' and {more} more' if more > 0 else ''}; something changed that no fingerprint shows"
        )


def _why_cold(restart: Restart) -> str:
    return "as the cache cannot be used" if restart.cache.is_cold else restart.reason


def _order(restart: Restart) -> str:
    """What decided the order of the graphs."""
    replays = sum(restart.usage.values())
    if not replays:
        return "no traffic is recorded, so the order is the plan's, and serving waits for all entries"
    used = sum(count > 0 for count in restart.usage.values())
    return (
        f"the most used graphs came first: {counted(replays, 'replay')} of {counted(used, 'graph')} on record"
    )


def _rows(family: FamilyOutcome) -> Iterator[Row]:
    verdicts = {verdict.entry: verdict for verdict in family.verdicts}
    yield Row(("", "ms", "KiB", "nodes", "error", ""))
    for made in family.report.records:
        name = label(made.entry)
        if made.error is not None:
            yield Row((name, "-", "-", "-", "-", f"{made.error}; {made.fix}"), style="error")
            continue
        verdict = verdicts.get(made.entry)
        measured = (f"{made.seconds * 1e3:.1f}", f"{made.num_bytes / 1024:.0f}", str(made.num_nodes or "-"))
        if verdict is None:
            yield Row((name, *measured, "-", ""))
        elif verdict.ok:
            yield Row((name, *measured, f"{verdict.error:.0e}", "restored" if made.restored else ""))
        else:
            why = "differs from eager" if verdict.repeats else "differs from its own second replay"
            yield Row((name, *measured, f"{verdict.error:.0e}", why), style="error")


def outcome_json(outcome: Outcome) -> Mapping[str, Any]:
    """Everything that was measured, as JSON has it."""
    families = []
    for family in outcome.families:
        found = dict(family.report.as_json())
        verdicts = {verdict.entry: verdict for verdict in family.verdicts}
        for made, entry in zip(family.report.records, found["entries"], strict=True):
            verdict = verdicts.get(made.entry)
            if verdict is not None:
                entry["verified"] = {"error": verdict.error, "repeats": verdict.repeats, "ok": verdict.ok}
        if family.restart is not None:
            found["restart"] = {
                "warm": family.restart.is_warm,
                "reason": family.restart.reason,
                "ready_seconds": family.ready_seconds,
                "recorded_replays": sum(family.restart.usage.values()),
                "preloaded_calls": family.preloaded.made,
                "recorded_bytes": family.restart.num_bytes,
                "differing": [label(entry) for entry in family.differing],
            }
        if family.rebuilding is not None:
            found["rebuilding"] = rebuilt_json(family)
        families.append(found)
    return {"ok": outcome.ok, "families": families, "left_out": list(outcome.left_out)}
