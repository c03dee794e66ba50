"""The worker's extension, in the hands of vLLM's own worker."""

from __future__ import annotations

from collections.abc import Iterator

from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.worker.gpu_worker import Worker

from vllm_side.report import Report
from vllm_side.serving import parsed

NAME = "planner.engines.vllm_worker.PlanComparison"


def check_extension(report: Report) -> None:
    """Whether the flag takes the extension, and the worker can have it for a base class."""
    report.add("worker extension", NAME, list(_differences()))


def _differences() -> Iterator[str]:
    named = parsed(["m", "--worker-extension-cls", NAME]).worker_extension_cls
    extension = resolve_obj_by_qualname(named)
    for name in dir(extension):
        if not name.startswith("__") and hasattr(Worker, name):
            yield f"the worker has a {name} of its own"
    extended = type("Extended", (Worker, extension), {})
    if extended.graphplan_differences is not extension.graphplan_differences:
        yield "the worker hides the extension's methods"
