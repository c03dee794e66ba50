"""Proof of captured graphs: each entry against an eager forward, and against its own second replay."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from operator import itemgetter
from typing import Any

import torch
from attrs import field, frozen

from executor.capture_loop import CreateForward
from executor.dispatching import graph_key
from executor.manager import CudaGraphManager
from executor.trees import map_tensors, tensors_of
from planner.descriptors import BatchExecutionDescriptor, PlanEntry
from planner.modes import CUDAGraphMode

TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-2}
"""Largest relative Frobenius error by type: libraries may choose another algorithm in a graph."""

Fill = Callable[[BatchExecutionDescriptor], None]
"""Puts contents into the input buffers for one entry, the same at each call."""

Context = Callable[[BatchExecutionDescriptor], AbstractContextManager[Any]]
"""The forward context that marked operations of one entry read at replay."""

Front = Callable[[BatchExecutionDescriptor], Hashable | None]
"""Names batches that begin alike: of two with one name, the smaller is the front of the larger, row by row.
None for a batch of its own."""


@frozen(kw_only=True)
class Verdict:
    """What comparing one entry showed.

    ``error`` is the largest relative Frobenius error of an output, ``repeats`` says that a second replay
    gave the same bits, ``ok`` that both are as they should be.
    """

    entry: PlanEntry
    error: float
    repeats: bool
    ok: bool


def verify_entries(
    manager: CudaGraphManager,
    create_forward_fn: CreateForward,
    fill: Fill | None = None,
    context: Context | None = None,
    eager_pieces: Callable[[BatchExecutionDescriptor], Any] | None = None,
    *,
    entries: Collection[PlanEntry] | None = None,
    poison: bool = False,
    front: Front | None = None,
) -> tuple[Verdict, ...]:
    """A verdict on every captured entry, in capture order, or on those of them in ``entries``.

    The eager forward runs first and on the same buffers; ``fill`` gives them contents, without it they
    hold what the factory puts there. ``context`` is needed where entries have marked operations.
    ``eager_pieces`` runs a PIECEWISE entry eagerly on the metadata of ``context``: marked operations on
    other metadata may add up in another order, which shows in types of few bits. With ``poison``, output
    buffers and the pool's memory hold NaN ahead of the first replay, so that nothing left there helps.

    With ``front``, whole-graph entries are compared with the eager forward of the largest batch that
    begins like theirs, and only those that differ from it with one of their own.
    """
    chosen = manager.captured_entries if entries is None else frozenset(entries)
    checked = [entry for entry in manager.captured_entries if entry in chosen]
    check = _Check(
        manager=manager,
        create=create_forward_fn,
        fill=fill or _nothing,
        context=context or _no_context,
        eager_pieces=eager_pieces,
        poison=poison,
        front=front or _of_its_own,
        largest=_largest(checked, front or _of_its_own),
    )
    found = {entry: check.verdict(entry) for entry in _alike_together(checked, check.front)}
    return tuple(found[entry] for entry in checked)


def _alike_together(entries: Collection[PlanEntry], front: Front) -> list[PlanEntry]:
    """Entries of one name without others between them, whose batches write to other places of a cache."""
    names = [front(entry.execution_descriptor) for entry in entries]
    return [
        entry for _, entry in sorted(zip(map(names.index, names), entries, strict=True), key=itemgetter(0))
    ]


def _largest(entries: Collection[PlanEntry], front: Front) -> Mapping[Hashable, BatchExecutionDescriptor]:
    """The largest batch of each name."""
    found: dict[Hashable, BatchExecutionDescriptor] = {}
    for desc in (entry.execution_descriptor for entry in entries):
        name = front(desc)
        if name is not None and (name not in found or desc.num_tokens > found[name].num_tokens):
            found[name] = desc
    return found


@frozen(kw_only=True)
class _Check:
    manager: CudaGraphManager
    create: CreateForward
    fill: Fill
    context: Context
    eager_pieces: Callable[[BatchExecutionDescriptor], Any] | None
    poison: bool
    front: Front
    largest: Mapping[Hashable, BatchExecutionDescriptor]
    eager_by_name: dict[Hashable, list[torch.Tensor]] = field(factory=dict, init=False)

    def verdict(self, entry: PlanEntry) -> Verdict:
        desc = entry.execution_descriptor
        with torch.no_grad():
            shared = self._shared(desc)
            if shared is not None:
                found = self._compared(entry, shared)
                if found.ok:
                    return found
            return self._compared(entry, self._outputs(self._eager(desc), desc))

    def _shared(self, desc: BatchExecutionDescriptor) -> list[torch.Tensor] | None:
        """What the largest batch that begins like ``desc`` gives eagerly."""
        name = None if desc.cg_mode is CUDAGraphMode.PIECEWISE else self.front(desc)
        if name is None:
            return None
        if name not in self.eager_by_name:
            largest = self.largest[name]
            self.eager_by_name[name] = self._outputs(self._eager(largest), largest)
        return self.eager_by_name[name]

    def _compared(self, entry: PlanEntry, eager: list[torch.Tensor]) -> Verdict:
        """Two replays against ``eager``, whose tensors may have further rows."""
        desc = entry.execution_descriptor
        key = graph_key(self.manager.plan, self.manager.family, entry)
        if self.poison:
            self.manager.poison()
        marked = desc.cg_mode is CUDAGraphMode.PIECEWISE
        with self.context(desc) if marked else nullcontext():
            first = self._outputs(lambda: self.manager.run_fullgraph(key), desc)
            second = self._outputs(lambda: self.manager.run_fullgraph(key), desc)
        pairs = [(_front_of(one, other), other) for one, other in zip(eager, first, strict=True)]
        errors = [relative_error(*pair) for pair in pairs]
        bounds = [TOLERANCE.get(tensor.dtype, 0.0) for tensor in first]
        repeats = all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
        within = all(error <= bound for error, bound in zip(errors, bounds, strict=True))
        return Verdict(entry=entry, error=max(errors, default=0.0), repeats=repeats, ok=repeats and within)

    def _eager(self, desc: BatchExecutionDescriptor) -> Callable[[], Any]:
        pieces = self.eager_pieces
        if pieces is not None and desc.cg_mode is CUDAGraphMode.PIECEWISE:
            return lambda: pieces(desc)
        forward = self.create(desc, True)
        return lambda: forward(CUDAGraphMode.NONE)

    def _outputs(self, run: Callable[[], Any], desc: BatchExecutionDescriptor) -> list[torch.Tensor]:
        self.fill(desc)
        return list(tensors_of(map_tensors(torch.clone, run())))


def _front_of(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """As many rows of ``tensor`` as ``other`` has."""
    return tensor[: len(other)] if other.dim() and tensor.dim() else tensor


def _of_its_own(desc: BatchExecutionDescriptor) -> None:
    """Every batch is compared with an eager forward of itself."""


def _nothing(desc: BatchExecutionDescriptor) -> None:
    """Leaves the inputs as the factory prepared them."""


def _no_context(desc: BatchExecutionDescriptor) -> AbstractContextManager[None]:  # noqa: ARG001
    return nullcontext()


def relative_error(expected: torch.Tensor, found: torch.Tensor) -> float:
    """Frobenius norm of the difference over that of ``expected``; 0 for two that are all zero.

    Tensors of whole numbers are equal (0) or not (1). NaN in one and not in the other is infinite, and so
    is nothing but NaN in both, which proves nothing.
    """
    if expected.shape != found.shape:
        return float("inf")
    if not expected.dtype.is_floating_point:
        return 0.0 if torch.equal(expected, found) else 1.0
    expected, found = expected.double(), found.double()
    unknown = expected.isnan()
    if not torch.equal(unknown, found.isnan()) or (unknown.numel() and bool(unknown.all())):
        return float("inf")
    difference = torch.linalg.vector_norm((expected - found).nan_to_num())
    norm = torch.linalg.vector_norm(expected.nan_to_num())
    return float(difference / norm) if norm else float(difference)
