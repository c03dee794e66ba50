"""Values that are plausible under a key: what a user could have meant, and what lies just beyond."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cache
from random import Random
from types import UnionType
from typing import Any, Union, get_args, get_origin

import yaml
from attrs import Attribute, fields, has, resolve_types

from planner.backends.traits import SELECTABLE
from planner.documents.data import VLLM_CONFIG
from planner.documents.deployment import Deployment
from planner.documents.vllm_fields import VllmField, vllm_fields
from planner.rules.devices import KNOWN_DEVICES
from tests.planner.fuzzing.nodes import listed, mapped, quoted, word

WORDS: Mapping[str, tuple[str, ...]] = {
    "method": (
        *("dflash", "dspark", "eagle", "eagle3", "mtp", "deepseek_mtp", "medusa", "ngram", "suffix"),
        *("draft_model", "extract_hidden_states", "ngram_gpu"),
    ),
    "attention_backend": tuple(SELECTABLE),
    "attention_backends": tuple(SELECTABLE),
    "backend": ("auto", *SELECTABLE),
    "kv_connector": ("LMCacheConnectorV1", "MultiConnector", "NixlConnector", "x"),
    "all2all_backend": (
        *("allgather_reducescatter", "deepep_low_latency", "deepep_high_throughput"),
        *("nixl_ep", "moonep", "naive"),
    ),
    "dtype": ("auto", "half", "float16", "bfloat16", "float", "float32"),
    "kv_cache_dtype": (
        "auto",
        "fp8",
        "fp8_e4m3",
        "fp8_e5m2",
        "bfloat16",
        "nvfp4",
        "fp8_ds_mla",
        "turboquant_k8v4",
    ),
    "name": (*KNOWN_DEVICES, "vllm", "sglang", "A9000", "MI300X", "XPU"),
    "compute_capability": ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1"),
    "version": ("0.33", "0.30", "1"),
    "runner_type": ("auto", "generate", "pooling", "draft"),
    "model_type": (
        *("llama", "qwen3", "gemma3_text", "gemma4_text", "llama4", "mimo_v2", "gpt_oss", "jamba", "mamba2"),
        *("nemotron_h", "qwen3_next", "minimax", "falcon_h1", "bamba", "deepseek_v3", "deepseek_v32", "bert"),
    ),
    "architectures": (
        "BertModel",
        "Qwen3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "Step5ForCausalLM",
        "DFlash2",
    ),
    "kind": ("full_attention", "sliding_window", "dflash_context_kv"),
    "severity": ("error", "warning", "info"),
}
TEXTS = (
    *(
        "x",
        "x",
        "no",
        "0.30",
        "1e-06",
        "12:30",
        "~",
        "",
        " x",
        "x ",
        "a: b",
        "- a",
        "#",
        "'",
        '"',
        "\\",
        "é😀",
    ),
    *(
        "\n",
        "a\nb\n",
        "\t",
        "\u2028",
        "\x85",
        "\xa0",
        "\u202e",
        "\x1b[31m",
        "\0",
        "\ufeff",
        "x" * 160,
        "y" * 3_000,
    ),
)
COUNTS = (1, 1, 2, 2, 3, 4, 4, 5, 6, 7, 8, 8, 12, 15, 16, 16, 17, 24, 31, 32, 33, 48, 64, 100, 128, 200, 256)
LARGE = (257, 300, 511, 512, 513, 1000, 1024, 2048, 4096, 8192, 16384)
LIMITS = (0, -1, 65535, 65536, 65537, 10**6, 2**20 - 1, 2**20, 2**20 + 1, 2**31, 10**18 - 1, 10**18)


@cache
def known_fields() -> Mapping[str, Mapping[str, Attribute[Any]]]:
    """The fields of every section of a Deployment, by the section's name."""
    sections = {}
    for field in fields(resolve_types(Deployment)):
        cls = _plain_type(field.type)
        if has(cls):
            known = {inner.name: inner for inner in fields(resolve_types(cls))}
            known.pop("ignored", None)
            sections[field.name] = known
    return sections


