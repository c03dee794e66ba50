"""What is particular to draft models: DFlash's causality, and the layers that MTP adds."""

from __future__ import annotations

from attrs import frozen

from planner.models.layers import Layer, LayerKind
from planner.models.reader import ConfigReader


@frozen(kw_only=True)
class DFlashFacts:
    """A DFlash draft: how many tokens it proposes at once, from which of the target's layers.

    ``causal`` is ``None`` where each layer decides for itself: those with a sliding window
    attend backwards only, the others to the whole block.
    """

    block_size: int | None
    target_layer_ids: tuple[int, ...]
    causal: bool | None


def dflash_facts(config: ConfigReader, architecture: str | None) -> DFlashFacts | None:
    """The facts of a DFlash draft, ``None`` for every other model.

    Source: vLLM 0.33, DFlash causality (rules 7.6).

    Raises:
        PlanError: a key has a value of the wrong type.
    """
    inner = config.nested("dflash_config")
    if inner is None and "DFlash" not in (architecture or ""):
        return None
    causal = config.flag("is_causal")
    if causal is None and inner is not None:
        causal = inner.flag("causal")
    if causal is None and not config.has("layer_types"):
        causal = False
    places = (config,) if inner is None else (inner, config)
    sizes = (place.integer("block_size", minimum=1) for place in places)
    ids = (place.integers("target_layer_ids") for place in places)
    return DFlashFacts(
        block_size=next((size for size in sizes if size is not None), None),
        target_layer_ids=next((found for found in ids if found is not None), ()),
        causal=causal,
    )


def is_non_causal(facts: DFlashFacts | None, layers: tuple[Layer, ...]) -> bool:
    """Whether some layer of a draft of the DFlash family looks ahead within its block."""
    causal = None if facts is None else facts.causal
    if causal is not None:
        return not causal
    return any(layer.kind is not LayerKind.SLIDING_WINDOW for layer in layers)


def mtp_layers(layers: tuple[Layer, ...], num_mtp_layers: int) -> tuple[Layer, ...]:
    """The caches of a multi-token-prediction module: built as the target's last attention layer.

    ``layers`` are the target's. A checkpoint that counts no such layers is taken to have one.
    """
    attending = [layer.index for layer in layers if layer.kind is not LayerKind.MAMBA]
    last = tuple(layer for layer in layers if attending and layer.index == attending[-1])
    return last * max(num_mtp_layers, 1)
