"""From the arguments of SGLang's server to a Deployment.

Source: SGLang 0.5.23, the flags of its server (rules 1); the table beside this module has the names of
all of them, the fields that they fill and how many words they take, and is made by
``tools/make_sglang_flags.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from attrs import fields_dict

from planner.documents.deployment import Json
from planner.documents.engine_sections import SglangSection
from planner.documents.tree import printable
from planner.errors import DocumentError
from planner.importers.collect import MODEL, SPECULATIVE, Collector
from planner.importers.config_files import expanded
from planner.importers.detect import SGLANG
from planner.importers.flags import (
    NO_VALUE,
    NUMBERS,
    CommandLine,
    Flag,
    Given,
    Grammar,
    Parser,
    by_spelling,
    integer,
    read_table,
)
from planner.importers.imported import Completion, Imported
from planner.importers.launches import Launch
from planner.importers.words import Word

TABLE = "sglang-0.5.23-flags.json"

PLANNING_ENV = frozenset(
    {
        "SGLANG_RAGGED_VERIFY_MODE",
        "SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH",
        "SGLANG_ENABLE_SINGLE_CG_DRAFT",
    }
)
"""Environment variables that planning reads."""

KEYS = {
    "context_length": ("model", "max_model_len"),
    "dtype": ("model", "dtype"),
    "kv_cache_dtype": ("model", "kv_cache_dtype"),
    "page_size": ("model", "block_size"),
    "attention_backend": ("model", "attention_backend"),
    "tp_size": ("parallel", "tensor_parallel_size"),
    "pp_size": ("parallel", "pipeline_parallel_size"),
    "dcp_size": ("parallel", "decode_context_parallel_size"),
    "enable_dp_attention": ("parallel", "enable_dp_attention"),
    "max_running_requests": ("scheduler", "max_num_seqs"),
    "chunked_prefill_size": ("scheduler", "max_num_batched_tokens"),
    "speculative_draft_model_path": ("speculative", "model"),
}
"""Fields that have another place in a Deployment."""

OLDER: Mapping[str, tuple[Flag, str]] = {
    flag.name: (flag, present)
    for flag, present in (
        (Flag(spellings=("--cuda-graph-bs",), values="many", type="int"), "--cuda-graph-bs-decode"),
        (Flag(spellings=("--cuda-graph-max-bs",), type="int"), "--cuda-graph-max-bs-decode"),
        (
            Flag(spellings=("--piecewise-cuda-graph-tokens",), values="many", type="int"),
            "--cuda-graph-bs-prefill",
        ),
        (Flag(spellings=("--piecewise-cuda-graph-max-tokens",), type="int"), "--cuda-graph-max-bs-prefill"),
        (Flag(spellings=("--disable-piecewise-cuda-graph",), values="none"), "--disable-prefill-cuda-graph"),
        (Flag(spellings=("--enable-piecewise-cuda-graph",), values="none"), "--cuda-graph-backend-prefill"),
    )
}
"""Flags of earlier releases, and the present ones."""

SIZES = {
    "--cuda-graph-bs-decode": ("decode", "bs"),
    "--cuda-graph-bs-prefill": ("prefill", "bs"),
    "--cuda-graph-max-bs-decode": ("decode", "max_bs"),
    "--cuda-graph-max-bs-prefill": ("prefill", "max_bs"),
    "--cuda-graph-max-seq-len-prefill": ("prefill", "max_seq_len"),
    "--cuda-graph-prefill-max-context": ("prefill", "max_context_size"),
}
"""Flags of sizes by phase and key of the JSON config, which gives them too."""

_SAME_KEY = frozenset({"--cuda-graph-bs", "--cuda-graph-max-bs"})
"""Older flags whose names are keys of the section too."""

UNMODELLED = frozenset(
    {
        "enable_mis",
        "dllm_algorithm",
        "enable_pdmux",
        "speculative_adaptive",
        "json_model_override_args",
        "device",
    }
)
"""Fields that could change the graphs in ways that are not followed."""

_READ = frozenset(
    {"revision", "dp_size", "attn_dp_size", "enable_lora", "max_loras_per_batch", "speculative_algorithm"}
    | {"speculative_draft_model_revision"}
)
"""Fields besides those of one place that planning reads."""

_MODEL_TYPE = Flag(spellings=("--model-type",))
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)(Ki|Mi|Gi|Ti|k|M|G|T)")
_FACTORS = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12} | {
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


@cache
def grammar() -> Grammar:
    """What the parser of SGLang's server takes, the flags of earlier releases among them."""
    older = [flag for flag, _ in OLDER.values()]
    return Grammar(
        engine=SGLANG,
        title="SGLang 0.5.23",
        program="sglang serve",
        table={**read_table(TABLE), **by_spelling([*older, _MODEL_TYPE])},
        readers=(("size", _size, "a whole number, such as 8192 or 8k"), *NUMBERS),
    )


