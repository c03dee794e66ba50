"""Weights and KV cache of a model on one rank, as far as its config tells their size."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from planner.documents.deployment import Deployment, HfConfig, Json
from planner.errors import PlanError
from planner.estimate.shape import ELEMENT_BYTES, EXPERT_WIDTH_KEYS, element_bytes, text_facts
from planner.models.facts import DTYPES, ModelFacts, model_facts
from planner.models.layers import LayerKind
from planner.models.reader import ConfigReader

WEIGHT_BYTES: Mapping[str, float] = {
    "fp8": 1,
    "fbgemm_fp8": 1,
    "awq": 9 / 16,
    "gptq": 9 / 16,
    "mxfp4": 17 / 32,
    "nvfp4": 9 / 16,
}
"""Bytes of a quantised weight with its share of the scales, by the method that a config names."""

WITH_EMBEDDINGS = "draft_model"
"""The method whose drafter is a whole model; others use the embeddings and the head of their target."""

BOUNDED = frozenset({LayerKind.SLIDING_WINDOW, LayerKind.CHUNKED_LOCAL_ATTENTION})
CACHED = BOUNDED | {LayerKind.FULL_ATTENTION, LayerKind.MLA_ATTENTION}


@frozen(kw_only=True)
class Footprint:
    """What a model takes on one rank: bytes of its weights, and of its cache.

    ``token_bytes`` is what a token takes in all layers, ``request_bytes`` what a request of the greatest
    length does, of ``max_model_len`` tokens.
    """

    weight_bytes: float
    token_bytes: float
    request_bytes: float
    max_model_len: int

    def num_tokens(self, num_bytes: float) -> int:
        """Tokens of requests of the greatest length that a cache of so many bytes holds.

        Layers with a sliding window, or with chunks, keep that many tokens of a request and no more.
        """
        if self.request_bytes < self.token_bytes * self.max_model_len:
            return int(num_bytes / self.request_bytes * self.max_model_len)
        return int(num_bytes / self.token_bytes)


def footprint(deployment: Deployment) -> Footprint | None:
    """The footprint of a deployment's model and its draft; ``None`` where the config does not tell it."""
    found = _footprint_or_reason(deployment)
    return found if isinstance(found, Footprint) else None


def unknown_because(deployment: Deployment) -> str | None:
    """Why a deployment has no ``footprint``, ``None`` where it has one."""
    found = _footprint_or_reason(deployment)
    return found if isinstance(found, str) else None


def _footprint_or_reason(deployment: Deployment) -> Footprint | str:
    config = deployment.model.config
    if config is None:
        return "the deployment names no model.config"
    try:
        return _footprint(config, deployment)
    except PlanError as error:
        return error.message


def _footprint(config: HfConfig, deployment: Deployment) -> Footprint | str:
    facts = model_facts(config.facts)
    length = deployment.model.max_model_len or facts.max_position_embeddings
    if facts.is_encoder_decoder:
        return "what an encoder-decoder keeps of its encoder is not known"
    others = sorted({str(layer.kind) for layer in facts.layers if layer.kind not in CACHED})
    if others:
        return f"what layers of {', '.join(others)} keep for a request is not known"
    weights = _weight_bytes(config.facts, facts, deployment)
    if weights is None:
        if facts.quantization is not None and facts.quantization not in WEIGHT_BYTES:
            return f"how large weights of the quantization {facts.quantization} are is not known"
        return "the config has no hidden_size or no vocab_size"
    if length is None:
        return "neither the deployment nor the config has the length of requests; set model.max_model_len"
    stages = deployment.parallel.pipeline_parallel_size or 1
    token, request = (size / stages for size in _cache_bytes(facts, deployment, length))
    draft = deployment.speculative
    if draft is not None and draft.config is not None:
        drafter = model_facts(draft.config.facts, field="speculative.config")
        own = draft.method == WITH_EMBEDDINGS
        weights += _weight_bytes(draft.config.facts, drafter, deployment, embeddings=own) or 0
        of_draft = _cache_bytes(drafter, deployment, length)
        token, request = token + of_draft[0], request + of_draft[1]
    return Footprint(weight_bytes=weights, token_bytes=token, request_bytes=request, max_model_len=length)


