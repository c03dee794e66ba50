"""Shapes of the reference models, read from a Hugging Face ``config.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from attrs import evolve, frozen

from executor.errors import ModelError
from planner.documents.sources import read_file
from planner.errors import DocumentError, PlanError
from planner.models.draft import is_non_causal
from planner.models.facts import ModelFacts, is_draft, model_facts
from planner.models.layers import LayerKind
from planner.models.reader import ConfigReader

QK_NORM_MODEL_TYPES = frozenset({"qwen3"})
PLAIN_MODEL_TYPES = frozenset({"llama", "mistral"})
"""Decoders of the same shape without a norm over queries and keys."""

DEFAULT_ROPE_THETA = 10_000.0


@frozen(kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched for long contexts: ``linear`` or Llama 3's scheme."""

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


@frozen(kw_only=True)
class DecoderConfig:
    """A dense decoder: grouped-query attention with rotary positions, RMS norms and SwiGLU.

    ``qk_norm`` norms each head of queries and keys (Qwen3), ``attention_bias`` adds a bias to the
    projections of attention. Sizes count elements, ``head_dim`` those of one head.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = DEFAULT_ROPE_THETA
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    qk_norm: bool = True
    attention_bias: bool = False

    def __attrs_post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ModelError(
                f"{self.num_attention_heads} attention heads do not share {self.num_key_value_heads} "
                "key-value heads evenly; correct num_key_value_heads"
            )
        if self.head_dim % 2:
            raise ModelError(f"head_dim is {self.head_dim}; rotary positions need an even number")

    @classmethod
    def of(cls, config: Mapping[str, object]) -> DecoderConfig:
        """The shape that a config describes, or that a plan's facts of it do.

        Raises:
            ModelError: the config is wrong, or its model is none that the reference decoder can be.
        """
        try:
            return _decoder(ConfigReader(config), model_facts(config))
        except PlanError as error:
            raise ModelError(error.message) from None

    @classmethod
    def from_file(cls, path: Path | str) -> DecoderConfig:
        """As ``of``, for a file.

        Raises:
            ModelError: also where the file cannot be read.
        """
        return cls.of(read_config(path))

    def shrunk(
        self,
        *,
        layers: int = 2,
        hidden: int = 64,
        intermediate: int = 128,
        heads: int = 4,
        head_dim: int = 16,
        vocab: int = 128,
        max_positions: int = 512,
    ) -> DecoderConfig:
        """The same kind of model with sizes for tests; the ratio of query to KV heads stays if it can."""
        ratio = math.gcd(self.num_attention_heads // self.num_key_value_heads, heads)
        return evolve(
            self,
            hidden_size=min(hidden, self.hidden_size),
            intermediate_size=min(intermediate, self.intermediate_size),
            num_hidden_layers=min(layers, self.num_hidden_layers),
            num_attention_heads=heads,
            num_key_value_heads=heads // ratio,
            head_dim=min(head_dim, self.head_dim),
            vocab_size=min(vocab, self.vocab_size),
            max_position_embeddings=min(max_positions, self.max_position_embeddings),
            rope_scaling=None,
        )


@frozen(kw_only=True)
class DFlashConfig:
    """A DFlash drafter: the shape of its decoder, and what it takes from its target.

    ``target_layer_ids`` are the target's layers whose outputs it reads, ``target_hidden_size`` their
    width. ``mask_token_id`` stands for a token to be proposed. ``causal`` is false where the tokens of a
    block see each other.
    """

    decoder: DecoderConfig
    target_layer_ids: tuple[int, ...]
    target_hidden_size: int
    mask_token_id: int
    block_size: int
    causal: bool = False

    @property
    def num_speculative_tokens(self) -> int:
        """Tokens that the drafter was made to propose at once."""
        return self.block_size - 1

    @classmethod
    def of(cls, config: Mapping[str, object]) -> DFlashConfig:
        """The drafter that a config describes.

        Raises:
            ModelError: the config is wrong, or is no DFlash drafter's.
        """
        try:
            return _dflash(ConfigReader(config), model_facts(config))
        except PlanError as error:
            raise ModelError(error.message) from None

    @classmethod
    def from_file(cls, path: Path | str) -> DFlashConfig:
        """As ``of``, for a file.

        Raises:
            ModelError: also where the file cannot be read.
        """
        return cls.of(read_config(path))

    def shrunk(self, target: DecoderConfig, *, layers: int = 1) -> DFlashConfig:
        """A drafter with the sizes of the shrunk ``target``, reading its first and its last layer."""
        ids = tuple(sorted({0, target.num_hidden_layers - 1}))
        return evolve(
            self,
            decoder=evolve(target, num_hidden_layers=min(layers, self.decoder.num_hidden_layers)),
            target_layer_ids=ids,
            target_hidden_size=target.hidden_size,
            mask_token_id=target.vocab_size - 1,
        )


def read_config(path: Path | str) -> Mapping[str, object]:
    """The mapping in a ``config.json``.

    Raises:
        ModelError: the file cannot be read, or holds no JSON object.
    """
    try:
        config = json.loads(read_file(Path(path)))
    except DocumentError as error:
        raise ModelError(str(error)) from None
    except (ValueError, RecursionError):
        raise ModelError(f"{path}: not JSON; give a model's config.json") from None
    if not isinstance(config, dict):
        raise ModelError(f"{path}: not a JSON object, as a model's config.json is")
    return config


def _decoder(reader: ConfigReader, facts: ModelFacts) -> DecoderConfig:
    known = QK_NORM_MODEL_TYPES | PLAIN_MODEL_TYPES
    if facts.text_model_type not in known or facts.is_moe:
        raise ModelError(
            f"model_type {facts.text_model_type!r}: the reference decoder is dense and of the types "
            f"{', '.join(sorted(known))}; give the config of one of them"
        )
    if not is_draft(facts.architecture) and any(
        layer.kind is not LayerKind.FULL_ATTENTION for layer in facts.layers
    ):
        raise ModelError("some layers have a sliding window; the reference decoder attends to everything")
    heads = reader.required("num_attention_heads")
    return DecoderConfig(
        hidden_size=reader.required("hidden_size"),
        intermediate_size=reader.required("intermediate_size"),
        num_hidden_layers=facts.num_hidden_layers,
        num_attention_heads=heads,
        num_key_value_heads=facts.num_key_value_heads or heads,
        head_dim=facts.head_size or reader.required("head_dim"),
        vocab_size=reader.required("vocab_size"),
        max_position_embeddings=reader.required("max_position_embeddings"),
        rms_norm_eps=_number(reader, "rms_norm_eps", 1e-6),
        rope_theta=_rope_theta(reader),
        rope_scaling=_rope_scaling(reader),
        tie_word_embeddings=bool(reader.flag("tie_word_embeddings")),
        qk_norm=facts.text_model_type in QK_NORM_MODEL_TYPES,
        attention_bias=bool(reader.flag("attention_bias")),
    )


def _dflash(reader: ConfigReader, facts: ModelFacts) -> DFlashConfig:
    inner = reader.nested("dflash_config")
    if facts.dflash is None or inner is None:
        raise ModelError("the config has no dflash_config; give a DFlash drafter's config.json")
    if not facts.dflash.target_layer_ids:
        raise ModelError("dflash_config.target_layer_ids is empty; the drafter reads one layer at least")
    mask = inner.integer("mask_token_id")
    if mask is None:
        raise ModelError("dflash_config.mask_token_id is missing; give the drafter's own config.json")
    decoder = _decoder(reader, facts)
    if mask >= decoder.vocab_size:
        raise ModelError(f"dflash_config.mask_token_id is {mask}; the vocabulary has {decoder.vocab_size}")
    return DFlashConfig(
        decoder=decoder,
        target_layer_ids=facts.dflash.target_layer_ids,
        target_hidden_size=reader.integer("target_hidden_size", minimum=1) or decoder.hidden_size,
        mask_token_id=mask,
        block_size=facts.dflash.block_size or 16,
        causal=not is_non_causal(facts.dflash, facts.layers),
    )


def _rope_theta(reader: ConfigReader) -> float:
    parameters = reader.nested("rope_parameters")
    inside = None if parameters is None else parameters.facts.get("rope_theta")
    if parameters is not None and inside is not None:
        return _number(parameters, "rope_theta", DEFAULT_ROPE_THETA)
    return _number(reader, "rope_theta", DEFAULT_ROPE_THETA)


def _rope_scaling(reader: ConfigReader) -> RopeScaling | None:
    scaling = reader.nested("rope_parameters", "rope_scaling")
    kind = None if scaling is None else scaling.text("rope_type", "type")
    if scaling is None or kind in (None, "default"):
        return None
    if kind not in ("linear", "llama3"):
        raise ModelError(f"rope_scaling of type {kind!r}; the reference decoder knows linear and llama3")
    return RopeScaling(
        kind=kind or "",
        factor=_number(scaling, "factor", 1.0),
        low_freq_factor=_number(scaling, "low_freq_factor", 1.0),
        high_freq_factor=_number(scaling, "high_freq_factor", 4.0),
        original_max_position=scaling.integer("original_max_position_embeddings", minimum=1) or 8192,
    )


def _number(reader: ConfigReader, key: str, default: float) -> float:
    value = reader.facts.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
        raise reader.error(key, "is no positive number; give the model's own config.json")
    return float(value)
