"""What each decoder layer keeps between steps: the kinds of its caches, by model type.

A model's layers are read from its config the way its own model class reads them. Layers without
a cache, such as the feed-forward layers of Nemotron-H, do not appear.

Source: vLLM 0.33, model classes and KV-cache specs; transformers' defaults for layer patterns
that a config leaves out.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from types import MappingProxyType

from attrs import evolve, frozen

from planner.models.reader import ConfigReader

MAX_LAYERS = 4096
"""Most layers that a config may speak of: far above any real model, and a bound on memory."""


class LayerKind(enum.Enum):
    """What a layer caches; the values are vLLM's own names of KV-cache kinds."""

    FULL_ATTENTION = "full_attention"
    SLIDING_WINDOW = "sliding_window"
    CHUNKED_LOCAL_ATTENTION = "chunked_local_attention"
    MLA_ATTENTION = "mla_attention"
    MAMBA = "mamba"
    CROSS_ATTENTION = "cross_attention"
    ENCODER_ONLY_ATTENTION = "encoder_only_attention"

    def __str__(self) -> str:
        return self.value


class Mixer(enum.Enum):
    """How a layer mixes tokens. ``OTHER`` is a mixer whose backend is not derived."""

    ATTENTION = "attention"
    SPARSE_INDEXER = "sparse indexer"
    MAMBA1 = "Mamba1"
    MAMBA2 = "Mamba2"
    GATED_DELTA_NET = "gated delta net"
    LINEAR_ATTENTION = "linear attention"
    SHORT_CONVOLUTION = "short convolution"
    OTHER = "other"


@frozen(kw_only=True)
class Layer:
    """One cache of one layer. Heads are those of the whole model, sizes count elements.

    ``v_head_size`` differs from ``head_size`` where keys and values have different widths. For
    MLA, ``head_size`` is that of the latent cache. ``index`` is the decoder layer's number.
    """

    index: int
    kind: LayerKind
    mixer: Mixer = Mixer.ATTENTION
    num_heads: int = 0
    num_kv_heads: int = 0
    head_size: int = 0
    v_head_size: int = 0
    sinks: bool = False


@frozen(kw_only=True)
class LayerPlan:
    """What the layers of one model are built from.

    ``attention`` is the model's ordinary attention layer, ``sliding_window`` the model-wide
    window in tokens, ``None`` without one.
    """

    config: ConfigReader
    model_type: str
    num_layers: int
    attention: Layer
    sliding_window: int | None
    encoder_only: bool
    sparse: bool

    def layer(self, index: int, kind: LayerKind, mixer: Mixer = Mixer.ATTENTION) -> Layer:
        """The ordinary layer as layer ``index``, of another kind or with another mixer."""
        return evolve(self.attention, index=index, kind=kind, mixer=mixer)


_Builder = Callable[[LayerPlan], tuple[Layer, ...]]

_LAYER_TYPES: Mapping[str, tuple[LayerKind, Mixer]] = MappingProxyType(
    {
        "full_attention": (LayerKind.FULL_ATTENTION, Mixer.ATTENTION),
        "attention": (LayerKind.FULL_ATTENTION, Mixer.ATTENTION),
        "sliding_attention": (LayerKind.SLIDING_WINDOW, Mixer.ATTENTION),
        "chunked_attention": (LayerKind.CHUNKED_LOCAL_ATTENTION, Mixer.ATTENTION),
        "mamba": (LayerKind.MAMBA, Mixer.MAMBA2),
        "conv": (LayerKind.MAMBA, Mixer.SHORT_CONVOLUTION),
    }
)

