"""From the arguments of ``vllm serve`` to a Deployment: each flag under the key that it stands for.

Source: vLLM 0.33, the flags of its serve parser and the config fields that they fill (rules 10).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from attrs import fields_dict

from planner.documents.deployment import (
    CompilationSection,
    Json,
    LoraSection,
    ParallelSection,
    SchedulerSection,
    SpeculativeSection,
)
from planner.documents.tree import printable
from planner.documents.vllm_fields import vllm_fields
from planner.errors import DocumentError
from planner.importers.collect import MODEL, SPECULATIVE, Collector, whole
from planner.importers.config_files import expanded
from planner.importers.flags import CommandLine, Flag, Given
from planner.importers.imported import Completion, Imported
from planner.importers.launches import Launch
from planner.importers.vllm_flags import parse_words
from planner.importers.words import Word
from planner.rules.settings import SUPPORTED_ENGINES

PLANNING_ENV = frozenset(
    {
        "VLLM_USE_V2_MODEL_RUNNER",
        "VLLM_USE_BREAKABLE_CUDAGRAPH",
        "VLLM_BATCH_INVARIANT",
        "VLLM_HAS_FLASHINFER_CUBIN",
        "TORCH_COMPILE_DISABLE",
        "LMCACHE_USE_LAYERWISE",
    }
)
"""Environment variables that planning reads; others, which may be secrets, go into no document."""

SECTIONS: Mapping[str, tuple[str, type]] = {
    "ParallelConfig": ("parallel", ParallelSection),
    "SchedulerConfig": ("scheduler", SchedulerSection),
    "LoRAConfig": ("lora", LoraSection),
    "CompilationConfig": ("compilation", CompilationSection),
    "SpeculativeConfig": ("speculative", SpeculativeSection),
}
"""Configs whose fields are keys of a section."""

WHOLE_SECTIONS = {
    "VllmConfig.compilation_config": "compilation",
    "VllmConfig.speculative_config": "speculative",
    "VllmConfig.attention_config": "attention",
    "VllmConfig.kv_transfer_config": "kv_transfer",
}
"""Fields whose JSON value is a section."""

KEYS = {
    "ModelConfig.max_model_len": ("model", "max_model_len"),
    "ModelConfig.dtype": ("model", "dtype"),
    "ModelConfig.enforce_eager": ("model", "enforce_eager"),
    "ModelConfig.runner": ("scheduler", "runner_type"),
    "CacheConfig.block_size": ("model", "block_size"),
    "CacheConfig.cache_dtype": ("model", "kv_cache_dtype"),
    "AttentionConfig.backend": ("model", "attention_backend"),
    "VllmConfig.optimization_level": ("engine", "optimization_level"),
    "VllmConfig.performance_mode": ("engine", "performance_mode"),
}
"""Fields that have another place in a Deployment than in vLLM."""

UNMODELLED = {
    "ModelConfig.hf_overrides": "changes the model's config.json; give the changed file with --model-config",
}
"""Fields that could change the plan in ways that are not followed."""

_READ = frozenset({"--model", "--revision", "--enable-lora"})
"""Flags besides those of fields that planning reads."""

_TAG = re.compile(r"v?(\d+\.\d+)(?:[.\w-]*)")


def import_vllm(launch: Launch, completion: Completion, path: str | None) -> Imported:
    """The Deployment of a start of vLLM's server.

    Raises:
        DocumentError: a flag or value that vLLM would refuse. ``path`` is the source in messages.
    """
    words, remarks = expanded(launch.words, launch, completion, path)
    line = parse_words(words, path, _is_planned)
    collector = Collector(launch=launch, completion=completion, path=path)
    collector.notes.extend([*_release_notes(launch.program), *remarks, *line.remarks])
    model = _model(line, collector)
    revision = line.pop("--revision")
    collector.environment(PLANNING_ENV)
    for given in line.given.values():
        _flag(given, collector)
    _lora(line, collector)
    collector.config(MODEL, model, revision and revision.value)
    sections = collector.sections
    if SPECULATIVE in sections or completion.draft_config:
        speculative = sections.get(SPECULATIVE, {})
        collector.config(SPECULATIVE, speculative.get("model"), speculative.get("revision"))
    return collector.finish(model)


def _release_notes(program: str) -> Iterator[str]:
    """The remark that an image holds another release than the one whose rules are known."""
    tag = _TAG.fullmatch(program.partition("@")[0].rpartition("vllm-openai")[2].removeprefix(":"))
    if tag is not None and tag[1] not in SUPPORTED_ENGINES["vllm"]:
        yield f"the image is of vLLM {tag[1]}; the plan follows the rules of {SUPPORTED_ENGINES['vllm'][-1]}"


def _model(line: CommandLine, collector: Collector) -> str | None:
    named = line.pop("--model")
    words = list(line.positional)
    if named is not None:
        words.append(named.unknown or Word(str(named.value), named.where.line, named.where.column))
    texts = [collector.known_text(word) for word in words]
    if len(words) > 1:
        extra = next((word for word in words if word.text.startswith("--")), words[1])
        hint = "; write the flag and its value as two words" if extra.text.startswith("--") else ""
        message = f"{printable(extra.text)} stands where only one model may be named{hint}"
        raise DocumentError(message, path=extra.path or collector.path, line=extra.line, column=extra.column)
    return texts[0] if texts else None


def _is_planned(flag: Flag) -> bool:
    """Whether planning reads what a flag gives."""
    config, _, name = (flag.field or "").partition(".")
    if flag.name in _READ or flag.field in KEYS or flag.field in WHOLE_SECTIONS:
        return True
    return config in SECTIONS and name in fields_dict(SECTIONS[config][1])


def _flag(given: Given, collector: Collector) -> None:
    config, _, name = (given.flag.field or "").partition(".")
    field = f"{config}.{name}"
    if field in UNMODELLED:
        collector.notes.append(f"{given.flag.name} {UNMODELLED[field]}")
    elif field in WHOLE_SECTIONS:
        whole(collector, WHOLE_SECTIONS[field], given)
    elif field in KEYS:
        if not (field == "ModelConfig.runner" and given.value != "pooling"):
            collector.put(*KEYS[field], _number(given.value), given)
    elif config in SECTIONS and _takes(config, name, given):
        collector.put(SECTIONS[config][0], name, given.value, given)
    elif given.flag.name != "--enable-lora":
        collector.unused.append(given.flag.name)


def _lora(line: CommandLine, collector: Collector) -> None:
    """LoRA is on or off by its own flag; the others only say how."""
    enabled = line.given.get("--enable-lora")
    if enabled is not None and enabled.value:
        collector.sections.setdefault("lora", {})
    elif collector.sections.pop("lora", None) is not None:
        collector.notes.append("flags of LoRA have no effect without --enable-lora")


def _number(value: Json) -> Json:
    """The level of -O3, which vLLM's parser takes as text."""
    return int(value) if isinstance(value, str) and len(value) == 1 and value.isdecimal() else value


def _takes(config: str, name: str, given: Given) -> bool:
    """Whether the section of ``config`` takes what a flag gives; other values are not worth a refusal."""
    known = vllm_fields(config).get(name)
    if known is None:
        return False
    if name in fields_dict(SECTIONS[config][1]):
        return True
    # Of what planning never reads, a command line may have the text of what the field holds parsed.
    kinds = {"int": int, "float": float, "str": str, "bool": bool}
    return known.type in kinds and type(given.value) is kinds[known.type]
