"""Estimates of a plan: what its graphs will take on one rank, with ranges and where each figure is from."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

FORMULA = "formula"
"""The source of a figure that nothing was measured for."""

MEASURED = "measured on"
"""How the source of any other figure begins; the device and the version of PyTorch follow."""


def _sorted(parts: Mapping[str, float]) -> dict[str, float]:
    """``parts`` by name: tables do not keep an order."""
    return dict(sorted(parts.items()))


@frozen(kw_only=True)
class Quantity:
    """A figure that is not known before the capture: between ``low`` and ``high``, most likely ``expected``.

    ``source`` is ``formula``, or begins with ``measured on``. ``parts`` are what ``expected`` is the sum of,
    but for rounding.
    """

    expected: float = field(metadata={"minimum": 0})
    low: float = field(metadata={"minimum": 0})
    high: float = field(metadata={"minimum": 0})
    source: str
    parts: Mapping[str, float] = field(factory=dict, converter=_sorted)

    @property
    def is_measured(self) -> bool:
        """Whether something was measured that the figure goes by."""
        return self.source.startswith(MEASURED)


@frozen(kw_only=True)
class DeviceFit:
    """How the graphs of one rank fit beside what else takes its device's memory, all in GiB.

    ``share`` is that of the graphs in the whole memory, from 0 to 1. ``usable_gib`` is what the engine may
    use. ``weights_gib`` are the model's and its draft's, ``kv_cache_gib`` what is left for the KV cache, or
    what a given number of blocks takes, which is ``kv_cache_tokens`` tokens of requests of the greatest
    length; 0 where nothing is left.
    """

    memory_gib: float = field(metadata={"minimum": 0})
    share: float = field(metadata={"minimum": 0})
    usable_gib: float = field(metadata={"minimum": 0})
    weights_gib: float | None = field(default=None, metadata={"minimum": 0})
    kv_cache_gib: float | None = field(default=None, metadata={"minimum": 0})
    kv_cache_tokens: int | None = field(default=None, metadata={"minimum": 0})


@frozen(kw_only=True)
class Estimate:
    """What all graphs of one rank take: device memory in GiB, and seconds of start-up.

    ``num_graphs`` counts what is recorded: one graph a FULL entry, as many as there are pieces a PIECEWISE
    one. The parts of ``memory_gib`` are ``static`` (buffers that graphs read and write), ``pool`` (shared by
    all graphs) and ``graphs`` (each graph's own); those of ``seconds`` are ``first`` (what is set up once)
    and one for each mode of each family, such as ``target FULL``.
    """

    num_graphs: int = field(metadata={"minimum": 0})
    memory_gib: Quantity
    seconds: Quantity
    device: DeviceFit | None = None
