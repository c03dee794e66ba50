"""The constants of the formulas, and what they were measured on: ``calibration.json`` beside this file.

``tools/calibrate_estimates.py`` measures and fits them; nobody edits them by hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from attrs import frozen

from planner.modes import CUDAGraphMode

FILE = "calibration.json"


@frozen(kw_only=True)
class Calibration:
    """Constants by what they are multiplied with; bytes and seconds.

    A forward has ``forward_nodes`` graph nodes and ``layer_nodes`` more a layer, by the mode of its entry.
    Memory: ``first_bytes`` once, ``size_bytes`` for each number of tokens that is seen first (kernels are
    loaded), ``graph_bytes`` and ``node_bytes``; the shared pool takes ``pool_base_bytes`` and
    ``pool_factor`` times the activations of the largest entry. Seconds: ``first_seconds`` once,
    ``kind_seconds`` for each mode of each family, ``size_seconds`` for each new number of tokens,
    ``graph_seconds`` and, by mode, ``layer_seconds``.
    """

    provenance: Mapping[str, str]
    forward_nodes: Mapping[CUDAGraphMode, float]
    layer_nodes: Mapping[CUDAGraphMode, float]
    first_bytes: float
    size_bytes: float
    graph_bytes: float
    node_bytes: float
    pool_base_bytes: float
    pool_factor: float
    first_seconds: float
    kind_seconds: float
    size_seconds: float
    graph_seconds: float
    layer_seconds: Mapping[CUDAGraphMode, float]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Calibration:
        """The constants as the file has them."""
        constants = {
            name: {CUDAGraphMode[mode]: float(figure) for mode, figure in value.items()}
            if isinstance(value, Mapping)
            else float(value)
            for name, value in data.items()
            if name != "provenance"
        }
        return cls(provenance=dict(data["provenance"]), **constants)  # type: ignore[arg-type]

    def num_nodes(self, mode: CUDAGraphMode, num_layers: int) -> float:
        """Nodes of all graphs of one entry."""
        return self.forward_nodes[mode] + num_layers * self.layer_nodes[mode]


@cache
def calibration() -> Calibration:
    """The constants that are shipped."""
    return Calibration.from_json(json.loads(files(__package__).joinpath(FILE).read_text(encoding="utf-8")))
