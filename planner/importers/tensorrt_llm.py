"""From ``trtllm-serve`` and its YAML file to a Deployment.

Source: TensorRT-LLM 1.3, the flags of its server and the keys of its LLM arguments (rules 1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache

from attrs import field, fields_dict, frozen

from planner.documents.deployment import Json
from planner.documents.engine_sections import (
    TensorrtCompileConfig,
    TensorrtCudaGraphConfig,
    TensorrtSpeculativeConfig,
)
from planner.documents.tree import printable
from planner.errors import DocumentError
from planner.importers.collect import MODEL, SPECULATIVE, Collector
from planner.importers.config_files import ConfigFile, read_config_file, value_of
from planner.importers.detect import TENSORRT_LLM
from planner.importers.flags import (
    NUMBERS,
    CommandLine,
    Flag,
    Given,
    Grammar,
    Parser,
    by_spelling,
)
from planner.importers.imported import Completion, Imported
from planner.importers.launches import Launch
from planner.importers.synonyms import other_name
from planner.importers.tensorrt_llm_keys import INNER_KEYS, TOP_KEYS
from planner.importers.words import Word, refusal

SECTION = "tensorrt_llm"

KEYS: Mapping[str, tuple[str, str]] = {
    "max_batch_size": ("scheduler", "max_num_seqs"),
    "max_num_tokens": ("scheduler", "max_num_batched_tokens"),
    "max_seq_len": ("model", "max_model_len"),
    "dtype": ("model", "dtype"),
    "kv_cache_dtype": ("model", "kv_cache_dtype"),
    "tensor_parallel_size": ("parallel", "tensor_parallel_size"),
    "pipeline_parallel_size": ("parallel", "pipeline_parallel_size"),
    "enable_attention_dp": ("parallel", "enable_dp_attention"),
    "max_beam_width": (SECTION, "max_beam_width"),
    "cuda_graph_config": (SECTION, "cuda_graph_config"),
    "prefill_cuda_graph_backend": (SECTION, "prefill_cuda_graph_backend"),
    "prefill_capture_num_tokens": (SECTION, "prefill_capture_num_tokens"),
    "cuda_graph_specialize_lora": (SECTION, "cuda_graph_specialize_lora"),
}
"""LLM arguments, which flags and the file share, by their place in a Deployment."""

NESTED: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "kv_cache_config": {"dtype": ("model", "kv_cache_dtype"), "tokens_per_block": ("model", "block_size")},
    "lora_config": {"max_loras": ("lora", "max_loras")},
    "speculative_config": {
        "decoding_type": (SPECULATIVE, "method"),
        "max_draft_len": (SPECULATIVE, "num_speculative_tokens"),
        "num_nextn_predict_layers": (SPECULATIVE, "num_speculative_tokens"),
        "speculative_model_dir": (SPECULATIVE, "model"),
        "speculative_model": (SPECULATIVE, "model"),
    },
}
"""Keys of mappings among the LLM arguments."""

OLDER = {
    "use_cuda_graph": "cuda_graph_config (null turns graphs off)",
    "cuda_graph_batch_sizes": "cuda_graph_config: batch_sizes",
    "cuda_graph_max_batch_size": "cuda_graph_config: max_batch_size",
    "cuda_graph_padding_enabled": "cuda_graph_config: enable_padding",
    "pytorch_backend_config": "its keys at the top of the file",
}
"""Keys of early releases, which the present ones refuse."""

_INTEGERS = """
    max_beam_width max_batch_size max_num_tokens max_seq_len gpus_per_node num_postprocess_workers port
    num_serve_frontends num_input_processor_workers num_media_load_workers max_input_len
"""
_TEXTS = """
    tokenizer custom_tokenizer host backend log_level config reasoning_parser tool_parser chat_template
    metadata_server_config_file server_role otlp_traces_endpoint disagg_cluster_uri media_io_kwargs
    custom_module_dirs kv_cache_dtype served_model_name middleware agent_percentage agent_types
    post_processor_hook report_addr video_pruning_rate visual_gen_args
"""
_SWITCHES = """
    trust_remote_code fail_fast_on_attention_window_too_large enable_chunked_prefill enable_attention_dp
    allow_request_chat_template enable_visual_gen grpc disable_kv_cache_reuse
