"""Decoder replay graphs: what a DeepSeek-V4.1 server captures beside the target's own graphs.

Source: vLLM 0.33, replay of the decoder's last layers over a window of each prefill (rules 2.7, 10.1). Their
default sizes follow from a window that the model's class decides, so the family is not planned.
"""

from __future__ import annotations

from planner.documents.deployment import Deployment
from planner.documents.plan import ResolvedFamily
from planner.errors import PlanError
from planner.modes import Runner
from planner.rules.family import OtherFamilies, unplanned
from planner.rules.settings import Settings

REPLAYING = "DeepseekV41"
"""Beginning of the architectures whose decoder is replayed."""

SWITCH_FIELD = "compilation.cudagraph_decoder_replay"
SIZES_FIELD = "compilation.decoder_replay_cudagraph_capture_sizes"


def decoder_replay_families(
    deployment: Deployment, settings: Settings, target: ResolvedFamily
) -> OtherFamilies:
    """The finding that replay graphs are captured, where they are.

    Raises:
        PlanError: a size above the token budget.
    """
    compilation = deployment.compilation
    architecture = (settings.target and settings.target.architecture) or ""
    captured = (
        architecture.startswith(REPLAYING)
        and settings.runner is Runner.V2
        and compilation.cudagraph_decoder_replay is not False
        and target.cudagraph_mode.has_piecewise_cudagraphs()
        and settings.breakable_because is not None
        and deployment.lora is None
    )
    if not captured:
        return OtherFamilies()
    largest = max(compilation.decoder_replay_cudagraph_capture_sizes or (), default=0)
    if largest > settings.max_num_batched_tokens:
        raise PlanError(
            f"{largest} tokens are more than the budget of a step, {settings.max_num_batched_tokens}; leave "
            "larger sizes out",
            fields=(SIZES_FIELD, "scheduler.max_num_batched_tokens"),
        )
    return unplanned(
        "decoder replay graphs (cudagraph_decoder_replay)",
        f"their sizes follow from a window that the class of {architecture} decides",
        f"{SWITCH_FIELD}: false",
    )
