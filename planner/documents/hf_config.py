"""Facts of a model out of its Hugging Face ``config.json``: a file, or a mapping in the document.

Of the file only what planning uses is kept, so that a plan stands alone, shows nothing private of
the checkpoint, and does not change with keys that cannot change it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

from planner.documents.deployment import HfConfig, Json
from planner.documents.digest import canonical_json
from planner.documents.scalars import is_null, to_json, to_str
from planner.documents.sources import read_file, tree_of
from planner.documents.tree import Node, NodeError, Scalar, Table, Value, printable, under
from planner.errors import DocumentError

CONFIG = "config"
CONFIG_SHA256 = "config_sha256"

_FACTS = """
architectures model_type is_encoder_decoder is_causal is_mm_prefix_lm dtype torch_dtype vocab_size
draft_vocab_size tie_word_embeddings use_bidirectional_attention classifier_pooling

hidden_size d_model n_embd target_hidden_size hidden_size_per_layer_input intermediate_size
intermediate_size_mlp ffn_dim d_ff decoder_ffn_dim encoder_ffn_dim
num_hidden_layers n_layer decoder_layers encoder_layers num_target_layers num_kv_shared_layers

num_attention_heads n_head decoder_attention_heads encoder_attention_heads num_key_value_heads
num_kv_heads n_head_kv num_global_key_value_heads head_dim attention_head_dim global_head_dim v_head_dim
attention_bias attention_k_eq_v attn_output_gate attn_logit_softcapping use_qk_norm
swa_num_attention_heads swa_num_key_value_heads swa_head_dim swa_v_head_dim
add_full_attention_sink_bias add_swa_attention_sink_bias
kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim qk_head_dim
index_topk index_head_dim index_n_heads index_topk_freq index_topk_pattern

layer_types layers_block_type attn_type_list attn_layer_period attn_layer_offset hybrid_layer_pattern
hybrid_override_pattern full_attention_interval global_attn_every_n_layers no_rope_layers
no_rope_layer_interval sliding_window sliding_window_size sliding_window_pattern _sliding_window_pattern
use_sliding_window max_window_layers local_attention attention_chunk_size

max_position_embeddings max_target_positions max_source_positions n_positions
original_max_position_embeddings initial_context_length rope_scaling rope_parameters

num_experts moe_num_experts n_routed_experts num_local_experts num_experts_per_tok experts_per_token
top_k_experts n_shared_experts moe_intermediate_size shared_expert_intermediate_size
shared_intermediate_size moe_shared_expert_intermediate_size first_k_dense_replace moe_layer_freq
decoder_sparse_step mlp_only_layers interleave_moe_layer_step enable_moe_block n_group topk_group

state_size ssm_state_size conv_kernel chunk_size expand n_groups num_heads time_step_rank use_conv_bias
mamba_num_heads mamba_head_dim mamba_d_state mamba_d_conv mamba_expand mamba_d_head mamba_n_heads
mamba_n_groups mamba_chunk_size mamba_ssm_cache_dtype mamba_ssm_dtype linear_attn_config
linear_conv_kernel_dim linear_key_head_dim linear_num_key_heads linear_num_value_heads
linear_value_head_dim

num_nextn_predict_layers mtp_num_hidden_layers num_mtp_modules mtp_transformer_layers use_mtp
dflash_config block_size

