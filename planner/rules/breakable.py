"""Breakable graphs: forwards recorded in pieces that end at run time, without compilation.

Source: vLLM 0.33, ``VLLM_USE_BREAKABLE_CUDAGRAPH`` and the architectures that turn it on (rules 3.5).
Batch-invariant mode turns it on for some tuned shapes as well; those are not modelled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.documents.deployment import Deployment

if TYPE_CHECKING:
    from planner.models.facts import ModelFacts

BREAKABLE_ENV = "VLLM_USE_BREAKABLE_CUDAGRAPH"

BREAKABLE_ARCHITECTURES = (
    "AliceAI",
    "Beam",
    "DeepseekV32",
    "DeepseekV4",
    "Dots3Note",
    "Glm5Next",
    "GlmMoeDsa",
    "HYV4",
    "Inkling",
    "KimiK3",
    "KimiLinear",
    "MiniMaxM3Sparse",
    "MuseSpark",
    "Qwen4Exp",
    "Step5",
)
"""Beginnings of the architectures that are served with breakable graphs unless the switch says no."""


UNCOMPILED_ARCHITECTURES = ("LongcatFlashNgram",)
"""Beginnings of the architectures that are recorded whole instead, unless a compile mode is written."""


def uncompiled_reason(target: ModelFacts | None) -> str | None:
    """Why the model is not compiled where no compile mode is written, ``None`` where it is.

    Source: vLLM 0.33, overrides by model (rules 2.7).
    """
    architecture = (target and target.architecture) or ""
    if architecture.startswith(UNCOMPILED_ARCHITECTURES):
        return f"{architecture} is recorded whole and not compiled, unless compilation.mode is written"
    return None


def breakable_reason(deployment: Deployment, target: ModelFacts | None) -> str | None:
    """Why graphs are breakable, ``None`` where they are not.

    Raises:
        PlanError: the environment variable is neither 0 nor 1.
    """
    switch = deployment.engine.flag(BREAKABLE_ENV)
    if switch is not None:
        return f"{BREAKABLE_ENV} is 1: graphs break at run time, without compilation" if switch else None
    architecture = (target and target.architecture) or ""
    if architecture.startswith(BREAKABLE_ARCHITECTURES):
        return f"{architecture} is served with breakable graphs, without compilation"
    return None
