"""How far a figure may be off, by where it is from."""

from __future__ import annotations

from attrs import frozen


@frozen
class Range:
    """Factors from what is expected to the least and the most."""

    low: float
    high: float

    def wider(self, factor: float) -> Range:
        """A range that reaches further on both sides."""
        return Range(self.low / factor, self.high * factor)


CALIBRATED = Range(0.75, 1.25)
"""Formulas for this project's own reference models on the device that they were calibrated on."""

FORMULA = Range(0.25, 5.0)
"""Formulas for an engine's server.

Reported captures of vLLM lie on both sides of what the formulas say: its fused kernels make for fewer
nodes, its loop takes more memory and time for each (vllm#21146, vllm PR#22897, vllm#20098). The widest of
them, 26 MiB for each graph of an 8B model, is 4.2 times the formula.
"""

UNKNOWN_MODEL = 2.0
"""How much wider a range is where no model is given."""

MEASURED_BYTES = Range(0.95, 1.1)
MEASURED_SECONDS = Range(0.75, 1.35)
"""Between two captures of the same graphs on one machine; time drifts more than memory."""

SCALED = Range(0.7, 1.4)
"""Figures that were measured of other graphs of the same model."""

OTHER_MODEL = 1.5
"""How much wider that is where the model, or the device, was another."""
