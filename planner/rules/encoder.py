"""Encoder graphs of multimodal models: one a token budget, each for a largest number of items.

Source: vLLM 0.33, encoder CUDA graphs (rules 8). Without both settings the budgets follow from the
model's processor, which no config tells.
"""

from __future__ import annotations

from planner.descriptors import PlanEntry
from planner.documents.deployment import Deployment
from planner.documents.plan import ResolvedFamily
from planner.errors import PlanError
from planner.modes import CUDAGraphMode
from planner.rules.family import Family, OtherFamilies, mode_decision, unplanned
from planner.rules.settings import Settings

ENCODER = "encoder"
BUDGETS_FIELD = "compilation.encoder_cudagraph_token_budgets"
ITEMS_FIELD = "compilation.encoder_cudagraph_max_vision_items_per_batch"


def encoder_families(deployment: Deployment, settings: Settings) -> OtherFamilies:
    """The encoder's graphs, where ``cudagraph_mm_encoder`` asks for them.

    Raises:
        PlanError: a budget below 1, or more items than the smallest budget has tokens.
    """
    compilation = deployment.compilation
    if not compilation.cudagraph_mm_encoder or (settings.target and not settings.target.is_multimodal):
        return OtherFamilies()
    budgets = tuple(sorted(set(compilation.encoder_cudagraph_token_budgets or ())))
    items = compilation.encoder_cudagraph_max_vision_items_per_batch or 0
    if budgets and budgets[0] < 1:
        raise PlanError(f"{budgets[0]} is no token budget; the least is 1", fields=(BUDGETS_FIELD,))
    if not budgets or not items:
        return unplanned(
            "encoder graphs (cudagraph_mm_encoder)",
            "their budgets follow from the model's image processor",
            f"{BUDGETS_FIELD} and {ITEMS_FIELD}",
        )
    if items > budgets[0]:
        raise PlanError(
            f"{items} items a batch do not fit the smallest budget of {budgets[0]} tokens; lower the one or "
            "raise the other",
            fields=(ITEMS_FIELD, BUDGETS_FIELD),
        )
    entries = tuple(PlanEntry(CUDAGraphMode.FULL, budget, items) for budget in reversed(budgets))
    resolved = ResolvedFamily(
        runner=settings.runner,
        cudagraph_mode=CUDAGraphMode.FULL,
        cudagraph_capture_sizes=budgets,
        max_cudagraph_capture_size=budgets[-1],
        max_num_seqs=items,
        max_num_batched_tokens=budgets[-1],
    )
    decision = mode_decision(
        ENCODER, CUDAGraphMode.FULL, "encoder-budgets", "one graph for each token budget"
    )
    family = Family(name=ENCODER, resolved=resolved, entries=entries, decisions=(decision,))
    return OtherFamilies(families=(family,))
