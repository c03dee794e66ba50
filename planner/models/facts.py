"""What planning knows of a model: the facts of its Hugging Face ``config.json``.

Source: vLLM 0.33, model config and its per-architecture convertors, and the model classes.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from planner.models.draft import DFlashFacts, dflash_facts
from planner.models.layers import (
    MAX_LAYERS,
    Layer,
    LayerKind,
    LayerPlan,
    cross_attention_layers,
    model_layers,
)
from planner.models.mamba import MambaState, mamba_state
from planner.models.reader import ConfigReader

# fmt: off
MLA_MODEL_TYPES = frozenset(
    {
        "axk1", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4", "deepseek_v41",
        "deepseek_mtp", "dots3_note", "k3_dspark", "glm5_next", "glm5_next_text", "glm_moe_dsa",
        "glm4_moe_lite", "glm4_moe_lite_mtp", "kimi_k2", "kimi_linear", "longcat_flash",
        "pangu_ultra_moe", "pangu_ultra_moe_mtp", "bailing_hybrid", "bailing_hybrid_mtp",
        "bailing_hybrid_v3_mtp", "hy_v4", "hy_v4_mtp",
    }
)
# fmt: on
"""Text model types that cache a latent vector a token, if the config also gives its width."""

# fmt: off
ENCODER_MODEL_TYPES = frozenset(
    {
        "albert", "bert", "camembert", "distilbert", "electra", "gte", "modernbert", "mpnet", "new",
        "nomic_bert", "roberta", "snowflake", "xlm-roberta", "xlm_roberta",
    }
)
# fmt: on
"""Text model types whose layers attend in both directions and keep no cache."""

GENERATING_SUFFIXES = ("ChatGLMModel", "ChatModel", "LMHeadModel", "NVLM_D_Model")
"""Endings of architectures that generate text although they end in Model."""

POOLING_SUFFIXES = (
    "ForTextEncoding",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForAudioClassification",
    "ForImageClassification",
    "ForVideoClassification",
    "ClassificationModel",
    "ForRewardModeling",
    "Model",
)
"""Endings of architectures that return vectors or scores, but for drafts and those above."""

MM_PREFIX_MODEL_TYPES = frozenset({"bagel", "gemma3", "molmo2", "moondream3", "paligemma"})
"""Model types whose image tokens attend to each other in both directions."""

FP16_REFUSED_MODEL_TYPES = frozenset({"gemma2", "gemma3", "gemma3_text", "glm4"})
"""Model types that overflow in float16, which the engine refuses for them."""

DTYPES: Mapping[str, str] = {
    "half": "float16",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float": "float32",
    "float32": "float32",
    "float64": "float64",
}
"""Names of element types, and what they stand for."""

DEFAULT_VOCAB_SIZES: Mapping[str, int] = {"gemma3_text": 262208}
DEFAULT_POSITIONS: Mapping[str, int] = {"gemma3_text": 131072}
"""What transformers assumes for model types whose published configs leave it out."""

EXPERT_KEYS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")


@frozen(kw_only=True)
class MlaDims:
    """Widths of multi-head latent attention, in elements; the cache holds the first two.

    ``index_topk`` is the number of tokens that sparse attention picks, ``None`` where it is dense.
    """

    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    index_topk: int | None

    @property
    def head_size(self) -> int:
        """Elements that one token takes in the cache of one layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@frozen(kw_only=True)
class ModelFacts:
    """One model as its config describes it; ``None`` means that the config does not say.

    Heads, layers and experts are counted for the whole model. ``model_type`` is the config's
    own, ``text_model_type`` that of the language model inside. ``kv_cache_dtype`` is what a
    quantised checkpoint asks for. ``mm_prefix`` says that image tokens attend in both
    directions, ``num_mtp_layers`` counts the draft layers that the checkpoint brings along.
    """

    architecture: str | None
    model_type: str
    text_model_type: str
    num_hidden_layers: int
    num_attention_heads: int | None
    num_key_value_heads: int | None
    head_size: int | None
    hidden_size: int | None
    intermediate_size: int | None
    vocab_size: int | None
    max_position_embeddings: int | None
    num_experts: int
    num_experts_per_token: int | None
    mla: MlaDims | None
    sliding_window: int | None
    layers: tuple[Layer, ...]
    mamba_state: MambaState | None
    softcap: bool
    dtype: str | None
    quantization: str | None
    kv_cache_dtype: str | None
    is_encoder_decoder: bool
    is_pooling: bool
    is_multimodal: bool
    mm_prefix: bool
    num_mtp_layers: int
    dflash: DFlashFacts | None

    @property
    def is_moe(self) -> bool:
        """Whether some feed-forward layers are mixtures of experts."""
        return self.num_experts > 0

    @property
    def is_hybrid(self) -> bool:
        """Whether some layers keep a recurrent state and others attend."""
        kinds = {layer.kind for layer in self.layers}
        return LayerKind.MAMBA in kinds and len(kinds) > 1

    @property
    def is_attention_free(self) -> bool:
        """Whether no layer attends."""
        return all(layer.kind is LayerKind.MAMBA for layer in self.layers)

    @property
    def is_encoder_only(self) -> bool:
        """Whether the layers attend in both directions and keep no cache."""
        return all(layer.kind is LayerKind.ENCODER_ONLY_ATTENTION for layer in self.layers)

    @property
    def has_sinks(self) -> bool:
        """Whether some attention layers have learned sinks."""
        return any(layer.sinks for layer in self.layers)