@cache
def words_of(key: str) -> tuple[str, ...]:
    """The words that stand under ``key`` anywhere in a document."""
    found = list(WORDS.get(key, ()))
    for section in known_fields().values():
        cls = _plain_type(section[key].type) if key in section else None
        if isinstance(cls, type) and issubclass(cls, Enum):
            found.extend(str(member) for member in cls)
    return tuple(found)


def number(rng: Random) -> int:
    """A count as deployments have it; rarely one at a limit."""
    kind = rng.random()
    return rng.choice(COUNTS if kind < 0.75 else LARGE if kind < 0.96 else LIMITS)


@cache
def other_settings(section: str) -> Mapping[str, VllmField]:
    """Settings of vLLM that the section takes and planning does not use."""
    field = next(field for field in fields(resolve_types(Deployment)) if field.name == section)
    config = getattr(_plain_type(field.type), VLLM_CONFIG, None)
    found = vllm_fields(config) if config else {}
    return {name: known for name, known in found.items() if name not in known_fields()[section]}


def value_of_setting(key: str, known: VllmField, rng: Random) -> yaml.Node:
    """A value that vLLM's own setting takes."""
    if known.choices:
        return word(str(rng.choice(known.choices)))
    scalars = {"bool": bool, "int": int, "float": float}
    if known.type in scalars:
        return _value(scalars[known.type], key, rng)
    if known.type == "list":
        return listed([_value(scalars.get(known.items, str), key, rng) for _ in range(rng.randint(0, 3))])
    if known.type == "dict":
        return mapped([(quoted(text(rng)), free_form(rng)) for _ in range(rng.randint(0, 3))])
    return quoted(text(rng))


def text(rng: Random) -> str:
    """A string that is allowed anywhere, and awkward to write."""
    return rng.choice(TEXTS)


def free_form(rng: Random) -> yaml.Node:
    """A value of no particular type; rarely one that is nested as deeply as is allowed, or more."""
    kind = rng.randrange(8)
    if kind == 0:
        return word(rng.choice(("1.0e-06", "-2.5e+300", "0.1", "true", "null", "0", "-999999999999999999")))
    if kind == 1:
        node = quoted(text(rng))
        for _ in range(rng.choice((1, 2, 30, 44, 48, 50, 60))):
            node = listed([node]) if rng.random() < 0.5 else mapped([(quoted(text(rng)), node)])
        return node
    if kind == 2:
        return listed([free_form(rng) for _ in range(rng.randint(0, 2))])
    return quoted(text(rng)) if kind < 5 else word(str(number(rng)))


def value_of(field: Attribute[Any], rng: Random) -> yaml.Node:
    """A value of the field's type, mostly within its limits."""
    return _value(_plain_type(field.type), field.name, rng)


def _value(cls: Any, key: str, rng: Random) -> yaml.Node:
    if isinstance(cls, type) and issubclass(cls, Enum):
        return word(str(rng.choice(list(cls))))
    if cls is bool:
        return word(rng.choice(("true", "false")))
    if cls is int:
        return word(str(number(rng)))
    if cls is float:
        return word(str(rng.choice((0, 14, 24.5, 79, 139, 178.25))))
    if get_origin(cls) is tuple:
        item = get_args(cls)[0]
        length = 3 if get_origin(item) is None and key == "" else rng.randint(0, 6)
        inner = "" if get_origin(item) is tuple else key
        return listed([_value(_plain_type(item), inner, rng) for _ in range(length)])
    if get_origin(cls) is Mapping:
        return mapped([(quoted(text(rng)), free_form(rng)) for _ in range(rng.randint(0, 3))])
    return quoted(rng.choice(WORDS[key]) if key in WORDS and rng.random() < 0.9 else text(rng))


def _plain_type(cls: Any) -> Any:
    """``cls`` without ``None``, and the first of several alternatives."""
    if get_origin(cls) in (Union, UnionType):
        return next(member for member in get_args(cls) if member is not type(None))
    return cls
