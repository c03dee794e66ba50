"""The finding that the graphs do not fit on the device, with the largest setting that would."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from planner.documents.estimates import Estimate
from planner.documents.plan import TARGET, Finding, Plan, Severity
from planner.estimate.estimate import estimate
from planner.estimate.fit import USABLE_SHARE, Room, room_of

GIB = 2**30

DOES_NOT_FIT = "memory-does-not-fit"


def memory_found(plan: Plan, found: Estimate | None = None) -> Iterator[Finding]:
    """The finding that a server of ``plan`` runs out of memory, by ``found`` where an estimate is known."""
    room = room_of(plan)
    if room is None or not any(plan.graphs.values()):
        return
    by_formula = _graph_bytes(plan)
    needed = by_formula if found is None else found.memory_gib.expected * GIB
    if needed > room.for_graphs:
        yield Finding(
            severity=Severity.WARNING,
            code=DOES_NOT_FIT,
            message=_message(room, needed),
            fix=_fix(plan, room, needed / by_formula),
        )


def _graph_bytes(plan: Plan) -> float:
    return estimate(plan).memory_gib.expected * GIB


def _message(room: Room, graphs: float) -> str:
    cache = f"the KV cache of one request of {room.footprint.max_model_len} tokens"
    if room.num_kv_tokens is not None:
        cache = f"{room.num_kv_tokens} tokens of KV cache"
    return (
        f"graphs take about {_gib(graphs)}, weights {_gib(room.weights)}, the largest step "
        f"{_gib(room.step)} and {cache} {_gib(room.kv)}: more than the {_gib(room.usable)} that a server "
        f"uses of {_gib(room.memory)} ({USABLE_SHARE:.0%})"
    )


def _fix(plan: Plan, room: Room, factor: float) -> str:
    """The largest setting that fits: of capture sizes, else of the length of requests, else of the device.

    ``factor`` is how much more the graphs need than by formula.
    """
    sizes = sorted({entry.num_tokens for entry in plan.graphs.get(TARGET, ())})
    fitting, beyond = 0, len(sizes)  # the first so many sizes fit
    while fitting < beyond:
        middle = (fitting + beyond + 1) // 2
        if factor * _graph_bytes(_up_to(plan, sizes[middle - 1])) <= room.for_graphs:
            fitting = middle
        else:
            beyond = middle - 1
    if fitting:
        return f"max_cudagraph_capture_size: {sizes[fitting - 1]}"
    least = factor * _graph_bytes(_up_to(plan, sizes[0] if sizes else 0))
    spare = room.for_graphs + room.kv - least
    length = int(spare / room.kv * room.footprint.max_model_len) if room.num_kv_tokens is None else 0
    if length > 0:
        return f"model.max_model_len: {length}, and a smaller max_cudagraph_capture_size"
    lacking = (room.weights + room.step + room.kv) / USABLE_SHARE
    return f"a device of more than {_gib(lacking)}, or a larger tensor_parallel_size"


def _up_to(plan: Plan, size: int) -> Plan:
    """``plan`` without the entries above ``size`` tokens."""
    graphs = {
        family: tuple(entry for entry in entries if entry.num_tokens <= size)
        for family, entries in plan.graphs.items()
    }
    return evolve(plan, graphs=graphs)


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / GIB:.2f} GiB"