def model_facts(config: Mapping[str, object], *, field: str = "model.config") -> ModelFacts:
    """The facts of one ``config.json``, given as its mapping.

    ``field`` is the deployment's setting that the mapping came from.

    Raises:
        PlanError: a key that planning needs is missing or has a value that no model can have.
    """
    outer = ConfigReader(config, field)
    model_type = outer.text("model_type") or ""
    text = _text_config(outer)
    text_type = text.text("model_type") or model_type
    architecture = _architecture(outer)
    mla = _mla(text, text_type)
    encoder_decoder = bool(outer.flag("is_encoder_decoder"))
    dflash = dflash_facts(outer, architecture)
    plan = _layer_plan(text, text_type, architecture, mla, encoder_decoder=encoder_decoder)
    attention_free = text_type in ("mamba", "mamba2", "falcon_mamba")
    return ModelFacts(
        architecture=architecture,
        model_type=model_type,
        text_model_type=text_type,
        num_hidden_layers=plan.num_layers,
        num_attention_heads=None if attention_free else plan.attention.num_heads,
        num_key_value_heads=None if attention_free else plan.attention.num_kv_heads,
        head_size=None if attention_free else plan.attention.head_size,
        hidden_size=text.integer("hidden_size", "d_model", "n_embd", minimum=1),
        intermediate_size=text.largest("intermediate_size", "decoder_ffn_dim", "ffn_dim", "d_ff"),
        vocab_size=_vocab_size(outer, text, text_type),
        max_position_embeddings=_positions(text, text_type),
        num_experts=text.largest(*EXPERT_KEYS) or 0,
        num_experts_per_token=text.largest("num_experts_per_tok", "experts_per_token", "top_k_experts"),
        mla=mla,
        sliding_window=plan.sliding_window,
        layers=cross_attention_layers(plan) if encoder_decoder else model_layers(plan),
        mamba_state=mamba_state(text, text_type),
        softcap=text.has("attn_logit_softcapping"),
        dtype=_dtype(outer) or _dtype(text),
        quantization=_quantization(outer),
        kv_cache_dtype=_checkpoint_kv_dtype(outer),
        is_encoder_decoder=encoder_decoder,
        is_pooling=_is_pooling(architecture, plan),
        is_multimodal=any(outer.has(key) for key in ("vision_config", "audio_config", "thinker_config")),
        mm_prefix=_is_mm_prefix(outer, text, model_type),
        num_mtp_layers=_num_mtp_layers(text),
        dflash=dflash,
    )


def _text_config(outer: ConfigReader) -> ConfigReader:
    thinker = outer.nested("thinker_config")
    return (thinker or outer).nested("text_config", "llm_config", "language_config") or thinker or outer


def _architecture(outer: ConfigReader) -> str | None:
    names = outer.texts("architectures")
    return names[0] if names else None


def _mla(text: ConfigReader, text_type: str) -> MlaDims | None:
    if text_type not in MLA_MODEL_TYPES or not text.has("kv_lora_rank"):
        return None
    return MlaDims(
        kv_lora_rank=text.required("kv_lora_rank"),
        qk_rope_head_dim=text.integer("qk_rope_head_dim") or 0,
        qk_nope_head_dim=text.required("qk_nope_head_dim"),
        v_head_dim=text.required("v_head_dim"),
        index_topk=text.integer("index_topk", minimum=1),
    )


