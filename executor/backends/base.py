"""What records graphs: CUDA graphs on a GPU, a tape of ATen calls on a CPU.

The manager decides which graphs exist and in what order they are recorded; a backend knows how one
recording is begun, ended, undone and played back.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from attrs import frozen

from executor.errors import CaptureError
from executor.materialize.regions import Region


class MemoryBudgetError(CaptureError):
    """An entry that would take more memory than the capture was allowed."""


@frozen
class Digests:
    """SHA-256 of a recording: of the names of its kernels, and of all its nodes, shapes and edges."""

    kernels: str
    topology: str

    @classmethod
    def of(cls, kernels: Iterable[str], lines: Iterable[str]) -> Digests:
        """Digests over the set of kernels, and over lines that describe nodes and edges in order."""
        return cls(_sha256(sorted(set(kernels))), _sha256(lines))


def joined(digests: Sequence[Digests]) -> Digests:
    """Digests of several recordings, such as the pieces of one entry, in their order."""
    if len(digests) == 1:
        return digests[0]
    return Digests(_sha256(each.kernels for each in digests), _sha256(each.topology for each in digests))


def _sha256(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class Recording(ABC):
    """One graph."""

    @property
    @abstractmethod
    def num_nodes(self) -> int | None:
        """How many operations were recorded; ``None`` where that cannot be found out."""

    @abstractmethod
    def replay(self) -> None:
        """Runs what was recorded, on the addresses that it was recorded with."""

    @abstractmethod
    def launcher(self) -> Callable[[], None]:
        """What replays at the least cost; not to be called once the recording is released."""

    @abstractmethod
    def digests(self) -> Digests | None:
        """Digests of what was recorded; ``None`` where it is not known.

        Equal recordings of two processes have equal digests, wherever their memory lies.
        """

    def kernel_names(self) -> frozenset[str] | None:
        """Names of what was recorded; ``None`` where they are not known."""
        return None

    def wait_until_ready(self) -> None:  # noqa: B027 - most recordings are ready when they are made
        """Waits until the recording can be replayed.

        Raises:
            CaptureError: it cannot, for want of memory for instance.
        """

    @abstractmethod
    def release(self) -> None:
        """Gives the graph back. It cannot be replayed any more."""


class Recorder(ABC):
    """One attempt at one graph: ``begin``, the work, then ``end`` or ``abort``."""

    @abstractmethod
    def begin(self) -> None:
        """From here on, work of this thread is recorded."""

    @abstractmethod
    def end(self) -> Recording:
        """The graph of the work since ``begin``.

        Raises:
            CaptureError: something in between cannot be part of a graph.
        """

    @abstractmethod
    def abort(self) -> None:
        """Undoes ``begin`` after a failure: whatever was on its way to the graph is dropped.

        Afterwards the stream, the pool and the random generators are usable again. Never raises.
        """


class GraphPool(ABC):
    """Memory that graphs share: each may overwrite what another left there."""

    device: torch.device

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes that the pool holds."""

    def joined(self) -> None:  # noqa: B027 - most pools need not know
        """Counts a recording that lives in the pool."""

    def left(self) -> None:  # noqa: B027
        """Uncounts a recording; the memory may go with the last one."""


class Backend(ABC):
    """How graphs are recorded on one device."""

    name: str
    device: torch.device

    @abstractmethod
    def new_pool(self) -> GraphPool:
        """A pool of its own."""

    @abstractmethod
    def session(self) -> AbstractContextManager[None]:
        """What a series of recordings runs in."""

    def pin_workspace(self) -> tuple[Region, ...]:
        """Where libraries keep workspaces that graphs may name, from now on for good."""
        return ()

    def begin_warm_up(self) -> None:  # noqa: B027 - most backends have nothing to do
        """Called ahead of each warm-up forward, whose memory ``begin_entry`` may judge by."""

    @abstractmethod
    def begin_entry(self, pool: GraphPool, allowed_bytes: int | None) -> None:
        """Called ahead of each entry's recording, with what the entry may add to the memory in use.

        Raises:
            MemoryBudgetError: it is known already that the entry would need more.
        """

    @abstractmethod
    def recorder(self, pool: GraphPool) -> Recorder:
        """A recorder into ``pool``."""

    @abstractmethod
    def used_bytes(self, pool: GraphPool) -> int:
        """Bytes that recording takes so far: of the pool, and of the graphs as far as they are seen."""

    @abstractmethod
    def detached(self, tree: Any, pool: GraphPool) -> Any:
        """``tree`` with tensors of the pool as plain addresses, which keep no memory of it in use."""

    def memory_of(self, pool: GraphPool) -> tuple[torch.Tensor, ...]:  # noqa: ARG002
        """The memory of ``pool`` as bytes, where it is known."""
        return ()

    @abstractmethod
    def synchronize(self) -> None:
        """Waits for the device; errors of what was launched surface here."""


def backend_for(device: torch.device | str) -> Backend:
    """The backend of a device.

    Raises:
        CaptureError: graphs are not recorded on such a device, or it is not there.
    """
    device = torch.device(device)
    if device.type == "cpu":
        from executor.backends.tape import TapeBackend

        return TapeBackend()
    if device.type == "cuda" and torch.cuda.is_available():
        from executor.backends.cuda import CudaBackend

        return CudaBackend(device)
    if device.type == "cuda":
        raise CaptureError("device cuda: PyTorch finds no GPU here; use the device cpu")
    raise CaptureError(f"device {device.type}: graphs are recorded on cuda and cpu only")
