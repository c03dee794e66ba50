"""A graph that was rebuilt: it is launched through the driver, as nobody recorded it here."""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import define

from executor.backends.base import Digests, GraphPool, Recording
from executor.errors import ReplayError
from executor.materialize.driver import GraphDriver


@define(eq=False)
class RestoredRecording(Recording):
    """An executable graph of the driver; ``executable`` is None once released."""

    executable: int | None
    nodes: int
    pool: GraphPool
    driver: GraphDriver

    def __attrs_post_init__(self) -> None:
        self.pool.joined()

    @property
    def num_nodes(self) -> int | None:
        """Nodes of the graph."""
        return self.nodes

    def replay(self) -> None:
        """Launches the graph on the current stream."""
        if self.executable is None:
            raise ReplayError("the graph was released; capture it again")
        self.driver.launch(self.executable, torch.cuda.current_stream(self.pool.device).cuda_stream)

    def launcher(self) -> Callable[[], None]:
        """The same without looking whether the graph is still there."""
        if self.executable is None:
            return self.replay
        launch, executable = self.driver.launch, self.executable
        device, stream_of = self.pool.device.index, torch._C._cuda_getCurrentRawStream  # noqa: SLF001
        return lambda: launch(executable, stream_of(device))

    def digests(self) -> Digests | None:
        """Unknown: the graph that was built is not kept beside the executable one."""
        return None

    def release(self) -> None:
        """Destroys the graph."""
        if self.executable is not None:
            self.driver.destroy(self.executable)
            self.executable = None
            self.pool.left()