image_size patch_size temporal_patch_size spatial_merge_size depth out_hidden_size in_channels
num_position_embeddings pooling_kernel_size mm_tokens_per_image vision_soft_tokens_per_image
vision_n_layers num_mel_bins
"""
FACTS = frozenset(_FACTS.split())
"""Keys that are kept, with whatever stands under them: shapes, layer patterns, kinds of attention."""

NESTED = frozenset(
    {"text_config", "llm_config", "language_config", "thinker_config", "vision_config", "audio_config"}
)
"""Keys whose mappings are configs themselves and are filtered likewise."""

QUANTIZATION = frozenset({"quantization_config", "compression_config", "quantization"})
QUANTIZATION_FACTS = frozenset({"quant_method", "quant_algo", "kv_cache_quant_algo", "kv_cache_scheme"})
"""What is kept of a quantised checkpoint: its method, and what its KV cache was calibrated for."""

MAX_FACTS_BYTES = 2**20
MAX_NUMBER_LENGTH = 400

_SHA256 = re.compile(r"[0-9a-f]{64}")


def config_facts(config: Mapping[str, Json]) -> dict[str, Json]:
    """What planning uses of a ``config.json``; applying it again changes nothing.

    Raises:
        DocumentError: a kept value is no JSON, not finite, or too large.
    """
    try:
        return _facts(tree_of(config))
    except NodeError as error:
        raise error.in_document(None) from None


def with_configs(deployment: Table, folder: Path) -> Table:
    """``deployment`` with the configs of target and draft in place of their paths or mappings.

    Relative paths start at ``folder``.

    Raises:
        NodeError: a config cannot be read or is no model's config.
    """
    values = dict(deployment.values)
    for name in ("model", "speculative"):
        section = values.get(name)
        if isinstance(section, Table) and not {CONFIG, CONFIG_SHA256}.isdisjoint(section.values):
            with under(name):
                values[name] = _with_config(section, folder)
    return Table(values, deployment.keys, deployment.place)


def _with_config(section: Table, folder: Path) -> Table:
    values = dict(section.values)
    sha = values.pop(CONFIG_SHA256, None)
    config = values.get(CONFIG)
    if config is not None and not is_null(config):
        with under(CONFIG):
            read = _inline_config(config) if isinstance(config, Table) else _read_config(config, folder)
        values[CONFIG] = Value(read, config.place)
    if sha is not None and not is_null(sha):
        with under(CONFIG_SHA256):
            if not isinstance(config, Table):
                raise NodeError("stands beside an inline config only; remove it", sha.place)
            values[CONFIG] = Value(HfConfig(facts=read.facts, sha256=_sha256(sha)), config.place)
    return Table(values, section.keys, section.place)


def _inline_config(config: Table) -> HfConfig:
    facts = _facts(config)
    return HfConfig(facts=facts, sha256=hashlib.sha256(canonical_json(facts)).hexdigest())


def _read_config(config: Node, folder: Path) -> HfConfig:
    """The config in a file. Its content stays out of messages: a stranger may have named the file."""
    path = folder / _path_text(config)
    try:
        data = read_file(path)
        facts = _facts(tree_of(_parsed(data)))
    except DocumentError as error:
        raise NodeError(f"{error.path}: {error.message}", config.place) from None
    except NodeError as error:
        key = f"{error.keys[-1]}: " if error.keys and error.keys[-1] in FACTS else ""
        raise NodeError(f"{printable(str(path))}: {key}{error.message}", config.place) from None
    return HfConfig(facts=facts, sha256=hashlib.sha256(data).hexdigest())


def _path_text(config: Node) -> str:
    if isinstance(config, Value) and isinstance(config.value, Path):
        return str(config.value)
    if isinstance(config, Scalar | Value):
        return to_str(config)
    raise NodeError("expected the path of a config.json or a mapping, found a list", config.place)


def _sha256(node: Node) -> str:
    text = to_str(node)
    if not _SHA256.fullmatch(text):
        raise NodeError("expected the 64 lower-case hexadecimal digits of a SHA-256", node.place)
    return text


def _parsed(data: bytes) -> Json:
    try:
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=_unique_keys, parse_int=_integer)
    except UnicodeDecodeError:
        problem = "not UTF-8 text"
    except json.JSONDecodeError as error:
        problem = f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
    except RecursionError:
        problem = "nested too deeply"
    raise NodeError(problem)


def _unique_keys(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise NodeError("a key is given twice in one object")
    return mapping


def _integer(digits: str) -> int:
    if len(digits) > MAX_NUMBER_LENGTH:
        raise NodeError("a number has too many digits")
    return int(digits)


def _facts(config: Node) -> dict[str, Json]:
    """The facts of ``config``, once they are known to be plain, finite and small."""
    if not isinstance(config, Table):
        raise NodeError("not a JSON object, as a model's config.json is", config.place)
    facts: dict[str, Json] = to_json(_kept(config, FACTS))
    if len(canonical_json(facts)) > MAX_FACTS_BYTES:
        raise NodeError("the facts about the model are larger than 1 MiB", config.place)
    return facts


def _kept(config: Table, names: frozenset[str]) -> Table:
    """``config`` without what planning does not use, before anything in it is judged."""
    kept: dict[str, Node] = {}
    for key, value in config.values.items():
        if key in names:
            kept[key] = value
        elif key in NESTED or key in QUANTIZATION:
            inner = FACTS if key in NESTED else QUANTIZATION_FACTS
            kept[key] = _kept(value, inner) if isinstance(value, Table) else value
    return Table(kept, config.keys, config.place)
