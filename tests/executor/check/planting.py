"""The planted forwards: functions that are given a device and return a forward on it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tests.executor.check.planted import clean, host, state

Build = Callable[[Any], Callable[[], Any]]


def _functions_of(module: ModuleType) -> list[Build]:
    return [each for each in vars(module).values() if inspect.isfunction(each)]


HOST = _functions_of(host)
STATE = _functions_of(state)
CLEAN = _functions_of(clean)


def marked(build: Build, mark: str = "FAULT") -> set[tuple[str, int]]:
    """The faults that comments announce: (code, line)."""
    lines, first = inspect.getsourcelines(build)
    return {
        (code, first + number)
        for number, line in enumerate(lines)
        if (found := re.search(rf"# {mark}: (.*)$", line))
        for code in found[1].split()
    }


def named(build: Build) -> str:
    return build.__name__