def _cache_bytes(facts: ModelFacts, deployment: Deployment, length: int) -> tuple[float, float]:
    """Bytes that one token takes in all layers' caches, and that a request of ``length`` tokens does."""
    token = request = 0.0
    for layer in facts.layers:
        size = _layer_bytes(layer.num_kv_heads, layer.head_size + layer.v_head_size, facts, deployment)
        token += size
        request += size * (min(facts.sliding_window or length, length) if layer.kind in BOUNDED else length)
    return token, request


def _layer_bytes(num_kv_heads: int, width: int, facts: ModelFacts, deployment: Deployment) -> float:
    """Bytes of one token in one layer's cache on one rank."""
    heads = max(num_kv_heads // (deployment.parallel.tensor_parallel_size or 1), 1)
    if facts.mla is not None:
        heads, width = 1, facts.mla.head_size
    name = deployment.model.kv_cache_dtype or "auto"
    name = (facts.kv_cache_dtype or "auto") if name == "auto" else name
    if name == "auto":
        return heads * width * element_bytes(deployment, facts)
    return heads * width * ELEMENT_BYTES.get(DTYPES.get(name, name), 1)


def _weight_bytes(
    config: Mapping[str, Json], facts: ModelFacts, deployment: Deployment, *, embeddings: bool = True
) -> float | None:
    """Bytes of the weights on one rank; embeddings and head, which drafters share, are not quantised."""
    size: float = element_bytes(deployment, facts)
    if facts.hidden_size is None or facts.vocab_size is None:
        return None
    quantised: float = size
    if facts.quantization is not None:
        known = WEIGHT_BYTES.get(facts.quantization)
        if known is None:
            return None
        quantised = known
    parallel = deployment.parallel
    ranks, stages = parallel.tensor_parallel_size or 1, parallel.pipeline_parallel_size or 1
    text = text_facts(config)
    flags = (each.flag("tie_word_embeddings") for each in (text, ConfigReader(config)))
    tied = next((flag for flag in flags if flag is not None), facts.text_model_type.startswith("gemma"))
    shared = facts.vocab_size * facts.hidden_size * (1 if tied else 2) * embeddings
    expert_ranks = ranks * ((parallel.data_parallel_size or 1) if parallel.enable_expert_parallel else 1)
    dense, experts = _layer_weights(text, facts)
    return shared * size / ranks + quantised * (dense / ranks + experts / expert_ranks) / stages


def _layer_weights(text: ConfigReader, facts: ModelFacts) -> tuple[int, int]:
    """Weights of all layers without experts, and those of the experts."""
    hidden, layers = facts.hidden_size or 0, facts.num_hidden_layers
    attention = _attention_weights(text, facts, hidden)
    mlp = 3 * hidden * (facts.intermediate_size or 4 * hidden)
    if not facts.is_moe:
        return layers * (attention + mlp), 0
    width = text.largest(*EXPERT_WIDTH_KEYS) or 0
    plain = min(text.integer("first_k_dense_replace") or 0, layers)
    step = text.integer("decoder_sparse_step", "interleave_moe_layer_step", minimum=1) or 1
    sparse = (layers - plain) // step
    shared = 3 * hidden * ((text.integer("n_shared_experts") or 0) * width)
    shared += 3 * hidden * (text.integer("shared_expert_intermediate_size") or 0)
    dense = layers * attention + (layers - sparse) * mlp + sparse * (shared + hidden * facts.num_experts)
    return dense, sparse * facts.num_experts * 3 * hidden * width


def _attention_weights(text: ConfigReader, facts: ModelFacts, hidden: int) -> int:
    heads, mla = facts.num_attention_heads or 0, facts.mla
    if mla is not None:
        query_rank = text.integer("q_lora_rank") or 0
        query = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
        queries = query_rank * (hidden + query) if query_rank else hidden * query
        keys = hidden * mla.head_size + mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        return queries + keys + heads * mla.v_head_dim * hidden
    size = facts.head_size or 0
    return 2 * hidden * size * (heads + (facts.num_key_value_heads or heads))
