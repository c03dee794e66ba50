"""Building saved graphs on a thread of its own, while kernels of others are still being looked for.

Loading kernels and instantiating graphs hardly hold each other up in the driver, so that together they
take about as long as the slower of the two.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import torch
from attrs import define, field

from executor.errors import CaptureError
from executor.materialize.device import GraphDevice
from executor.materialize.relocation import Relocation


class RefusedError(CaptureError):
    """An entry that cannot be rebuilt here, and why."""


@define(kw_only=True)
class GraphBuilder:
    """Builds graphs by number and hands each out once; what nobody took is destroyed at the end.

    ``starts`` are where the regions lie, ``absent`` says of some why they are not there. ``patching`` are
    seconds that putting addresses into place took.
    """

    device: GraphDevice
    graphs: Sequence[Future[Relocation]]
    starts: torch.Tensor
    absent: Mapping[int, str]
    patching: float = field(default=0.0, init=False)
    _built: dict[int, Future[int]] = field(factory=dict, init=False)
    _worker: ThreadPoolExecutor = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._worker = ThreadPoolExecutor(1, "graphplan-build", initializer=self.device.enter_thread)

    def __enter__(self) -> GraphBuilder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker.shutdown(cancel_futures=True)
        for future in self._built.values():
            if not future.cancelled() and future.exception() is None:
                self.device.driver.destroy(future.result())

    def submit(self, number: int, functions: Sequence[int]) -> None:
        """Graph ``number`` is to be built with ``functions``, of which it may use those that are known."""
        self._built[number] = self._worker.submit(self._build, number, functions)

    def take(self, number: int) -> int:
        """The executable graph, from now on the caller's.

        Raises:
            RefusedError: it was not submitted, was taken before, or names a region that is not there.
            CaptureError: it is damaged, or the driver refuses.
        """
        if number not in self._built:
            raise RefusedError("one of its graphs is not there, or is another entry's as well")
        return self._built.pop(number).result()

    def _build(self, number: int, functions: Sequence[int]) -> int:
        graph = self.graphs[number].result()
        began = time.perf_counter()
        if self.absent:
            for region in graph.regions.unique().tolist():
                if region in self.absent:
                    raise RefusedError(self.absent[region])
        words = self.device.driver.placed(graph, self.starts)
        self.patching += time.perf_counter() - began
        return self.device.driver.build(words, functions)
