"""The graphs of one entry: one for a whole forward, or pieces with eager operations between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from attrs import define, field

from executor.backends.base import Backend, GraphPool, Recorder, Recording
from executor.breaks import recording_pieces

Step: TypeAlias = Callable[[], None]


@define(eq=False)
class EntryGraphs:
    """What replays one entry. ``outputs`` are the persistent outputs of the forward."""

    steps: tuple[Step, ...]
    recordings: tuple[Recording, ...]
    outputs: Any
    _counts: list[int] = field(factory=lambda: [0])
    _index: int = 0

    def count_in(self, counts: list[int], index: int) -> None:
        """From here on each replay adds one to ``counts[index]``."""
        self._counts, self._index = counts, index

    def replay(self) -> Any:
        """Runs all steps in order and returns the outputs."""
        self._counts[self._index] += 1
        for step in self.steps:
            step()
        return self.outputs

    def parts(self) -> Iterator[MarkedCall | Recording]:
        """The steps as what they are: recordings, and marked operations between them."""
        recordings = iter(self.recordings)
        for step in self.steps:
            yield step if isinstance(step, MarkedCall) else next(recordings)

    def release(self) -> None:
        """Gives all graphs back."""
        self.steps = tuple(recording.replay for recording in self.recordings[:1])  # which then says why not
        for recording in self.recordings:
            recording.release()


def record_whole(backend: Backend, pool: GraphPool, work: Callable[[], Any]) -> EntryGraphs:
    """``work`` as one graph.

    Raises:
        Exception: whatever ``work`` or the recording raises; the recording is undone before.
    """
    recorder = backend.recorder(pool)
    recorder.begin()
    try:
        outputs = work()
        recording = recorder.end()
    except BaseException:
        recorder.abort()
        raise
    return EntryGraphs((recording.launcher(),), (recording,), outputs)


def record_pieces(backend: Backend, pool: GraphPool, work: Callable[[], Any]) -> EntryGraphs:
    """``work`` as pieces, broken at marked operations.

    Raises:
        Exception: whatever ``work`` or the recording raises; all pieces are undone before.
    """
    pieces = _Pieces(backend, pool)
    try:
        pieces.begin()
        with recording_pieces(pieces):
            outputs = work()
        pieces.end()
    except BaseException:
        pieces.abort()
        raise
    return EntryGraphs(pieces.replayable(), tuple(pieces.recordings), outputs)


@define(eq=False)
class MarkedCall:
    """A marked operation between two pieces, with the tensors that it was recorded with."""

    operation: Callable[..., None]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self) -> None:
        """Runs the operation."""
        self.operation(*self.args, **self.kwargs)


@define(eq=False)
class _Pieces:
    """A recording of pieces while it is under way."""

    backend: Backend
    pool: GraphPool
    steps: list[MarkedCall | Recording] = field(factory=list)
    recordings: list[Recording] = field(factory=list)
    recorder: Recorder | None = None

    def begin(self) -> None:
        self.recorder = self.backend.recorder(self.pool)
        self.recorder.begin()

    def end(self) -> None:
        if self.recorder is not None:
            recording = self.recorder.end()
            self.recorder = None
            self.recordings.append(recording)
            self.steps.append(recording)

    def break_at(self, operation: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keeps the call; it does not run now, as what it would read has not been computed.

        It knows where its tensors lie and does not keep their memory, so that later pieces may have it:
        they run behind the call.
        """
        self.end()
        args, kwargs = self.backend.detached((args, kwargs), self.pool)
        self.steps.append(MarkedCall(operation, args, kwargs))
        self.begin()

    def replayable(self) -> tuple[Step, ...]:
        """What a replay runs."""
        return tuple(step if isinstance(step, MarkedCall) else step.launcher() for step in self.steps)

    def abort(self) -> None:
        if self.recorder is not None:
            self.recorder.abort()
            self.recorder = None
        for recording in self.recordings:
            recording.release()
