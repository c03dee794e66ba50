"""Calibration of the estimates, tried on a CPU with tiny models."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from planner.estimate.calibration import Calibration
from tools import calibrate_estimates
from tools.calibrate_estimates import KINDS, SHAPES, deployment, main, one
from tools.estimate_fitting import fitted, non_negative, plan_of, scored

LAYER, GRAPH, FIRST, SIZE = 0.003, 0.001, 0.5, 0.01


def measurement(shape: str) -> dict[str, Any]:
    """What a machine would measure that follows the formulas to the letter."""
    figures: dict[str, Any] = {
        "shape": shape,
        "command": "none",
        "environment": {"gpu": "made up", "torch": "2.11.0"},
        "context_tokens": 256,
        "deployments": {kind: deployment(shape, kind, "cuda") for kind in KINDS},
        "micro": [{"graph_seconds": GRAPH, "graph_bytes": 65536}],
        "runs": {},
    }
    layers = SHAPES[shape]["num_hidden_layers"]
    for kind in KINDS:
        rows: list[dict[str, Any]] = []
        seen: set[int] = set()
        for entry in plan_of(figures, kind).entries():
            graphs = 1 if entry.mode.name == "FULL" else layers + 1
            new = entry.num_tokens not in seen
            seen.add(entry.num_tokens)
            seconds = layers * LAYER + graphs * GRAPH + SIZE * new + FIRST * (not rows)
            rows.append(
                {
                    "mode": entry.mode.name,
                    "num_tokens": entry.num_tokens,
                    "warmup_seconds": seconds / 2,
                    "seconds": seconds / 2,
                    "num_nodes": 30 + layers * (70 if graphs == 1 else 40),
                    "num_graphs": graphs,
                }
            )
        nodes, graphs = (sum(row[name] for row in rows) for name in ("num_nodes", "num_graphs"))
        pool = 700_000_000
        figures["runs"][kind] = [
            {
                "seconds": sum(row["seconds"] + row["warmup_seconds"] for row in rows),
                "device_bytes": pool + 1_000_000 + 65536 * graphs + 2000 * nodes + 100_000_000,
                "pool_bytes": pool,
                "input_bytes": 1000,
                "output_bytes": 1_000_000,
                "entries": rows,
            }
        ]
    return figures


@cache
def constants_of_two_shapes() -> Calibration:
    return Calibration.from_json(fitted([measurement("0.6b"), measurement("8b")]))


def test_constants_that_made_the_figures_are_found_again() -> None:
    constants = constants_of_two_shapes()
    assert {mode.name: cost for mode, cost in constants.layer_seconds.items()} == pytest.approx(
        {"FULL": LAYER, "PIECEWISE": LAYER}, rel=0.05
    )
    assert constants.graph_seconds == GRAPH
    assert constants.first_seconds + constants.kind_seconds == pytest.approx(FIRST, rel=0.1)
    assert constants.size_seconds == pytest.approx(SIZE, rel=0.1)
    assert {mode.name: nodes for mode, nodes in constants.layer_nodes.items()} == pytest.approx(
        {"FULL": 70, "PIECEWISE": 40}, rel=0.02
    )
    assert constants.node_bytes == pytest.approx(2000, rel=0.1)


def test_an_unseen_shape_is_told_from_two_others() -> None:
    rows = scored(measurement("14b"), constants_of_two_shapes())
    assert {row["run"] for row in rows} == {"full", "mixed"}
    assert all(abs(row["seconds_error"]) < 0.05 for row in rows)
    assert all(abs(row["memory_error"]) < 0.25 for row in rows)


def test_no_constant_is_negative() -> None:
    rows = [({"a": 1.0, "b": 1.0}, 2.0, 2.0), ({"a": 1.0, "b": 2.0}, 1.0, 1.0)]
    found = non_negative(rows)
    assert found["b"] == 0
    assert found["a"] > 0


def test_nodes_that_were_not_counted_are_told() -> None:
    figures = measurement("0.6b")
    for row in figures["runs"]["full"][0]["entries"]:
        row["num_nodes"] = None
    with pytest.raises(ValueError, match="nodes were not counted"):
        fitted([figures])


@pytest.fixture
def fewer_processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Captures here, which has PyTorch loaded; only the small graphs in a process, as the script has it."""
    in_process, captured = calibrate_estimates._in_process, []

    def measured(device: str, shape: str, kind: str) -> Any:
        if shape == "micro":
            return in_process(device, shape, kind)
        captured.append(kind)
        return json.loads(json.dumps(one(device, shape, kind)))

    threads = torch.get_num_threads()
    monkeypatch.setattr(calibrate_estimates, "_in_process", measured)
    yield captured
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_the_script_measures_fits_and_scores_on_a_cpu(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fewer_processes: list[str],
) -> None:
    def said(*args: object) -> str:
        monkeypatch.setattr(sys, "argv", ["calibrate_estimates.py", *map(str, args)])
        main()
        return capsys.readouterr().out

    assert said("--device", "cpu", "--shapes", "tiny", "--repeats", 1, "--out", tmp_path) == ""
    assert fewer_processes == ["full", "mixed"]
    constants = said("--fit", tmp_path / "tiny.json")
    (tmp_path / "constants.json").write_text(constants, encoding="utf-8")
    assert Calibration.from_json(json.loads(constants)).provenance["gpu"] == "CPU"
    assert str(tmp_path) not in constants
    rows = json.loads(said("--score", tmp_path / "tiny.json", "--constants", tmp_path / "constants.json"))
    assert [row["run"] for row in rows] == ["full", "mixed"]
    assert all(row["seconds"]["estimated"] > 0 for row in rows)
