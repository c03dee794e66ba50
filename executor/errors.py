"""Errors of the executor, one class a kind, under the project's one base."""

from __future__ import annotations

from planner.errors import GraphplanError


class ExecutorError(GraphplanError):
    """Base of all errors of capture and replay."""


class ContextError(ExecutorError):
    """A forward context that is missing, or whose fields contradict each other."""


class InputError(ExecutorError):
    """Inputs that do not fit the buffers or the batch that they are meant for."""


class ModelError(ExecutorError):
    """A model that cannot be built from its config, or does not do what its runner needs."""


class CaptureError(ExecutorError):
    """A forward that cannot be recorded, or a recording that is used in a wrong way."""


class ReplayError(ExecutorError):
    """A graph that is asked for and was never captured, or was released."""


class RanksError(ExecutorError):
    """Ranks that were started differently, or one that ended, came late or failed while others waited."""

    exit_code = 3