_SLIDING_PERIODS: Mapping[str, int] = MappingProxyType(
    {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gemma3n": 5, "gemma3n_text": 5, "cohere2": 4, "olmo3": 4}
)
"""Every so many layers one attends to everything, the others slide, unless the config says so."""


def model_layers(plan: LayerPlan) -> tuple[Layer, ...]:
    """The caches of a model's layers, in layer order.

    Raises:
        PlanError: a key that says which layer is of which kind contradicts the layer count or
            holds an unknown value.
    """
    if plan.encoder_only:
        return tuple(plan.layer(index, LayerKind.ENCODER_ONLY_ATTENTION) for index in range(plan.num_layers))
    latent = plan.attention.kind is LayerKind.MLA_ATTENTION
    return _BUILDERS.get(plan.model_type, _latent if latent else _by_layer_type)(plan)


def _by_layer_type(plan: LayerPlan) -> tuple[Layer, ...]:
    names = plan.config.texts("layer_types")
    if names is None:
        return tuple(plan.layer(index, _window_kind(plan, index)) for index in range(plan.num_layers))
    if len(names) < plan.num_layers:
        raise plan.config.error(
            "layer_types", f"names {len(names)} layers but num_hidden_layers is {plan.num_layers}"
        )
    return tuple(
        _named_layer(plan, index, name) for index, name in zip(range(plan.num_layers), names, strict=False)
    )


def _named_layer(plan: LayerPlan, index: int, name: str) -> Layer:
    if name == "linear_attention":
        return plan.layer(index, LayerKind.MAMBA, _linear_mixer(plan.model_type))
    kind, mixer = _LAYER_TYPES.get(name, (LayerKind.MAMBA, Mixer.OTHER))
    if kind is LayerKind.SLIDING_WINDOW and plan.sliding_window is None:
        kind = LayerKind.FULL_ATTENTION
    return plan.layer(index, kind, mixer)


def _linear_mixer(model_type: str) -> Mixer:
    if model_type.startswith(("qwen3_next", "qwen3_5")):
        return Mixer.GATED_DELTA_NET
    if model_type.startswith("minimax"):
        return Mixer.LINEAR_ATTENTION
    return Mixer.OTHER


def _window_kind(plan: LayerPlan, index: int) -> LayerKind:
    """The kind of a layer that ``layer_types`` does not name."""
    if plan.sliding_window is None:
        return LayerKind.FULL_ATTENTION
    period = plan.config.integer("sliding_window_pattern", "_sliding_window_pattern", minimum=1)
    period = period or _SLIDING_PERIODS.get(plan.model_type)
    first = plan.config.integer("max_window_layers") if plan.config.flag("use_sliding_window") else None
    slides = (index + 1) % period != 0 if period else first is None or index >= first
    return LayerKind.SLIDING_WINDOW if slides else LayerKind.FULL_ATTENTION


def _latent(plan: LayerPlan) -> tuple[Layer, ...]:
    """Multi-head latent attention; sparse models cache an indexer before it in every layer."""
    layers = []
    for index in range(plan.num_layers):
        if plan.sparse and _has_indexer(plan.config, index):
            layers.append(plan.layer(index, LayerKind.MLA_ATTENTION, Mixer.SPARSE_INDEXER))
        layers.append(plan.layer(index, LayerKind.MLA_ATTENTION))
    return tuple(layers)


def _has_indexer(config: ConfigReader, index: int) -> bool:
    """Whether a layer computes indices of its own rather than reusing the layer's before it."""
    pattern = config.text("index_topk_pattern")
    if pattern is not None:
        return index >= len(pattern) or pattern[index] != "S"
    frequency = config.integer("index_topk_freq", minimum=1) or 1
    return max(index - 1, 0) % frequency == 0


def _gpt_oss(plan: LayerPlan) -> tuple[Layer, ...]:
    """The model class goes by the layer's number, whatever ``layer_types`` says."""
    sliding = LayerKind.SLIDING_WINDOW if plan.sliding_window else LayerKind.FULL_ATTENTION
    kinds = (sliding, LayerKind.FULL_ATTENTION)
    return tuple(evolve(plan.layer(i, kinds[i % 2]), sinks=True) for i in range(plan.num_layers))


def _llama4(plan: LayerPlan) -> tuple[Layer, ...]:
    """Layers with rotary positions attend within chunks, the others to everything."""
    rotary = plan.config.integers("no_rope_layers") or ()
    period = plan.config.integer("no_rope_layer_interval", minimum=1) or 4
    chunked = plan.config.integer("attention_chunk_size", minimum=1) is not None

    def kind(index: int) -> LayerKind:
        rotates = rotary[index] != 0 if index < len(rotary) else (index + 1) % period != 0
        return LayerKind.CHUNKED_LOCAL_ATTENTION if chunked and rotates else LayerKind.FULL_ATTENTION

    return tuple(plan.layer(index, kind(index)) for index in range(plan.num_layers))


def _gemma4(plan: LayerPlan) -> tuple[Layer, ...]:
    """Layers that attend to everything have heads of their own size and number."""
    config = plan.config
    head_size = config.integer("global_head_dim", minimum=1) or plan.attention.head_size
    num_kv_heads = config.integer("num_global_key_value_heads", minimum=1) or plan.attention.num_kv_heads
    return tuple(
        evolve(layer, head_size=head_size, v_head_size=head_size, num_kv_heads=num_kv_heads)
        if layer.kind is LayerKind.FULL_ATTENTION
        else layer
        for layer in _by_layer_type(plan)
    )


def _mimo(plan: LayerPlan) -> tuple[Layer, ...]:
    """Keys wider than values; the pattern's 1 marks a layer with a window and its own heads."""
    config, full = plan.config, plan.attention
    pattern = config.integers("hybrid_layer_pattern")
    if pattern is None or len(pattern) < plan.num_layers:
        raise config.error("hybrid_layer_pattern", f"must have an item for each of {plan.num_layers} layers")
    windowed = evolve(
        full,
        kind=LayerKind.SLIDING_WINDOW,
        num_heads=config.integer("swa_num_attention_heads", minimum=1) or full.num_heads,
        num_kv_heads=config.integer("swa_num_key_value_heads", minimum=1) or full.num_kv_heads,
        head_size=config.integer("swa_head_dim", minimum=1) or full.head_size,
        v_head_size=config.integer("swa_v_head_dim", "v_head_dim", minimum=1) or full.v_head_size,
        sinks=bool(config.flag("add_swa_attention_sink_bias")),
    )
    full = evolve(
        full,
        v_head_size=config.integer("v_head_dim", minimum=1) or full.v_head_size,
        sinks=bool(config.flag("add_full_attention_sink_bias")),
    )
    return tuple(evolve(windowed if pattern[i] == 1 else full, index=i) for i in range(plan.num_layers))


def _every(mixer: Mixer) -> _Builder:
    def build(plan: LayerPlan) -> tuple[Layer, ...]:
        return tuple(plan.layer(index, LayerKind.MAMBA, mixer) for index in range(plan.num_layers))

    return build


def _nemotron_h(plan: LayerPlan) -> tuple[Layer, ...]:
    """One letter a layer: M is Mamba2, * attention, the others keep nothing."""
    pattern = plan.config.text("hybrid_override_pattern")
    if pattern is None or len(pattern) < plan.num_layers:
        raise plan.config.error(
            "hybrid_override_pattern", f"must have a letter for each of {plan.num_layers} layers"
        )
    caches = {"M": (LayerKind.MAMBA, Mixer.MAMBA2), "*": (LayerKind.FULL_ATTENTION, Mixer.ATTENTION)}
    return tuple(
        plan.layer(index, *caches[pattern[index]])
        for index in range(plan.num_layers)
        if pattern[index] in caches
    )


def _qwen3_next(plan: LayerPlan) -> tuple[Layer, ...]:
    if plan.config.has("layer_types"):
        return _by_layer_type(plan)
    period = plan.config.integer("full_attention_interval", minimum=1) or 4
    return tuple(
        plan.layer(index, LayerKind.FULL_ATTENTION)
        if (index + 1) % period == 0
        else plan.layer(index, LayerKind.MAMBA, Mixer.GATED_DELTA_NET)
        for index in range(plan.num_layers)
    )


def _jamba(plan: LayerPlan) -> tuple[Layer, ...]:
    period = plan.config.integer("attn_layer_period", minimum=1) or 8
    offset = plan.config.integer("attn_layer_offset")
    offset = 4 if offset is None else offset
    return tuple(
        plan.layer(index, LayerKind.FULL_ATTENTION)
        if index % period == offset % period
        else plan.layer(index, LayerKind.MAMBA, Mixer.MAMBA1)
        for index in range(plan.num_layers)
    )


def _minimax_text(plan: LayerPlan) -> tuple[Layer, ...]:
    """A list of 1 for attention and 0 for linear attention."""
    pattern = plan.config.integers("attn_type_list")
    if pattern is None:
        return _by_layer_type(plan)
    if len(pattern) < plan.num_layers:
        raise plan.config.error("attn_type_list", f"must have an item for each of {plan.num_layers} layers")
    return tuple(
        plan.layer(index, LayerKind.FULL_ATTENTION)
        if pattern[index] == 1
        else plan.layer(index, LayerKind.MAMBA, Mixer.LINEAR_ATTENTION)
        for index in range(plan.num_layers)
    )


def _falcon_h1(plan: LayerPlan) -> tuple[Layer, ...]:
    """Every layer runs Mamba2 and attention side by side."""
    return tuple(
        layer
        for index in range(plan.num_layers)
        for layer in (
            plan.layer(index, LayerKind.MAMBA, Mixer.MAMBA2),
            plan.layer(index, LayerKind.FULL_ATTENTION),
        )
    )


def cross_attention_layers(plan: LayerPlan) -> tuple[Layer, ...]:
    """Each decoder layer of an encoder-decoder attends to itself and to the encoder's output."""
    return tuple(
        plan.layer(index, kind)
        for index in range(plan.num_layers)
        for kind in (LayerKind.FULL_ATTENTION, LayerKind.CROSS_ATTENTION)
    )


_BUILDERS: Mapping[str, _Builder] = MappingProxyType(
    {
        **dict.fromkeys(
            ("bailing_hybrid", "bamba", "kimi_linear", "phi4flash", "plamo2", "zamba2"), _every(Mixer.OTHER)
        ),
        "falcon_h1": _falcon_h1,
        "falcon_mamba": _every(Mixer.MAMBA1),
        "gemma4_text": _gemma4,
        "gpt_oss": _gpt_oss,
        "jamba": _jamba,
        "llama4": _llama4,
        "llama4_text": _llama4,
        "mamba": _every(Mixer.MAMBA1),
        "mamba2": _every(Mixer.MAMBA2),
        "mimo_v2": _mimo,
        "mimo_v2_flash": _mimo,
        "minimax": _minimax_text,
        "minimax_text_01": _minimax_text,
        "nemotron_h": _nemotron_h,
        "qwen3_5_moe_text": _qwen3_next,
        "qwen3_5_text": _qwen3_next,
        "qwen3_next": _qwen3_next,
    }
)
