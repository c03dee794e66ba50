"""How many tokens one block of the KV cache holds.

Source: vLLM 0.33, block sizes of backends and the alignment of hybrid models' pages. The
alignment of gated-delta-net models to 64 tokens from 9.0 up is observed, not derived.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, lcm

from planner.backends.environment import Environment
from planner.backends.flash_attn import HD256_BLOCK_SIZE, takes_fp8_kv, uses_hd256_kernel
from planner.backends.layers import Placed
from planner.backends.request import BackendRequest
from planner.backends.traits import SELECTABLE
from planner.models.facts import ModelFacts
from planner.models.layers import Layer, Mixer

DEFAULT_BLOCK_SIZE = 16

_BYTES = {"float16": 2.0, "bfloat16": 2.0, "float32": 4.0}


def resolved_block_size(
    request: BackendRequest, placed: Iterable[Placed], env: Environment, dtype: str
) -> int | None:
    """The block size in force, in tokens; ``None`` where a hybrid model's state is not known.

    The user's own stands, unless an attention page must hold a larger recurrent state. Without
    one it is the smallest that every backend of the model takes.
    """
    placed = tuple(placed)
    smallest = DEFAULT_BLOCK_SIZE
    for item in placed:
        smallest = lcm(smallest, _least_block(item, env))
    if not request.target.is_hybrid:
        return max(request.block_size or smallest, _beside_turboquant(placed, dtype))
    aligned = lcm(smallest, 64) if _has_delta_net(placed) and env.major >= 9 else smallest
    attending = next((item for item in placed if item.layer.mixer is Mixer.ATTENTION), None)
    page = None if attending is None else _token_bytes(attending, dtype, request.tensor_parallel_size)
    state = _state_bytes(request.target, request, dtype)
    if page is None or state is None:
        return None
    aligned = max(aligned, request.block_size or 0)
    return aligned * ceil(state / (aligned * page))


def _beside_turboquant(placed: tuple[Placed, ...], dtype: str) -> int:
    """A quantised page, counted as one byte an element, must hold an unquantised one of 16 tokens."""
    backends = {item.backend for item in placed}
    mixed = "TURBOQUANT" in backends and len(backends) > 1
    return int(DEFAULT_BLOCK_SIZE * _BYTES.get(dtype, 4.0)) if mixed else 1


def _least_block(item: Placed, env: Environment) -> int:
    question = item.question
    if item.layer.mixer is Mixer.SPARSE_INDEXER:
        return 64
    if question is None or item.backend not in SELECTABLE:
        return DEFAULT_BLOCK_SIZE
    flash_attn = item.backend in ("FLASH_ATTN", "TRITON_FLASH_ATTN")
    if item.backend == "FLASH_ATTN" and uses_hd256_kernel(env, question):
        return HD256_BLOCK_SIZE
    if flash_attn and question.quantised_kv and question.head_size == 512 and takes_fp8_kv(env, question):
        return 64
    return min(SELECTABLE[item.backend].block_sizes, default=DEFAULT_BLOCK_SIZE)


def _has_delta_net(placed: Iterable[Placed]) -> bool:
    return any(item.layer.mixer is Mixer.GATED_DELTA_NET for item in placed)


def _state_bytes(facts: ModelFacts, request: BackendRequest, dtype: str) -> int | None:
    """Bytes of one layer's recurrent state on one rank, draft tokens' rows included."""
    state = facts.mamba_state
    if state is None:
        return None
    rows = state.conv_rows + request.environment.num_speculative_tokens
    recurrent = state.state_elements * _BYTES.get(state.state_dtype or dtype, 4.0)
    convolution = rows * state.conv_width * _BYTES.get(dtype, 4.0)
    return int(recurrent + convolution) // request.tensor_parallel_size


def _token_bytes(item: Placed, dtype: str, tensor_parallel_size: int) -> float | None:
    """Bytes that one token takes in one layer's cache on one rank; ``None`` for unknown types."""
    layer = item.layer
    heads = max(1, layer.num_kv_heads // tensor_parallel_size)
    per_head = _head_bytes(layer, item.kv_cache_dtype, dtype)
    return None if per_head is None else heads * per_head


def _head_bytes(layer: Layer, kv_cache_dtype: str, dtype: str) -> float | None:
    keys, values = layer.head_size, layer.v_head_size
    if kv_cache_dtype in ("auto", "float16", "bfloat16"):
        return (keys + values) * _BYTES.get(dtype, 4.0)
    if kv_cache_dtype in ("fp8", "fp8_e4m3", "fp8_e5m2"):
        return keys + values
    if kv_cache_dtype in ("int8_per_token_head", "fp8_per_token_head"):
        return keys + values + 8
    if kv_cache_dtype == "nvfp4":
        return (keys + values) * (1 / 2 + 1 / 16)
    if kv_cache_dtype == "turboquant_k8v4":
        return keys + values / 2 + 4
    return None