def import_sglang(launch: Launch, completion: Completion, path: str | None) -> Imported:
    """The Deployment of a start of SGLang's server.

    Raises:
        DocumentError: a flag or value that SGLang would refuse. ``path`` is the source in messages.
    """
    words, remarks = expanded(launch.words, launch, completion, path)
    line = Parser(grammar(), tuple(words), path, _is_planned).parse()
    collector = Collector(launch=launch, completion=completion, path=path)
    collector.sections["engine"] = {"name": SGLANG}
    collector.notes.extend([*remarks, *line.remarks])
    model = _model(line, collector)
    revision = line.pop("--revision")
    collector.environment(PLANNING_ENV)
    for name in OLDER:
        if (given := line.pop(name)) is not None:
            _older(given, line, collector)
    _refuse_contradictions(line, collector)
    _data_parallel(line, collector)
    _lora(line, collector)
    algorithm = line.pop("--speculative-algorithm")
    if algorithm is not None:
        method = None if algorithm.value is None else str(algorithm.value).lower()
        collector.put(SPECULATIVE, "method", method, algorithm)
    for given in line.given.values():
        _flag(given, collector)
    collector.config(MODEL, model, revision and revision.value)
    _draft(line, collector)
    return collector.finish(model)


def _model(line: CommandLine, collector: Collector) -> str | None:
    named = line.pop("--model-path")
    words = list(line.positional)
    if named is not None:
        words.append(named.unknown or Word(str(named.value), named.where.line, named.where.column))
    texts = [collector.known_text(word) for word in words]
    if len(words) > 1:
        extra = words[1]
        raise DocumentError(
            f"{printable(extra.text)} stands where only one model may be named",
            path=extra.path or collector.path,
            line=extra.line,
            column=extra.column,
        )
    if texts:
        collector.sections.setdefault(SGLANG, {})["model_path"] = texts[0]
    return texts[0] if texts else None


def _refuse_contradictions(line: CommandLine, collector: Collector) -> None:
    """Refuses a size that a flag and the JSON config give differently.

    Raises:
        DocumentError: there is one.
    """
    config = line.given.get("--cuda-graph-config")
    phases = config.value if config is not None and isinstance(config.value, Mapping) else {}
    for flag, (phase, key) in SIZES.items():
        given, inner = line.given.get(flag), phases.get(phase)
        if given is None or config is None or not isinstance(inner, Mapping) or key not in inner:
            continue
        if given.unknown is not None or given.value != inner[key]:
            raise collector.error(config, f"and {flag} give {phase}.{key} different values; drop one")


def _older(given: Given, line: CommandLine, collector: Collector) -> None:
    """Takes a flag of an earlier release for what it meant, and says that the present one refuses it."""
    name = given.flag.name
    present = OLDER[name][1]
    collector.warn(
        "older-flag", f"SGLang 0.5.23 does not start with {name}; it is read as {present}", f"write {present}"
    )
    if name in _SAME_KEY:
        collector.put(SGLANG, _key(name), given.value, given)
    elif name != "--enable-piecewise-cuda-graph":
        if present in line.given:
            raise collector.error(given, f"and {present} both give sglang.{_key(present)}; drop one")
        collector.put(SGLANG, _key(present), given.value, given)


def _key(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _data_parallel(line: CommandLine, collector: Collector) -> None:
    """Attention ranks come from ``--attn-dp-size``, or from ``--dp-size`` with the older switch."""
    replicas, attention = line.pop("--dp-size"), line.pop("--attn-dp-size")
    if attention is not None and attention.value != 1:
        collector.put("parallel", "data_parallel_size", attention.value, attention)
        collector.put("parallel", "enable_dp_attention", True, attention)
        line.pop("--enable-dp-attention")
        if replicas is not None and replicas.value == 1:
            return
    if replicas is not None:
        collector.put("parallel", "data_parallel_size", replicas.value, replicas)


def _lora(line: CommandLine, collector: Collector) -> None:
    names = ("--enable-lora", "--lora-paths")
    given = [flag for name in names if (flag := line.pop(name)) is not None]
    most = line.pop("--max-loras-per-batch")
    if given:
        collector.sections.setdefault("lora", {})
        if most is not None:
            collector.put("lora", "max_loras", most.value, most)
    elif most is not None:
        collector.unused.append(most.flag.name)


def _is_planned(flag: Flag) -> bool:
    """Whether planning reads what a flag gives."""
    return (
        flag.name in OLDER
        or flag.field in KEYS
        or flag.field in _READ
        or flag.field in fields_dict(SglangSection)
    )


def _flag(given: Given, collector: Collector) -> None:
    name = given.flag.field
    if name in UNMODELLED:
        collector.notes.append(f"{given.flag.name} could change the graphs in ways that are not followed")
    elif name in KEYS:
        collector.put(*KEYS[name], given.value, given)
    elif name in fields_dict(SglangSection):
        collector.put(SGLANG, name, given.value, given)
    else:
        collector.unused.append(given.flag.name)


def _draft(line: CommandLine, collector: Collector) -> None:
    """The draft's own config, where there is a draft."""
    speculative = collector.sections.get(SPECULATIVE)
    if speculative is None and collector.completion.draft_config is None:
        return
    revision = line.given.get("--speculative-draft-model-revision")
    collector.config(SPECULATIVE, (speculative or {}).get("model"), revision and revision.value)


def _size(text: str) -> Json:
    """A number such as 8192, 8k (thousands), 8Ki (of 1024) or 1.5k."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return integer(text)
    number, unit = match.groups()
    if "." not in number:
        return int(number) * _FACTORS[unit]
    return NO_VALUE if unit.endswith("i") else int(float(number) * _FACTORS[unit])
