"""A watchdog over every test of the cache, and a cache to test."""

from __future__ import annotations

import faulthandler
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from cache.store import PlanCache

LONGEST_TEST = 60
"""Seconds after which a test fails; a test that does not even notice ends the run soon after."""


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """Has a test that waits for ever fail: waiting for ever is the fault that the cache must not have."""

    def bark(_: int, __: FrameType | None) -> None:
        raise TimeoutError(f"the test had not ended after {LONGEST_TEST} s")

    before = signal.signal(signal.SIGALRM, bark)
    signal.alarm(LONGEST_TEST)
    faulthandler.dump_traceback_later(LONGEST_TEST + 10, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where a cache may be."""
    return tmp_path / "cache"


@pytest.fixture
def cache(directory: Path) -> Iterator[PlanCache]:
    """An empty cache."""
    with PlanCache(directory) as opened:
        yield opened
