"""The rules of each engine beside vLLM, loaded when a deployment names it."""

from __future__ import annotations

from planner.documents.deployment import Deployment
from planner.engines.compiled import Compiled
from planner.engines.shared import SGLANG, engine_name


def compiled_by_engine(deployment: Deployment) -> Compiled:
    """What the rules of the deployment's engine, which is not vLLM, make of it.

    Raises:
        PlanError: the engine would refuse to start, or its graphs cannot be planned.
    """
    if engine_name(deployment) == SGLANG:
        from planner.engines.sglang.compile import compile_sglang

        return compile_sglang(deployment)
    from planner.engines.tensorrt_llm.compile import compile_tensorrt_llm

    return compile_tensorrt_llm(deployment)
