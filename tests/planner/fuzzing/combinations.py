"""Settings that count only together: what single mutations would hardly ever bring about."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import yaml

from tests.planner.fuzzing.nodes import assign, child, deployment_of, parsed
from tests.planner.fuzzing.vocabulary import number

Sections = Mapping[str, Mapping[str, Any]]


def _microbatches(rng: Random) -> Sections:
    backends = ("deepep_low_latency", "deepep_high_throughput", "nixl_ep")
    return {
        "engine": {"runner": rng.choice(("v1", "v2"))},
        "parallel": {
            "data_parallel_size": rng.choice((2, 8)),
            "is_moe_model": True,
            "enable_expert_parallel": True,
            "all2all_backend": rng.choice(backends),
            **rng.choice(({"enable_dbo": True}, {"ubatch_size": rng.choice((2, 3, 4))})),
            "dbo_decode_token_threshold": number(rng),
        },
    }


def _schedule(rng: Random) -> Sections:
    lengths = [rng.randint(0, 8) for _ in range(rng.randint(1, 5))]
    first, ranges = 1, []
    for length in lengths:
        last = first + rng.choice((0, 3, 31, 127))
        ranges.append([first, last, length])
        first = last + 1
    method = rng.choice(("eagle", "mtp", "dflash", "dspark", "ngram"))
    return {
        "scheduler": {"max_num_seqs": rng.choice((1, 8, 64, 256))},
        "speculative": {
            "method": method,
            "num_speculative_tokens": rng.choice((1, 3, 7, 15)),
            "num_speculative_tokens_per_batch_size": ranges,
        },
    }


def _adapters(rng: Random) -> Sections:
    return {
        "lora": {"max_loras": number(rng), "specialize_active_lora": rng.random() < 0.7},
        "compilation": {"cudagraph_specialize_lora": rng.random() < 0.7},
    }


def _encoder(rng: Random) -> Sections:
    return {
        "compilation": {
            "cudagraph_mm_encoder": True,
            "encoder_cudagraph_token_budgets": [number(rng) for _ in range(rng.randint(1, 4))],
            "encoder_cudagraph_max_vision_items_per_batch": rng.choice((1, 2, 8)),
        }
    }


def _adaptive(rng: Random) -> Sections:
    return {
        "model": {
            "attention_support": rng.choice(("ALWAYS", "UNIFORM_BATCH")),
            "varlen_max_query_len": number(rng),
        },
        "speculative": {
            "method": "dflash",
            "num_speculative_tokens": rng.choice((1, 7)),
            "enable_adaptive_verification": True,
        },
    }


def _hybrid(rng: Random) -> Sections:
    layers = rng.choice((2, 8, 48))
    config = {
        "model_type": rng.choice(
            ("qwen3_next", "jamba", "llama4_text", "gemma4_text", "minimax", "falcon_h1", "bamba")
        ),
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": rng.choice((1, 2, 16)),
        "head_dim": rng.choice((64, 80, 128, 256)),
        "sliding_window": rng.choice((None, 512)),
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_value_head_dim": 128,
        "linear_num_value_heads": 32,
        "linear_conv_kernel_dim": 4,
        "num_nextn_predict_layers": rng.choice((None, 1, 2)),
    }
    return {"model": {"config": config, "num_kv_blocks": rng.choice((None, 8, 4096))}}


def _connectors(rng: Random) -> Sections:
    extra: dict[str, Any] = rng.choice(({}, {"use_layerwise": True}, {"lmcache.use_layerwise": True}))
    connector = {"kv_connector": "LMCacheConnectorV1", "kv_connector_extra_config": extra}
    for _ in range(rng.choice((0, 0, 1, 2, 12))):
        children = [connector, *rng.choice(([], [connector], [None], [{"kv_connector": 1}]))]
        connector = {
            "kv_connector": "MultiConnector",
            "kv_connector_extra_config": {"connectors": children},
        }
    return {"kv_transfer": {"kv_role": rng.choice(("kv_both", "kv_both", "kv_consumer", None)), **connector}}


def _attention(rng: Random) -> Sections:
    backends = ("auto", "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "x")
    kinds = ("full_attention", "sliding_window", "mamba", "x")
    return {
        "model": {"attention_backend": rng.choice((None, *backends))},
        "attention": {
            "backend": rng.choice((None, *backends)),
            "backend_per_kind": {rng.choice(kinds): rng.choice(backends) for _ in range(rng.randint(0, 2))},
            "flash_attn_version": rng.choice((None, 2, 3, 4)),
            "hisparse_config": rng.choice((None, None, {}, {"device_buffer_size": 4096})),
        },
    }


COMBINATIONS: tuple[Callable[[Random], Sections], ...] = (
    _microbatches,
    _schedule,
    _adapters,
    _encoder,
    _adaptive,
    _hybrid,
    _connectors,
    _attention,
)

_MOST = 1 << 20
_HUGE = 10**17
_EXTREMES: tuple[tuple[str, str, Any], ...] = (
    ("scheduler", "max_num_seqs", _MOST),
    ("scheduler", "max_num_batched_tokens", _MOST),
    ("scheduler", "max_num_batched_tokens", _HUGE),
    ("engine", "runner", "v1"),
    ("speculative", "method", "mtp"),
    ("speculative", "num_speculative_tokens", _MOST),
    ("speculative", "num_speculative_tokens_per_batch_size", [[i, i, i] for i in range(1, 1025)]),
    ("lora", "max_loras", 1 << 16),
    ("lora", "specialize_active_lora", True),
    ("compilation", "max_cudagraph_capture_size", _MOST),
    ("compilation", "cudagraph_mode", "FULL_AND_PIECEWISE"),
    ("compilation", "cudagraph_capture_sizes", list(range(1, 40_000))),
    ("model", "attention_backends", ["FLASH_ATTN"] * 256),
    ("model", "config", {"num_hidden_layers": 4096, "num_attention_heads": 8, "hidden_size": 1024}),
)


_RESOLVED_EXTREMES: tuple[tuple[str, Any], ...] = (
    ("runner", "v1"),
    ("cudagraph_mode", "FULL_AND_PIECEWISE"),
    ("cudagraph_capture_sizes", [1, 8, _MOST]),
    ("max_num_seqs", _MOST),
    ("max_num_batched_tokens", _HUGE),
    ("max_num_active_seqs", _HUGE),
    ("decode_query_len", _HUGE),
    ("uniform_query_lens", [1, _HUGE]),
    ("lora_cases", [0, (1 << 16) + 1]),
    (
        "microbatching",
        {"num_ubatches": _HUGE, "decode_token_threshold": 0, "prefill_token_threshold": _HUGE},
    ),
)


def combination(root: yaml.MappingNode, _others: Sequence[str], rng: Random) -> None:
    """A few settings that count only together."""
    for section, settings in rng.choice(COMBINATIONS)(rng).items():
        for key, value in settings.items():
            _set(root, section, key, value)


def extremes(root: yaml.MappingNode, rng: Random) -> None:
    """Several settings at their limits: few bytes that ask for as much work as possible."""
    for section, key, value in rng.sample(_EXTREMES, rng.randint(2, 8)):
        _set(root, section, key, value)
    resolved = {key.value: value for key, value in root.value}.get("resolved")
    for _, family in resolved.value if isinstance(resolved, yaml.MappingNode) else ():
        if isinstance(family, yaml.MappingNode):
            for key, value in rng.sample(_RESOLVED_EXTREMES, rng.randint(1, 6)):
                assign(family, key, _node(key, value))


def _set(root: yaml.MappingNode, section: str, key: str, value: Any) -> None:
    parent = child(deployment_of(root), section)
    if isinstance(parent, yaml.MappingNode):
        assign(parent, key, _node(key, value))


def _node(key: str, value: Any) -> yaml.Node:
    """``value`` as a node. JSON is YAML; under a key, so that a scalar is parsed too."""
    return parsed(json.dumps({key: value})).value[0][1]  # type: ignore[no-any-return]
