"""Proof of captured graphs: each entry against an eager forward, and against its own second replay."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from attrs import frozen

from executor.capture_loop import CreateForward
from executor.dispatching import graph_key
from executor.manager import CudaGraphManager
from executor.trees import tensors_of
from planner.descriptors import BatchExecutionDescriptor, PlanEntry
from planner.modes import CUDAGraphMode

TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-2}
"""Largest relative Frobenius error by type: libraries may choose another algorithm in a graph."""

MAX_REFERENCES = 4
"""Eager outputs that are kept for smaller batches: one for each way in which a library computes them."""

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

    The eager forward runs on the same buffers; ``fill`` gives them contents, without it they hold what the
    factory puts there. ``context`` is needed where entries have marked operations. ``eager_pieces`` runs a
    PIECEWISE entry eagerly on the metadata of ``context``: marked operations on other metadata may add up
    in another order, which shows in types of few bits. With ``poison``, output buffers and the pool's memory
    hold NaN ahead of the first replay, so that nothing left there helps.

    With ``front``, entries are compared with eager forwards of larger batches of their mode that begin like
    theirs, and with one of their own only if they differ from all of those.
    """
    chosen = manager.captured_entries if entries is None else frozenset(entries)
    checked = [entry for entry in manager.captured_entries if entry in chosen]
    check = _Check(manager, create_forward_fn, fill or _nothing, context or _no_context, eager_pieces, poison)
    found: dict[PlanEntry, Verdict] = {}
    with torch.no_grad():
        for group in _alike(checked, front):
            found |= check.verdicts(group)
    return tuple(found[entry] for entry in checked)


def _alike(entries: Collection[PlanEntry], front: Front | None) -> Collection[list[PlanEntry]]:
    """Entries of one mode whose batches begin alike together, every other entry alone.

    Between those of one name nothing else writes to the cache that their batches read.
    """
    groups: dict[Hashable, list[PlanEntry]] = {}
    for entry in entries:
        name = None if front is None else front(entry.execution_descriptor)
        groups.setdefault(entry if name is None else (entry.mode, name), []).append(entry)
    return groups.values()


@frozen
class _Reference:
    """What an entry computes eagerly, for itself and for smaller ones that begin alike."""

    entry: PlanEntry
    outputs: list[torch.Tensor]

    def front(self, entry: PlanEntry) -> list[torch.Tensor]:
        """The rows of ``entry``, be they a token's or a request's."""
        return [
            tensor[: len(tensor) * entry.num_tokens // self.entry.num_tokens] if tensor.dim() else tensor
            for tensor in self.outputs
        ]


@frozen
class _Replay:
    """Outputs of a graph, and for each, on the device, whether a second replay gave the same bits."""

    outputs: list[torch.Tensor]
    repeats: list[torch.Tensor]


@frozen
class _Check:
    manager: CudaGraphManager
    create: CreateForward
    fill: Fill
    context: Context
    eager_pieces: Callable[[BatchExecutionDescriptor], Any] | None
    poison: bool

    def verdicts(self, group: list[PlanEntry]) -> dict[PlanEntry, Verdict]:
        """Verdicts on entries whose batches begin alike.

        Smaller batches may be computed otherwise, in another order of sums above all. So what differs from
        all references is compared with an eager forward of its own, which then is one for the others.
        """
        found: dict[PlanEntry, Verdict] = {}
        largest_first = sorted(group, key=lambda entry: -entry.num_tokens)
        references = deque([self._eager_outputs(largest_first[0])], maxlen=MAX_REFERENCES)
        for entry, replay in self._replays(largest_first):
            judged = (_judged(entry, each.front(entry), replay) for each in references)
            verdict = next((each for each in judged if each.ok), None)
            if verdict is None:
                own = references[0] if references[0].entry == entry else self._eager_outputs(entry)
                verdict = _judged(entry, own.outputs, replay)
                if verdict.ok:
                    references.appendleft(own)
            found[entry] = verdict
        return found

    def _replays(self, entries: list[PlanEntry]) -> Iterator[tuple[PlanEntry, _Replay]]:
        """Each entry with what it gave, the next being launched already: judging waits for the device."""
        before: tuple[PlanEntry, _Replay] | None = None
        for entry in entries:
            launched = entry, self._replayed_twice(entry)
            if before is not None:
                yield before
            before = launched
        if before is not None:
            yield before

    def _eager_outputs(self, entry: PlanEntry) -> _Reference:
        desc = entry.execution_descriptor
        return _Reference(entry, self._kept_outputs(self._eager(desc), desc))

    def _replayed_twice(self, entry: PlanEntry) -> _Replay:
        """Launches the graph of ``entry`` twice, and the comparison of the two."""
        desc = entry.execution_descriptor
        key = graph_key(self.manager.plan, self.manager.family, entry)
        if self.poison:
            self.manager.poison()
        marked = desc.cg_mode is CUDAGraphMode.PIECEWISE
        with self.context(desc) if marked else nullcontext():
            first = self._kept_outputs(lambda: self.manager.run_fullgraph(key), desc)
            second = self._outputs(lambda: self.manager.run_fullgraph(key), desc)
            return _Replay(first, [(one == other).all() for one, other in zip(first, second, strict=True)])

    def _eager(self, desc: BatchExecutionDescriptor) -> Callable[[], Any]:
        pieces = self.eager_pieces
        if pieces is not None and desc.cg_mode is CUDAGraphMode.PIECEWISE:
            return lambda: pieces(desc)
        forward = self.create(desc, True)
        return lambda: forward(CUDAGraphMode.NONE)

    def _outputs(self, run: Callable[[], Any], desc: BatchExecutionDescriptor) -> list[torch.Tensor]:
        """What ``run`` returns for the batch of ``desc``; it holds until anything else runs."""
        self.fill(desc)
        return list(tensors_of(run()))

    def _kept_outputs(self, run: Callable[[], Any], desc: BatchExecutionDescriptor) -> list[torch.Tensor]:
        return [tensor.clone() for tensor in self._outputs(run, desc)]


def _judged(entry: PlanEntry, eager: list[torch.Tensor], replay: _Replay) -> Verdict:
    errors = [relative_error(one, other) for one, other in zip(eager, replay.outputs, strict=True)]
    repeats = all(bool(equal) for equal in replay.repeats)
    bounds = [TOLERANCE.get(tensor.dtype, 0.0) for tensor in eager]
    within = all(error <= bound for error, bound in zip(errors, bounds, strict=True))
    return Verdict(entry=entry, error=max(errors, default=0.0), repeats=repeats, ok=repeats and within)


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
    if torch.equal(expected, found):  # NaN is unequal to itself
        return 0.0
    if not expected.dtype.is_floating_point:
        return 1.0
    expected, found = expected.double(), found.double()
    unknown = expected.isnan()
    if not torch.equal(unknown, found.isnan()) or (unknown.numel() and bool(unknown.all())):
        return float("inf")
    difference = torch.linalg.vector_norm((expected - found).nan_to_num())
    norm = torch.linalg.vector_norm(expected.nan_to_num())
    return float(difference / norm) if norm else float(difference)
