"""Structured logs: one line of JSON an event, whatever stands in it."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cache.safe import SafeCache
from executor.logs import LOGGER, ROOT, JsonLines, log_as_json
from executor.manager import CudaGraphManager
from planner.descriptors import BatchExecutionDescriptor
from tests.cache import samples
from tests.executor.toys import Toy, sizes_plan


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where events go while the test runs."""
    written = io.StringIO()
    root = logging.getLogger(ROOT)
    before = root.level, root.propagate
    handler = log_as_json(written)
    yield written
    root.removeHandler(handler)
    root.setLevel(before[0])
    root.propagate = before[1]


def events(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def captured() -> CudaGraphManager:
    def spoil(desc: BatchExecutionDescriptor, inputs: torch.Tensor) -> None:
        if desc.num_tokens == 4:
            inputs.sum().item()

    manager = CudaGraphManager(sizes_plan(8, 4, 2), device="cpu")
    manager.capture(Toy(8, spoil=spoil).create_forward)
    return manager


def test_a_capture_is_one_event_and_each_failure_another(stream: io.StringIO) -> None:
    captured()
    failed, done = events(stream)
    assert (failed["level"], failed["event"], failed["num_tokens"]) == ("warning", "entry failed", 4)
    assert "reads a value back" in failed["error"]
    assert failed["fix"]
    assert (done["level"], done["logger"], done["event"]) == ("info", "graphplan.executor", "captured")
    assert (done["family"], done["device"]) == ("target", "cpu")
    counts = [done[f"num_{name}"] for name in ("captured", "restored", "failed", "remaining")]
    assert counts == [2, 0, 1, 0]
    assert done["seconds"] > 0


def test_steps_log_nothing(stream: io.StringIO) -> None:
    manager = captured()
    before = stream.getvalue()
    key: Any = manager.dispatch(num_reqs=2, num_tokens=2, uniform_token_count=1)  # type: ignore[call-arg]
    manager.run_fullgraph(key)
    manager.count_eager()
    assert stream.getvalue() == before


def test_what_the_cache_warns_of_is_an_event_too(stream: io.StringIO, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("mine")
    SafeCache(tmp_path / "cache").get_plan(samples.deployment())
    (warning,) = events(stream)
    assert (warning["level"], warning["logger"]) == ("warning", "graphplan.cache")
    assert "is no directory" in warning["event"]


def test_whatever_stands_in_an_event_it_is_one_line_of_json(stream: io.StringIO) -> None:
    odd = {
        "text": "two\nlines \u2028 \ud800",
        "nan": float("nan"),
        "set": {1},
        "other": object,
        "path": Path("a"),
    }
    LOGGER.info("odd %s\n", "event", extra={**odd, "deep": {1: [None, True]}, "level": "mine", "args_": 3})
    try:
        raise ValueError("wrong\nin two lines")
    except ValueError:
        LOGGER.exception("failed")
    one, two = events(stream)
    assert (one["event"], one["nan"], one["set"], one["path"]) == ("odd event\n", "nan", [1], "a")
    assert one["deep"] == {"1": [None, True]}
    assert one["level"] == "info"  # a field of the event does not hide what each line has
    assert two["error"] == "ValueError: wrong\\nin two lines"
    assert "Traceback" in two["traceback"]


def test_times_are_in_utc() -> None:
    record = logging.makeLogRecord({"created": 0.0, "msg": "x", "name": "n", "levelname": "INFO"})
    assert json.loads(JsonLines().format(record)) == {
        "time": "1970-01-01T00:00:00.000+00:00",
        "level": "info",
        "logger": "n",
        "event": "x",
    }


def test_nothing_is_printed_until_somebody_asks(capfd: pytest.CaptureFixture[str]) -> None:
    captured()
    assert capfd.readouterr() == ("", "")


def test_by_default_lines_go_to_stderr() -> None:
    handler: Any = log_as_json()
    logging.getLogger(ROOT).removeHandler(handler)
    logging.getLogger(ROOT).propagate = True
    logging.getLogger(ROOT).setLevel(logging.NOTSET)
    assert handler.stream is sys.stderr
