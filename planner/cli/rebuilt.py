"""What ``planner capture --materialize`` says of graphs that were rebuilt, and of those that were not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from planner.describe import label

if TYPE_CHECKING:
    from executor.capturing import FamilyOutcome
    from executor.materialize.warm import Rebuilt

MIB = 2**20


def rebuilt_lines(family: FamilyOutcome) -> Iterator[str]:
    """How many entries were rebuilt, how long it took, why others were captured, and what was kept."""
    rebuilt = family.rebuilding
    if rebuilt is None:
        return
    captured = sum(not made.restored for made in family.report.captured)
    why = f": {rebuilt.reason}" if rebuilt.reason else ""
    yield f"{_entries(rebuilt.num_restored)} restored, {captured} captured{why}"
    if rebuilt.times is not None:
        times = rebuilt.times
        yield (
            f"restoring took {1e3 * times.total:.0f} ms: memory {1e3 * times.memory:.0f}, kernels "
            f"{1e3 * times.kernels:.0f}, waiting {1e3 * times.waiting:.0f} for what runs beside: addresses "
            f"{1e3 * times.patching:.0f}, building {1e3 * times.building:.0f}, instantiating "
            f"{1e3 * times.instantiating:.0f}"
        )
    if rebuilt.dropped:
        yield (
            f"warning: {label(rebuilt.dropped[0])} replayed otherwise than eager after it was restored; "
            "all entries were captured anew and the file was replaced"
        )
    yield from _refused(family)
    yield from _saved(rebuilt)


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


def _refused(family: FamilyOutcome) -> Iterator[str]:
    reasons = Counter(made.refused for made in family.report.records if made.refused is not None)
    for reason, count in reasons.most_common():
        yield f"{_entries(count)} refused: {reason}"


def _saved(rebuilt: Rebuilt) -> Iterator[str]:
    if rebuilt.not_saved:
        yield f"warning: the graphs are not kept: {rebuilt.not_saved}"
    if rebuilt.saved is None:
        return
    saved = rebuilt.saved
    kept = saved.num_entries - len(saved.obstacles)
    yield f"{_entries(kept)} kept to be restored, {len(saved.content) / MIB:.1f} MiB"
    for reason, count in Counter(saved.obstacles.values()).most_common():
        yield f"{_entries(count)} not restorable: {reason}"


def rebuilt_json(family: FamilyOutcome) -> Mapping[str, Any] | None:
    """The same as JSON has it."""
    rebuilt = family.rebuilding
    if rebuilt is None:
        return None
    return {
        "restored": rebuilt.num_restored,
        "reason": rebuilt.reason or None,
        "seconds": None if rebuilt.times is None else rebuilt.times.as_json(),
        "dropped": [label(entry) for entry in rebuilt.dropped],
        "saved_bytes": None if rebuilt.saved is None else len(rebuilt.saved.content),
        "not_saved": rebuilt.not_saved or None,
    }
