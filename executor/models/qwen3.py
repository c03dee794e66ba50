"""A Qwen3- or Llama-shaped decoder in plain PyTorch on a paged KV cache.

Attention is a marked operation that reads metadata, slots and caches from the forward context; all
else depends on the arguments alone and can be part of a graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import torch
from torch import nn
from torch.nn import functional

from executor.errors import ModelError
from executor.inputs.attention import paged_attention
from executor.inputs.kv_cache import KVCacheGroup
from executor.models.config import DecoderConfig, RopeScaling

M = TypeVar("M", bound="DecoderStack")

AddUp: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""Makes the whole result of a rank's part of it."""

Rotation: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines of each token's position, ``[tokens, 1, head_dim]``; the first half of the sines is
negated, as that is how ``rotate`` needs them."""


def whole(result: torch.Tensor) -> torch.Tensor:
    """The result of a rank that has all weights: the part is the whole."""
    return result


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """The normed ``hidden``."""
        return functional.rms_norm(hidden, self.weight.shape, self.weight, self.eps)


class Rotary(nn.Module):
    """Rotary positions: each pair of a head's elements turns by its frequency."""

    inv_freq: torch.Tensor

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("inv_freq", inverse_frequencies(config), persistent=False)

    def forward(self, positions: torch.Tensor, dtype: torch.dtype) -> Rotation:
        """Cosines and sines for ``positions``."""
        angles = positions[:, None].float() * self.inv_freq
        cos = torch.cat((angles, angles), dim=-1)[:, None].cos()
        sin = torch.cat((-angles, angles), dim=-1)[:, None].sin()
        return cos.to(dtype), sin.to(dtype)


def inverse_frequencies(config: DecoderConfig) -> torch.Tensor:
    """Radians that each pair of elements turns from one position to the next, in float32."""
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device="cpu") / config.head_dim
    frequencies = 1.0 / (config.rope_theta**steps)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    return _llama3_frequencies(frequencies, scaling)


