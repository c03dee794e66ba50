"""From a Deployment to the LLM arguments of TensorRT-LLM, as the file of its server has them.

Source: TensorRT-LLM 1.3, the flags of its server and the keys of its LLM arguments (rules 1).
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.documents.data import plain
from planner.documents.deployment import Deployment, Json
from planner.engines.shared import TENSORRT_LLM
from planner.exporters.exported import Exported, Outgoing
from planner.importers.tensorrt_llm import KEYS, SECTION, grammar

LEFT_OUT: Mapping[str, str] = {
    "model.config": "",
    "model.config_sha256": "",
    "model.num_kv_blocks": "the server measures it",
    "model.attention_backend": "its backends have other names; set attn_backend if need be",
    "speculative.config": "",
    "speculative.config_sha256": "",
    "engine.name": "",
    "engine.version": "",
}
"""What has no key, and why; without a reason, because it is the model or the program itself."""

NESTED: Mapping[str, tuple[str, str]] = {
    "model.kv_cache_dtype": ("kv_cache_config", "dtype"),
    "model.block_size": ("kv_cache_config", "tokens_per_block"),
    "lora.max_loras": ("lora_config", "max_loras"),
    "speculative.method": ("speculative_config", "decoding_type"),
    "speculative.model": ("speculative_config", "speculative_model"),
    "speculative.num_speculative_tokens": ("speculative_config", "max_draft_len"),
}
"""Settings that are keys of a mapping among the LLM arguments."""

DECODING_TYPES = ("MTP", "Eagle", "Eagle3", "NGram", "Draft_Target", "Medusa", "Lookahead", "PARD", "AUTO")
"""The engine's own spelling of methods, which it compares letter by letter."""

_LENGTH_OF_MTP = "num_nextn_predict_layers"
_PLACES = {place: key for key, place in KEYS.items()}
_NOT_SECTIONS = frozenset({"name", "device", "capture"})


def export_tensorrt_llm(deployment: Deployment) -> Exported:
    """The LLM arguments for ``deployment``; what they have no key for is in the notes."""
    out = Outgoing()
    for section, values in plain(deployment).items():
        if section in _NOT_SECTIONS:
            continue
        if section == "lora":
            _nested("lora_config", {}, "lora", out)
        for key, value in values.items():
            _setting(section, key, value, out)
    return out.finish(TENSORRT_LLM)


def _setting(section: str, key: str, value: Json, out: Outgoing) -> None:
    path = f"{section}.{key}"
    if path == "engine.env":
        out.env.update(value)
    elif path in LEFT_OUT:
        if LEFT_OUT[path]:
            out.notes.append(f"{path}: {value}: is left out; {LEFT_OUT[path]}")
    elif path in NESTED:
        _nested_value(path, value, out)
    elif section == SECTION and isinstance(value, Mapping) and key != "cuda_graph_config":
        _nested(key, value, path, out)
    elif (section, key) in _PLACES:
        name = _PLACES[section, key]
        out.settings[name] = value
        flag = grammar().table.get(f"--{name}")
        if flag is None or (flag.values == "none" and value is not True):
            out.without_flag[name] = path
    else:
        out.notes.append(f"{path}: {value}: tensorrt-llm has no such argument; it is left out")


def _nested_value(path: str, value: Json, out: Outgoing) -> None:
    name, key = NESTED[path]
    if path == "speculative.method":
        value = next((known for known in DECODING_TYPES if _same(known, value)), value)
    elif key == "max_draft_len" and _same(str(out.settings.get(name, {}).get("decoding_type")), "MTP"):
        key = _LENGTH_OF_MTP
    _nested(name, {key: value}, path, out)


def _same(known: str, method: str) -> bool:
    return known.casefold() == method.casefold()


def _nested(name: str, values: Mapping[str, Json], path: str, out: Outgoing) -> None:
    out.settings[name] = {**out.settings.get(name, {}), **values}
    out.without_flag.setdefault(name, path)
