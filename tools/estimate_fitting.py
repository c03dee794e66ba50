"""Fitting of the constants of estimates to measured captures, and how well they tell others.

Pure functions over what ``tools/calibrate_estimates.py`` measured; that script is their command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from planner import Plan, compile_plan, load_deployment
from planner.documents.plan import TARGET
from planner.estimate import estimate
from planner.estimate.calibration import Calibration
from planner.estimate.estimate import family_request
from planner.estimate.formula import FamilyRequest, pool_bytes
from planner.modes import CUDAGraphMode

GIB = 2**30
ROUNDS = 20_000
MODES = (CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE)

Row = tuple[Mapping[str, float], float, float]
"""How often each unknown counts in a figure, the figure, and what an error in it is relative to."""


def plan_of(measurement: Mapping[str, Any], kind: str) -> Plan:
    """The plan that one kind of run captured."""
    return compile_plan(load_deployment(measurement["deployments"][kind]))


def fitted(measurements: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The constants, as ``planner/estimate/calibration.json`` has them, of measured shapes."""
    runs = [_Run(one, kind) for one in measurements for kind in one["runs"]]
    micro = [row for one in measurements for row in one["micro"]]
    graph_bytes = median(row["graph_bytes"] for row in micro)
    graph_seconds = median(row["graph_seconds"] for row in micro)
    nodes = {mode: _line(runs, mode) for mode in MODES}
    pool = non_negative([run.pool_row() for run in runs])
    memory = non_negative([run.memory_row(graph_bytes) for run in runs])
    seconds = non_negative([row for run in runs for row in run.seconds_rows(graph_seconds)])
    return {
        "provenance": _provenance(measurements),
        "forward_nodes": {mode.name: nodes[mode][0] for mode in MODES},
        "layer_nodes": {mode.name: nodes[mode][1] for mode in MODES},
        "first_bytes": round(memory["first"]),
        "size_bytes": round(memory["size"]),
        "graph_bytes": round(graph_bytes),
        "node_bytes": _significant(memory["node"]),
        "pool_base_bytes": round(pool["base"]),
        "pool_factor": _significant(pool["factor"]),
        "first_seconds": _significant(seconds["first"]),
        "kind_seconds": _significant(seconds["kind"]),
        "size_seconds": _significant(seconds["size"]),
        "graph_seconds": _significant(graph_seconds),
        "layer_seconds": {mode.name: _significant(seconds[mode.name]) for mode in MODES},
    }


def scored(measurement: Mapping[str, Any], constants: Calibration) -> list[dict[str, Any]]:
    """Estimates of each kind of run of one shape beside what was measured."""
    rows = []
    for kind in measurement["runs"]:
        run = _Run(measurement, kind)
        found = estimate(run.plan, gathered_tokens=run.context, constants=constants)
        memory, seconds = run.total_bytes / GIB, run.median("seconds")
        rows.append(
            {
                "shape": measurement["shape"],
                "run": kind,
                "graphs": found.num_graphs,
                "memory_gib": {"estimated": found.memory_gib.expected, "measured": round(memory, 3)},
                "seconds": {"estimated": found.seconds.expected, "measured": round(seconds, 2)},
                "memory_error": round(found.memory_gib.expected / memory - 1, 3) if memory else None,
                "seconds_error": round(found.seconds.expected / seconds - 1, 3),
            }
        )
    return rows


