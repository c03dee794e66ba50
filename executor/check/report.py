"""What the check finds: one record per fault and place, and the report over all of them."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from attrs import evolve, frozen

from executor.check.places import Place
from planner.documents.plan import Severity


@frozen
class _Rule:
    severity: str
    meaning: str
    fix: str


class Code(enum.Enum):
    """The kinds of faults, each with its severity, what it does to a capture, and what to do instead."""

    HOST_SYNC = _Rule(
        Severity.ERROR,
        "the host waits for a value of the device, which ends a capture",
        "keep the value in a tensor (torch.where, masked arithmetic), or compute it ahead of the forward "
        "and pass it in a static tensor",
    )
    DATA_DEPENDENT_SHAPE = _Rule(
        Severity.ERROR,
        "the shape of the result depends on data, so the host has to wait for it",
        "use an operation of fixed shape: torch.where with three arguments, masked_fill, nonzero_static, "
        "or repeat_interleave with output_size",
    )
    HOST_TO_DEVICE = _Rule(
        Severity.ERROR,
        "memory of the host is copied to the device, which ends a capture or repeats the captured value",
        "make the tensor once ahead of the capture and refill it with copy_ before each replay; for a "
        "constant use torch.full or torch.arange with device=",
    )
    HOST_TENSOR = _Rule(
        Severity.ERROR,
        "a tensor of the host meets tensors of the device, which fails on a GPU",
        "name the device where the tensor is made (device=x.device)",
    )
    HOST_ALLOCATION = _Rule(
        Severity.ERROR,
        "pinned memory of the host is allocated, which ends a capture or is given to others before a replay",
        "allocate pinned buffers once, ahead of the capture",
    )
    OWN_GENERATOR = _Rule(
        Severity.ERROR,
        "a random generator of the model's own is unknown to the graph",
        "register it ahead of the capture (CUDAGraph.register_generator_state), or use the default generator",
    )
    SEEDED = _Rule(
        Severity.ERROR,
        "a generator is seeded by the host, which a replay does not repeat",
        "seed ahead of the replay, outside of the forward",
    )
    BAKED_VALUE = _Rule(
        Severity.ERROR,
        "a Python value changes between calls; a graph repeats the captured one for ever",
        "hold the value in a static tensor and update it ahead of each replay",
    )
    CHANGING_OPERATIONS = _Rule(
        Severity.ERROR,
        "two calls run different operations; a graph repeats those of the captured call",
        "take the decision out of the forward, or capture one graph for each case",
    )
    CHANGING_SHAPE = _Rule(
        Severity.ERROR,
        "an input has another shape, type or layout at the next call",
        "pad the input into a static tensor of the entry's size",
    )
    MOVED_TENSOR = _Rule(
        Severity.ERROR,
        "a tensor that the graph reads or writes lies at another address at the next call",
        "keep one tensor and write new contents into it (copy_)",
    )
    REBOUND_TENSOR = _Rule(
        Severity.ERROR,
        "made in one call and read in the next; a replay reads the address of the captured call",
        "keep one static tensor and write into it (copy_, index_copy_) instead of binding a new one",
    )
    MOVED_OUTPUT = _Rule(
        Severity.ERROR,
        "the result should lie in a static tensor and does not",
        "write the result into the static tensor (copy_, out=) and return that one",
    )
    KEPT_TENSOR = _Rule(
        Severity.WARNING,
        "outlives the forward in memory of the pool, which the next replay of any graph overwrites",
        "return it, or copy it into a static tensor that was made ahead of the capture",
    )
    AUTOGRAD = _Rule(
        Severity.WARNING,
        "autograd is on and keeps intermediate results alive",
        "run the forward under torch.no_grad()",
    )
    RANDOM = _Rule(
        Severity.INFO,
        "draws from the default generator, whose state a graph advances by itself",
        "nothing to do, unless the draw should not happen in serving (model.eval())",
    )
    RAISES = _Rule(
        Severity.ERROR,
        "the forward raises, so the rest of it was not checked",
        "make the forward run eagerly first",
    )

    @property
    def code(self) -> str:
        """As it is printed: ``host-sync``."""
        return self.name.lower().replace("_", "-")


@frozen(kw_only=True)
class CaptureFault:
    """What would break or poison a capture, and the line of the model's code that does it.

    ``count`` is the largest number of times that one call of a forward does it. ``entries`` names the
    graphs that it concerns, where a manager's factory was checked.
    """

    code: str
    severity: str
    message: str
    file: str
    line: int
    function: str
    fix: str
    count: int = 1
    entries: tuple[str, ...] = ()


@frozen(kw_only=True)
class CheckReport:
    """The faults of a forward or a factory, errors first, then in the order in which they happen."""

    findings: tuple[CaptureFault, ...]
    num_operations: int
    """ATen operations of one call; for a factory, of the longest."""

    @property
    def ok(self) -> bool:
        """Whether the forward can be captured: it has no error."""
        return not any(found.severity == Severity.ERROR for found in self.findings)


def fault(code: Code, detail: str, place: Place, count: int = 1) -> CaptureFault:
    """One finding; ``detail`` says what was called."""
    return CaptureFault(
        code=code.code,
        severity=code.value.severity,
        message=f"{detail}: {code.value.meaning}",
        file=place.file,
        line=place.line,
        function=place.function,
        fix=code.value.fix,
        count=count,
    )


def merged(findings: Iterable[CaptureFault]) -> tuple[CaptureFault, ...]:
    """Each place and code once, with all entries that it concerns; errors first."""
    found: dict[tuple[str, str, int], CaptureFault] = {}
    for each in findings:
        key = (each.code, each.file, each.line)
        known = found.get(key)
        if known is None:
            found[key] = each
            continue
        entries = tuple(dict.fromkeys(known.entries + each.entries))
        found[key] = evolve(known, count=max(known.count, each.count), entries=entries)
    order = (Severity.ERROR, Severity.WARNING, Severity.INFO)
    return tuple(sorted(found.values(), key=lambda each: order.index(each.severity)))
