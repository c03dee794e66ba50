"""A graph that was rebuilt: it is launched through the driver, as nobody recorded it here."""

from __future__ import annotations

from collections.abc import Callable

from attrs import define

from executor.backends.base import Digests, GraphPool, Recording
from executor.errors import ReplayError
from executor.materialize.device import GraphDevice


@define(eq=False)
class RestoredRecording(Recording):
    """An executable graph of the driver; ``executable`` is None once released."""

    executable: int | None
    nodes: int
    pool: GraphPool
    device: GraphDevice

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
        self.launcher()()

    def launcher(self) -> Callable[[], None]:
        """The same without looking whether the graph is still there."""
        if self.executable is None:
            return self.replay
        launch, executable, stream = self.device.driver.launch, self.executable, self.device.current_stream()
        return lambda: launch(executable, stream())

    def digests(self) -> Digests | None:
        """Unknown: the graph that was built is not kept beside the executable one."""
        return None

    def release(self) -> None:
        """Destroys the graph."""
        if self.executable is not None:
            self.device.driver.destroy(self.executable)
            self.executable = None
            self.pool.left()