class _Run:
    """The repeated captures of one plan with one shape; figures are medians over the repeats."""

    def __init__(self, measurement: Mapping[str, Any], kind: str) -> None:
        self.repeats: Sequence[Mapping[str, Any]] = measurement["runs"][kind]
        self.context: int = measurement["context_tokens"]
        self.plan = plan_of(measurement, kind)
        self.request: FamilyRequest = family_request(self.plan, TARGET, self.context)

    def median(self, figure: str) -> float:
        return float(median(repeat[figure] for repeat in self.repeats))

    @property
    def total_bytes(self) -> float:
        """What the device lost, and the buffers that were there before."""
        return self.median("device_bytes") + self.median("input_bytes")

    @property
    def num_graphs(self) -> int:
        return sum(row["num_graphs"] for row in self.repeats[0]["entries"])

    def entries(self, mode: CUDAGraphMode) -> list[list[Mapping[str, Any]]]:
        """The rows of a mode, for each repeat."""
        return [[row for row in one["entries"] if row["mode"] == mode.name] for one in self.repeats]

    def nodes(self, mode: CUDAGraphMode) -> float | None:
        """Nodes of an entry."""
        counts = [row["num_nodes"] for row in self.entries(mode)[0]]
        if None in counts:
            raise ValueError("nodes were not counted: the CUDA bindings (cuda-python) are missing there")
        return fmean(counts) if counts else None

    def pool_row(self) -> Row:
        """The pool over the activations of the largest entry; what attention gathers is known."""
        unit = {"pool_base_bytes": 0.0, "pool_factor": 0.0}
        gathered = pool_bytes(self.request, _with(unit))
        widest = pool_bytes(self.request, _with({**unit, "pool_factor": 1.0})) - gathered
        held = self.median("pool_bytes")
        return {"base": 1, "factor": widest}, held - gathered, self.total_bytes

    def memory_row(self, graph_bytes: float) -> Row:
        """What is neither pool nor output: kernels, workspaces and graphs."""
        nodes = sum(row["num_nodes"] or 0 for row in self.repeats[0]["entries"])
        sizes = len({row["num_tokens"] for row in self.repeats[0]["entries"]})
        rest = self.median("device_bytes") - self.median("pool_bytes") - self.median("output_bytes")
        rest -= self.num_graphs * graph_bytes
        return {"first": 1, "size": sizes, "node": nodes}, rest, self.total_bytes

    def seconds_rows(self, graph_seconds: float) -> Iterable[Row]:
        """The time of each mode's entries, and that of the very first entry alone."""
        seen: set[int] = set()
        for index, mode in enumerate(dict.fromkeys(entry.mode for entry in self.plan.entries(TARGET))):
            repeats = self.entries(mode)
            tokens = {row["num_tokens"] for row in repeats[0]}
            graphs = sum(row["num_graphs"] for row in repeats[0])
            layers = self.request.shape.num_layers
            unknowns = {
                "first": float(index == 0),
                "kind": 1.0,
                "size": float(len(tokens - seen)),
                mode.name: float(len(repeats[0]) * layers),
            }
            taken = median(sum(_seconds(row) for row in rows) for rows in repeats)
            yield unknowns, taken - graphs * graph_seconds, taken
            if index == 0:
                first = median(_seconds(rows[0]) for rows in repeats)
                own = {"first": 1.0, "kind": 1.0, "size": 1.0, mode.name: float(layers)}
                yield own, first - repeats[0][0]["num_graphs"] * graph_seconds, taken
            seen |= tokens


def _seconds(row: Mapping[str, Any]) -> float:
    return float(row["warmup_seconds"] + row["seconds"])


def _with(constants: Mapping[str, float]) -> Calibration:
    """Constants that are all 0 but for those given."""
    zeros = {
        "forward_nodes": {},
        "layer_nodes": {},
        "layer_seconds": {},
        **dict.fromkeys(("first_bytes", "size_bytes", "graph_bytes", "node_bytes"), 0.0),
        **dict.fromkeys(("first_seconds", "kind_seconds", "size_seconds", "graph_seconds"), 0.0),
    }
    return Calibration.from_json({"provenance": {}, **zeros, **constants})


def _line(runs: Sequence[_Run], mode: CUDAGraphMode) -> tuple[float, float]:
    """Nodes of a forward and of each of its layers."""
    points = [(run.request.shape.num_layers, run.nodes(mode)) for run in runs]
    rows: list[Row] = [
        ({"forward": 1, "layer": layers}, nodes, nodes) for layers, nodes in points if nodes is not None
    ]
    if not rows:
        raise ValueError(f"no {mode} entry was captured; measure plans of both modes")
    line = non_negative(rows)
    return _significant(line["forward"]), _significant(line["layer"])


def non_negative(rows: Sequence[Row]) -> dict[str, float]:
    """The unknowns, none below 0, for which the sum of squared relative errors of ``rows`` is the least."""
    names = list(dict.fromkeys(name for unknowns, _, _ in rows for name in unknowns))
    scaled = [[unknowns.get(name, 0.0) / scale for name in names] for unknowns, _, scale in rows]
    squares = [sum(row[index] ** 2 for row in scaled) for index in range(len(names))]
    values = [0.0] * len(names)
    errors = [-figure / scale for _, figure, scale in rows]
    for _ in range(ROUNDS):
        for index, square in enumerate(squares):
            if not square:
                continue
            slope = sum(row[index] * error for row, error in zip(scaled, errors, strict=True))
            step = max(values[index] - slope / square, 0.0) - values[index]
            values[index] += step
            errors = [error + step * row[index] for row, error in zip(scaled, errors, strict=True)]
    return dict(zip(names, values, strict=True))


def _significant(value: float) -> float:
    return float(f"{value:.4g}")


def _provenance(measurements: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    environment = measurements[0]["environment"]
    shapes = ", ".join(one["shape"] for one in measurements)
    return {**environment, "shapes": shapes, "command": measurements[0]["command"]}
