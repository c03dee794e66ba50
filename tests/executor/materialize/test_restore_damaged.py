"""Files that are sealed well and hold something else: entries are refused, nothing ends in a traceback."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import cattrs
import pytest
from attrs import evolve

from executor.materialize.saved import DamagedError, block_of, packed, unpacked
from tests.executor.materialize.worlds import Make, called_deeper, doubled, refused, saved_by


def rewritten(content: bytes, change: Callable[[Any], object], here: str = "") -> bytes:
    """The file with another header, sealed again; ``here`` stands for a text of its own."""
    saved = unpacked(content)
    header = json.loads(json.dumps(cattrs.unstructure(saved.header)))
    change(header)
    text = json.dumps(header).replace('"here"', here).encode()
    body = len(text).to_bytes(8, "little") + text + content[saved.starts[0] :]
    return content[:8] + hashlib.sha256(body).digest() + body


def put(path: str, value: Any) -> Callable[[Any], None]:
    def change(at: Any) -> None:
        *front, last = [int(each) if each.lstrip("-").isdigit() else each for each in path.split("/")]
        for key in front:
            at = at[key]
        at[last] = value

    return change


STEP = "entries/0/steps/1"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("entries/0/steps/0", 99),
        ("entries/0/steps/0", None),
        ("entries/0/steps/0", "x"),
        (STEP, {}),
        (f"{STEP}/operation", []),
        (f"{STEP}/args", 3),
        (f"{STEP}/args", {"tuple": [{"tensor": []}]}),
        (f"{STEP}/args", {"tuple": [{"tensor": [0, 0, "load", [1], [1]]}]}),
        (f"{STEP}/args", {"tuple": [{"tensor": [0, 0, "float32", [1 << 40], [1]]}]}),
        (f"{STEP}/args", {"tuple": [{"tensor": [0, 0, "float32", [2.5], [1]]}]}),
        (f"{STEP}/args", {"tuple": [{"tensor": [0, 0, "float32", [0], [1 << 40]]}]}),
        (f"{STEP}/args", {"tuple": [{"tensor": [0, 0, "float32", [1 << 70, 0], [0, 0]]}]}),
        (f"{STEP}/args", {"tuple": [{"tensor": [0, -8, "float32", [1], [1]]}]}),
        (f"{STEP}/args", {"tuple": [{"tensor": [99, 0, "float32", [1], [1]]}]}),
        (f"{STEP}/args", {"tuple": [{"tensor": [[], 0, "float32", [1], [1]]}]}),
        (f"{STEP}/args", {"tuple": [{"tensor": [0, 2, "float32", [2], [1]]}]}),
        (f"{STEP}/kwargs", [1]),
        ("entries/0/outputs", {"tensor": [99, 1]}),
        ("entries/0/outputs", {"tensor": [0, 99]}),
        ("entries/0/outputs", {"tensor": [0, -1]}),
        ("entries/0/outputs", {"tensor": [0, "x"]}),
        ("entries/0/outputs", {"set": []}),
    ],
)
def test_an_entry_that_is_not_what_was_written_is_captured(world: Make, path: str, value: Any) -> None:
    content, outputs = saved_by(world())
    two = world()
    report = two.restore(rewritten(content, put(path, value)), outputs)
    assert list(refused(report)) == [two.entries[0]]
    assert not report.failed
    two.check()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("calls", []),
        ("calls", [["mm", "default", [{"tensor": ["float32", [1 << 40, 4], [4, 1], False]}], {}]]),
        ("calls", [[1, 2, 3, 4], "x", None]),
        ("calls", [["os", "system", ["true"], {}]]),
        ("kernels/0/call", None),
        ("kernels/0/call/call", 99),
        ("kernels/0/call/node", -1),
        ("kernels/0/call", {"call": 0, "node": 99}),
        ("kernels/0/identity/name", "other"),
        ("kernels/0/dynamic_shared", 1 << 30),
    ],
)
def test_kernels_that_are_not_found_by_what_is_written_are_refused(
    world: Make, path: str, value: Any
) -> None:
    content, outputs = saved_by(world())
    two = world()
    report = two.restore(rewritten(content, put(path, value)), outputs)
    assert refused(report)
    assert all(reason is None or reason.startswith("kernel ") for reason in refused(report).values())
    assert not report.failed
    two.check()


@pytest.mark.parametrize(
    "recipe",
    [
        {"call": None, "entry": None},
        {"call": None, "entry": {"entry": 99, "graph": 0, "node": 0}},
        {"call": None, "entry": {"entry": -1, "graph": 0, "node": 0}},
        {"call": None, "entry": {"entry": 3, "graph": 99, "node": 0}},
        {"call": None, "entry": {"entry": 3, "graph": 0, "node": 99}},
        {"call": None, "entry": {"entry": 3, "graph": -1, "node": -1}},
    ],
)
def test_recipes_that_lead_nowhere_are_refused(world: Make, recipe: Any) -> None:
    content, outputs = saved_by(world())
    two = world()
    report = two.restore(rewritten(content, lambda header: header["kernels"][0].update(recipe)), outputs)
    assert len([reason for reason in refused(report).values() if reason]) >= 3
    assert not report.failed
    two.check()


@pytest.mark.parametrize("depth", range(300, 500, 20))
def test_outputs_of_any_depth_end_in_no_traceback(world: Make, depth: int) -> None:
    content, outputs = saved_by(world())
    two = world()
    text = '{"list":[' * depth + "{}" + "]}" * depth
    damaged = rewritten(content, put("entries/0/outputs", "here"), text)
    try:
        saved = unpacked(damaged)
    except DamagedError as error:
        assert "too deep" in str(error)  # noqa: PT017 - only one of several outcomes
        return
    report = called_deeper(250, lambda: two.restore(saved, outputs))
    assert list(refused(report)) == [two.entries[0]]
    assert not report.failed


def test_a_loader_whose_graph_is_damaged_gives_no_kernels(world: Make) -> None:
    content, outputs = saved_by(world(more=doubled))
    two = world(more=doubled)
    saved = unpacked(content)
    graphs = [saved.graph(number) for number in range(len(saved.header.graphs))]
    for step in saved.header.entries[1].steps:
        if isinstance(step, int):
            graphs[step].words[2] = -1
    blocks = [block_of(graph) for graph in graphs]
    rows = [evolve(row, num_bytes=len(block)) for row, block in zip(saved.header.graphs, blocks, strict=True)]
    report = two.restore(packed(evolve(saved.header, graphs=rows), blocks), outputs)
    reason = "kernel triton_double: its entry's words are damaged: a node beyond the end"
    assert refused(report) == {two.entries[1]: None, two.entries[2]: reason, two.entries[3]: reason}
    two.check()