"""
_ALIASES = {
    "config": ("--extra_llm_api_options",),
}


def _flags() -> Iterator[Flag]:
    for name in _INTEGERS.split():
        yield Flag(spellings=(f"--{name}",), field=name, type="int")
    for name in _TEXTS.split():
        yield Flag(spellings=(f"--{name}", *_ALIASES.get(name, ())), field=name)
    for name in _SWITCHES.split():
        yield Flag(spellings=(f"--{name}",), field=name, values="none")
    for name, short in (
        ("tensor_parallel_size", "--tp_size"),
        ("pipeline_parallel_size", "--pp_size"),
        ("context_parallel_size", "--cp_size"),
        ("moe_expert_parallel_size", "--ep_size"),
        ("moe_cluster_parallel_size", "--cluster_size"),
    ):
        yield Flag(spellings=(f"--{name}", short), field=name, type="int")
    yield Flag(spellings=("--revision", "--hf_revision"), field="revision")
    yield Flag(spellings=("--generation-config",), field="generation_config")
    yield Flag(
        spellings=("--free_gpu_memory_fraction", "--kv_cache_free_gpu_memory_fraction"),
        field="free_gpu_memory_fraction",
    )
    yield Flag(spellings=("--telemetry", "--no-telemetry"), negative=("--no-telemetry",), values="none")


@cache
def grammar() -> Grammar:
    """What the parser of ``trtllm-serve`` takes."""
    return Grammar(
        engine=TENSORRT_LLM,
        title="trtllm-serve",
        program="trtllm-serve",
        table=by_spelling(list(_flags())),
        readers=NUMBERS,
        abbreviates=False,
    )


def import_tensorrt_llm(launch: Launch, completion: Completion, path: str | None) -> Imported:
    """The Deployment of a start of TensorRT-LLM's server.

    Raises:
        DocumentError: a flag, key or value that TensorRT-LLM would refuse. ``path`` is the source in
            messages.
    """
    line = Parser(grammar(), launch.words, path, _is_planned).parse()
    collector = Collector(launch=launch, completion=completion, path=path)
    collector.sections["engine"] = {"name": TENSORRT_LLM}
    collector.notes.extend(line.remarks)
    model = _model(line, collector)
    revision = line.pop("--revision")
    collector.environment(frozenset())
    _refuse_backend(line, collector)
    settings = _config_settings(line, collector)
    from_file = {setting.given.flag.name for setting in settings}
    for given in line.given.values():
        place = KEYS.get(given.flag.field or "")
        if place is None:
            collector.unused.append(given.flag.name)
        elif given.flag.field not in from_file:
            collector.put(*place, given.value, given)
        else:
            collector.notes.append(f"{given.flag.name}: the config file's {given.flag.field} wins over it")
    for setting in settings:
        collector.put(*setting.place, setting.given.value, setting.given)
    collector.config(MODEL, model, revision and revision.value)
    if SPECULATIVE in collector.sections or completion.draft_config:
        collector.config(SPECULATIVE, collector.sections.get(SPECULATIVE, {}).get("model"))
    return collector.finish(model)


def _is_planned(flag: Flag) -> bool:
    """Whether planning reads what a flag gives."""
    return flag.field in KEYS or flag.field in ("config", "revision")


def _model(line: CommandLine, collector: Collector) -> str | None:
    texts = [collector.known_text(word) for word in line.positional]
    if len(texts) > 1:
        extra = line.positional[1]
        raise DocumentError(
            f"{printable(extra.text)} stands where only one model may be named",
            path=collector.path,
            line=extra.line,
            column=extra.column,
        )
    return texts[0] if texts else None


def _refuse_backend(line: CommandLine, collector: Collector) -> None:
    """Engines that are built ahead have no graphs of this kind."""
    backend = line.pop("--backend")
    if backend is not None and backend.value in ("tensorrt", "trt"):
        raise collector.error(backend, "only the PyTorch backend can be planned; leave the flag out")


@frozen
class _Setting:
    """One key of the file by its place in a Deployment. The flag of ``given`` has the key's name."""

    place: tuple[str, str]
    given: Given


@frozen
class _File:
    """The file behind ``--config`` while it is read; ``unused`` collects what planning has no use for."""

    config: ConfigFile
    unused: list[str] = field(factory=list)
    notes: list[str] = field(factory=list)

    def given(self, key: str, value: Json) -> Given:
        """A key of the file as if it were a flag."""
        line, column = self.config.table.keys[key.partition(".")[0]] or (None, None)
        word = Word(key, line, column, path=self.config.name)
        return Given(Flag(spellings=(key,), json=isinstance(value, dict)), value, word)

    def place(self, key: str) -> str:
        """Where a key stands, for messages."""
        line, _ = self.config.table.keys[key.partition(".")[0]] or (None, None)
        return self.config.name if line is None else f"{self.config.name}, line {line}"

    def error(self, key: str, message: str) -> DocumentError:
        """The error that something is wrong with a key."""
        line, column = self.config.table.keys[key.partition(".")[0]] or (None, None)
        return DocumentError(message, path=self.config.name, line=line, column=column, key=printable(key))