def _layer_plan(
    text: ConfigReader,
    text_type: str,
    architecture: str | None,
    mla: MlaDims | None,
    *,
    encoder_decoder: bool,
) -> LayerPlan:
    keys = ("num_hidden_layers", "n_layer")
    num_layers = text.required(*(("decoder_layers", *keys) if encoder_decoder else keys))
    if num_layers > MAX_LAYERS:
        raise text.error("num_hidden_layers", f"is {num_layers}; planning takes at most {MAX_LAYERS}")
    causal = text.flag("is_causal")
    bidirectional = text_type in ENCODER_MODEL_TYPES or (causal is False and not is_draft(architecture))
    return LayerPlan(
        config=text,
        model_type=text_type,
        num_layers=num_layers,
        attention=_attention_layer(text, text_type, mla),
        sliding_window=_sliding_window(text),
        encoder_only=bidirectional and not encoder_decoder,
        sparse=mla is not None and mla.index_topk is not None,
    )


def _attention_layer(text: ConfigReader, text_type: str, mla: MlaDims | None) -> Layer:
    if text_type in ("mamba", "mamba2", "falcon_mamba"):
        return Layer(index=0, kind=LayerKind.MAMBA)
    heads = text.required("num_attention_heads", "decoder_attention_heads", "n_head")
    if mla is not None:
        size = mla.head_size
        return Layer(
            index=0,
            kind=LayerKind.MLA_ATTENTION,
            num_heads=heads,
            num_kv_heads=1,
            head_size=size,
            v_head_size=size,
        )
    head_size = text.integer("head_dim", "attention_head_dim", minimum=1)
    if head_size is None:
        head_size = max(text.required("hidden_size", "d_model", "n_embd") // heads, 1)
    kv_heads = text.integer("num_key_value_heads", "num_kv_heads", "n_head_kv", minimum=1) or heads
    return Layer(
        index=0,
        kind=LayerKind.FULL_ATTENTION,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        v_head_size=head_size,
    )


def _sliding_window(text: ConfigReader) -> int | None:
    """The model-wide window in tokens; 0 and a switched-off one count as none."""
    if text.flag("use_sliding_window") is False:
        return None
    return text.integer("sliding_window") or None


def _vocab_size(outer: ConfigReader, text: ConfigReader, text_type: str) -> int | None:
    sizes = (config.integer("vocab_size", minimum=1) for config in (text, outer))
    return next((size for size in sizes if size is not None), DEFAULT_VOCAB_SIZES.get(text_type))


def _positions(text: ConfigReader, text_type: str) -> int | None:
    keys = ("max_position_embeddings", "max_target_positions", "n_positions")
    return text.integer(*keys, minimum=1) or DEFAULT_POSITIONS.get(text_type)


def _dtype(config: ConfigReader) -> str | None:
    name = config.text("dtype", "torch_dtype")
    if name is None or name == "auto":
        return None
    known = DTYPES.get(name.removeprefix("torch."))
    if known is None:
        raise config.error("torch_dtype", f"is {name!r}; known are: {', '.join(DTYPES)}")
    return known


def _quantization(outer: ConfigReader) -> str | None:
    quantization = outer.nested("quantization_config", "compression_config")
    return None if quantization is None else quantization.text("quant_method", "quant_algo") or "unnamed"


def _checkpoint_kv_dtype(outer: ConfigReader) -> str | None:
    """The element type of the KV cache that a quantised checkpoint was calibrated for."""
    quantization = outer.nested("quantization_config", "compression_config")
    if quantization is None:
        return None
    inner = quantization.nested("quantization") or quantization
    algorithm = inner.text("kv_cache_quant_algo") or quantization.text("kv_cache_quant_algo")
    if algorithm is not None:
        return {"FP8": "fp8_e4m3", "NVFP4": "nvfp4"}.get(algorithm.upper())
    if not quantization.has("kv_cache_scheme"):
        return None
    method = quantization.text("quant_method") or ""
    return "fp8_e4m3" if method.startswith("modelopt") else "fp8"


def is_draft(architecture: str | None) -> bool:
    """Whether the architecture is that of a draft model, which never serves on its own."""
    return architecture is not None and ("DFlash" in architecture or "DSpark" in architecture)


def _is_pooling(architecture: str | None, plan: LayerPlan) -> bool:
    if plan.encoder_only:
        return True
    if architecture is None or is_draft(architecture) or architecture.endswith(GENERATING_SUFFIXES):
        return False
    return architecture.endswith(POOLING_SUFFIXES)


def _is_mm_prefix(outer: ConfigReader, text: ConfigReader, model_type: str) -> bool:
    if model_type.startswith("gemma4"):
        return text.text("use_bidirectional_attention") == "vision"
    own = outer.flag("is_mm_prefix_lm")
    return model_type in MM_PREFIX_MODEL_TYPES if own is None else own


def _num_mtp_layers(text: ConfigReader) -> int:
    keys = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
    count = text.integer(*keys) or 0
    if count > MAX_LAYERS:
        key = next(key for key in keys if text.has(key))
        raise text.error(key, f"is {count}; planning takes at most {MAX_LAYERS}")
    return count
