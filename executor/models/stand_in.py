"""Which stand-in models a plan is captured with, and by what a record tells those of one capture."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from executor.models.config import DecoderConfig, DFlashConfig
from planner.descriptors import DFLASH_CONTEXT_KV
from planner.documents.plan import DRAFT, Plan


def shapes_digest(model: DecoderConfig, draft: DFlashConfig | None, max_model_len: int | None) -> str:
    """The SHA-256 of the shapes of stand-in models, which their records have as their config."""
    return hashlib.sha256(f"{model}\n{draft}\n{max_model_len}".encode()).hexdigest()


def full_digest(plan: Plan) -> str | None:
    """``shapes_digest`` of stand-ins in the full shape of the plan's own models.

    ``None`` where the plan knows no model.

    Raises:
        ModelError: the reference models cannot be its models.
    """
    config = plan.deployment.model.config
    if config is None:
        return None
    model = DecoderConfig.of(config.facts)
    draft = drafter_of(plan, None, model) if has_prologue(plan) else None
    return shapes_digest(model, draft, None)


def has_prologue(plan: Plan) -> bool:
    """Whether the plan has graphs of a DFlash drafter."""
    return any(
        entry.prologue is not None and entry.prologue.kind == DFLASH_CONTEXT_KV
        for entry in plan.graphs.get(DRAFT, ())
    )


def drafter_of(plan: Plan, draft: Mapping[str, object] | None, target: DecoderConfig) -> DFlashConfig:
    """The drafter by the config ``draft``, else by that of the plan's deployment.

    Raises:
        ModelError: the reference drafter cannot be the one that the config describes.
    """
    section = plan.deployment.speculative
    written = None if section is None else section.config
    if draft is not None:
        return DFlashConfig.of(draft)
    if written is not None:
        return DFlashConfig.of(written.facts)
    # The plan alone: a drafter of one layer in the shape of its target, for the plan's query length.
    return DFlashConfig(
        decoder=target,
        target_layer_ids=(0, target.num_hidden_layers - 1),
        target_hidden_size=target.hidden_size,
        mask_token_id=target.vocab_size - 1,
        block_size=max(draft_length(plan), 2),
    ).shrunk(target)


def draft_length(plan: Plan) -> int:
    """Tokens of a request in the drafter's longest query."""
    return max((entry.uniform_token_count or 1 for entry in plan.entries(DRAFT)), default=2)