def _config_settings(line: CommandLine, collector: Collector) -> list[_Setting]:
    """The settings of the file that the line names."""
    named = line.pop("--config")
    if named is None:
        return []
    if named.unknown is not None:
        raise refusal(named.unknown, collector.path, named.where.text)
    config = read_config_file(
        Word(str(named.value)), named.where, collector.launch, collector.completion.folder, collector.path
    )
    file = _File(config)
    settings = [
        setting
        for key, node in config.table.values.items()
        for setting in _settings(key, value_of(node), file, collector)
    ]
    collector.unused.extend(file.unused)
    return settings


def _settings(key: str, value: Json, file: _File, collector: Collector) -> Iterator[_Setting]:
    """What one top-level key of the file says."""
    if key in OLDER:
        raise file.error(key, f"is a key of an early release; write {OLDER[key]}")
    if key in KEYS:
        _check_graph_keys(key, value, file)
        yield _Setting(KEYS[key], file.given(key, value))
    elif key == "torch_compile_config":
        known = _known_part(value, TensorrtCompileConfig)
        for name in value if isinstance(value, Mapping) else ():
            if name not in known:
                _passed(
                    f"{key}.{name}", (*INNER_KEYS[key], *fields_dict(TensorrtCompileConfig)), file, collector
                )
        if known:
            yield _Setting((SECTION, key), file.given(key, known))
    elif key in NESTED:
        yield from _nested(key, value, file, collector)
    else:
        _passed(key, (*TOP_KEYS, *KEYS, *NESTED, "torch_compile_config"), file, collector)


def _passed(key: str, known: Sequence[str], file: _File, collector: Collector) -> None:
    """Takes in a key that planning does not read, one of ``known`` if TensorRT-LLM has it.

    Raises:
        DocumentError: it is none of those, but is much like one, or what another engine calls one.
    """
    name = key.rpartition(".")[2]
    file.unused.append(key)
    if name in known:
        return
    near = get_close_matches(name, known, n=1, cutoff=0.7)
    if meant := other_name(name, TENSORRT_LLM, of_key=True) or (near[0] if near else None):
        raise file.error(key, f"is no key that is known; did you mean {meant}?")
    collector.warn(
        "unknown-key",
        f"{file.place(key)}: {printable(key)} is no key of TensorRT-LLM that is known, and is left out",
        "drop it, or make sure that the release that is served has it",
    )


def _check_graph_keys(key: str, value: Json, file: _File) -> None:
    """TensorRT-LLM refuses unknown keys of this config, and a maximum that is not the largest size."""
    if key != "cuda_graph_config" or not isinstance(value, Mapping):
        return
    known = fields_dict(TensorrtCudaGraphConfig)
    for name in value:
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}?" if near else f"; those are {', '.join(known)}"
            raise file.error(f"{key}.{name}", f"is no key of it{hint}")
    sizes, maximum = value.get("batch_sizes"), value.get("max_batch_size")
    numbers = [size for size in sizes if type(size) is int] if isinstance(sizes, list) else []
    if numbers and type(maximum) is int and maximum > 0 and max(numbers) != maximum:
        message = (
            f"is {maximum} but the largest of batch_sizes is {max(numbers)}; make them equal, or drop it"
        )
        raise file.error(f"{key}.max_batch_size", message)


def _nested(key: str, value: Json, file: _File, collector: Collector) -> Iterator[_Setting]:
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise file.error(key, "expected a mapping")
    if key == "lora_config":
        collector.sections.setdefault("lora", {})
    places = NESTED[key]
    own = fields_dict(TensorrtSpeculativeConfig) if key == "speculative_config" else {}
    for name, inner in value.items():
        dotted = f"{key}.{name}"
        if name in places and inner is not None:
            text = str(inner).lower() if name == "decoding_type" else inner
            yield _Setting(places[name], file.given(dotted, text))
        elif name not in own:
            _passed(dotted, (*places, *own, *INNER_KEYS[key]), file, collector)
    if key == "speculative_config" and (known := _known_part(value, TensorrtSpeculativeConfig)):
        yield _Setting((SECTION, key), file.given(key, known))


def _known_part(value: Json, cls: type) -> dict[str, Json]:
    """The keys of a mapping that a section has."""
    items = value.items() if isinstance(value, Mapping) else ()
    return {name: inner for name, inner in items if name in fields_dict(cls)}