def _llama3_frequencies(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Slow frequencies divided by the factor, fast ones kept, those between them blended."""
    turns = frequencies * scaling.original_max_position / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0, 1)
    return frequencies * (blend + (1 - blend) / scaling.factor)


def rotate(heads: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """``heads`` ``[tokens, heads, head_dim]`` turned to their positions."""
    cos, sin = rotation
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, dims=-1), sin)


class Attention(nn.Module):
    """Grouped-query attention over the paged cache of ``layer_name``."""

    def __init__(self, config: DecoderConfig, layer_name: str) -> None:
        super().__init__()
        self.layer_name = layer_name
        self.head_dim = config.head_dim
        self.add_up: AddUp = whole
        width, kv_width = (
            heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads)
        )
        bias = config.attention_bias
        self.q_proj = nn.Linear(config.hidden_size, width, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=bias)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=bias)
        if config.qk_norm:
            self.q_norm: RMSNorm | nn.Identity = RMSNorm(config.head_dim, config.rms_norm_eps)
            self.k_norm: RMSNorm | nn.Identity = RMSNorm(config.head_dim, config.rms_norm_eps)
        else:
            self.q_norm, self.k_norm = nn.Identity(), nn.Identity()

    def keys_and_values(self, hidden: torch.Tensor, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys, turned to their positions, and values of ``hidden``, as the cache stores them."""
        key = self.k_norm(self._heads(self.k_proj(hidden)))
        return rotate(key, rotation), self._heads(self.v_proj(hidden))

    def forward(self, hidden: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        """Stores the keys and values of ``hidden`` and attends."""
        query = rotate(self.q_norm(self._heads(self.q_proj(hidden))), rotation)
        key, value = self.keys_and_values(hidden, rotation)
        output = torch.empty_like(query)
        paged_attention(query, key, value, output, self.layer_name)
        return self._project(output)

    def _project(self, output: torch.Tensor) -> torch.Tensor:
        return self.add_up(self.o_proj(output.flatten(1)))

    def _heads(self, projected: torch.Tensor) -> torch.Tensor:
        tokens, width = projected.shape
        return projected.view(tokens, width // self.head_dim, self.head_dim)


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.add_up: AddUp = whole
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """The layer's feed-forward part."""
        return self.add_up(self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden)))


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and added to the residual stream."""

    def __init__(self, config: DecoderConfig, layer_name: str) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer_name)
        self.mlp = Mlp(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, hidden: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        """The residual stream behind this layer."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotation)
        output: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output


class DecoderStack(nn.Module):
    """What target and drafter share: layers with caches, a final norm and rotary positions."""

    def __init__(self, config: DecoderConfig, prefix: str) -> None:
        super().__init__()
        self.config = config
        self.num_kv_heads = config.num_key_value_heads
        self.layer_names = tuple(f"{prefix}.{index}.self_attn" for index in range(config.num_hidden_layers))
        self.layers = nn.ModuleList(DecoderLayer(config, name) for name in self.layer_names)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = Rotary(config)

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The layers' attention, in order."""
        return tuple(cast(DecoderLayer, layer).self_attn for layer in self.layers)

    def share_weights(self) -> None:
        """Makes weights that are one and the same one tensor."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""
        return self.norm.weight.dtype

    @property
    def kv_cache_group(self) -> KVCacheGroup:
        """The shape of the layers' caches on this rank."""
        return KVCacheGroup(self.layer_names, self.num_kv_heads, self.config.head_dim, self.dtype)


class Decoder(DecoderStack):
    """The target: embeddings, layers and head. ``aux_layer_ids`` are layers whose outputs it also returns."""

    def __init__(self, config: DecoderConfig, aux_layer_ids: Sequence[int] = ()) -> None:
        super().__init__(config, "model.layers")
        self.aux_layer_ids = tuple(aux_layer_ids)
        unknown = [index for index in self.aux_layer_ids if not 0 <= index < config.num_hidden_layers]
        if unknown:
            raise ModelError(f"layer {unknown[0]} is to be read; the model has {config.num_hidden_layers}")
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.share_weights()

    def share_weights(self) -> None:
        """Makes the head's weights those of the embeddings where the config says so."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Hidden states ``[tokens, hidden_size]`` behind the final norm, and those of the chosen layers."""
        hidden = self.embed_tokens(input_ids)
        rotation = self.rotary(positions, hidden.dtype)
        aux = {}
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, rotation)
            if index in self.aux_layer_ids:
                aux[index] = hidden
        return self.norm(hidden), tuple(aux[index] for index in self.aux_layer_ids)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of hidden states."""
        logits: torch.Tensor = self.lm_head(hidden)
        return logits

    def load_from_transformers(self, model: Any) -> None:
        """Copies the weights of a causal language model of transformers of the same shape.

        Raises:
            ModelError: its weights have other names or shapes.
        """
        weights = {name.removeprefix("model."): tensor for name, tensor in model.state_dict().items()}
        try:
            self.load_state_dict(weights)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise ModelError(f"weights of {type(model).__name__} do not fit the decoder: {reason}") from None


def build_decoder(
    config: DecoderConfig,
    *,
    aux_layer_ids: Sequence[int] = (),
    seed: int = 0,
    std: float = 0.02,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Decoder:
    """A decoder with random weights.

    Raises:
        ModelError: ``aux_layer_ids`` names a layer that the model lacks.
    """
    with torch.device("meta"):
        model = Decoder(config, aux_layer_ids)
    return materialize(model, seed=seed, std=std, dtype=dtype, device=device)


def materialize(model: M, *, seed: int, std: float, dtype: torch.dtype, device: torch.device | str) -> M:
    """Gives a model that was made on the meta device its weights: norms 1, biases 0, all else normal.

    The same seed gives the same weights on devices of one kind.
    """
    model.to(dtype).to_empty(device=device)
    model.share_weights()
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.requires_grad_(False)
            if name.endswith("norm.weight"):
                weight.fill_(1)
            elif name.endswith("bias"):
                weight.zero_()
            else:
                weight.normal_(0, std, generator=generator)
        model.rotary.inv_freq = inverse_frequencies(model.config).to(device)
    return model.eval()
