"""From a ``vllm serve`` command line to a Deployment: each flag under the key that it stands for.

Source: vLLM 0.33, the flags of its serve parser and the config fields that they fill (rules 10).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NoReturn

from attrs import define, field, fields_dict, frozen

from planner.documents.deployment import (
    API_VERSION,
    CompilationSection,
    Deployment,
    Json,
    LoraSection,
    ParallelSection,
    SchedulerSection,
    SpeculativeSection,
)
from planner.documents.load import DEPLOYMENT, load_deployment
from planner.documents.tree import printable
from planner.documents.vllm_fields import vllm_fields
from planner.errors import DocumentError
from planner.importers.detect import API_SERVER, ASSIGNMENT, IMAGE, is_program
from planner.importers.model_configs import find_model_config
from planner.importers.shell import Word, commands_of
from planner.importers.vllm_flags import CommandLine, Given, parse_words

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


@frozen(kw_only=True)
class Imported:
    """A Deployment that was read off a command line.

    ``notes`` are remarks for the user; ``unused`` are the flags and environment variables that have no
    effect on planning.
    """

    deployment: Deployment
    notes: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


@frozen(kw_only=True)
class Completion:
    """What no command line says: files with the models' configs, and the device's name."""

    model_config: str | None = None
    draft_config: str | None = None
    device: str | None = None
    env: Mapping[str, str] = field(factory=dict)


def import_text(text: str, completion: Completion, *, path: str | None) -> Imported:
    """The Deployment of the one vLLM command in ``text``.

    Raises:
        DocumentError: there is none or more than one, or a flag or value that vLLM would refuse.
    """
    env: dict[str, Word] = {}
    found = []
    for command in commands_of(text, path):
        if command[0].text == "export":
            env.update(_assignments(command[1:]))
        elif (start := _start_of(command)) is not None:
            found.append((env | dict(_assignments(command[:start])), command[start:]))
    if not found:
        raise DocumentError("no vllm serve command is found", path=path)
    if len(found) > 1:
        lines = ", ".join(str(words[0].line) for _, words in found if words)
        raise DocumentError(f"{len(found)} vLLM commands are found, on lines {lines}; give one", path=path)
    return _imported(*found[0], completion, path)


def import_words(words: Sequence[str], completion: Completion) -> Imported:
    """The Deployment of a command that a shell has split into ``words`` already.

    Raises:
        DocumentError: it starts no vLLM server, or a flag or value that vLLM would refuse.
    """
    command = [Word(text) for text in words]
    start = _start_of(command)
    if start is None:
        raise DocumentError("no vllm serve command is found", path=printable(words[0]))
    return _imported(dict(_assignments(command[:start])), command[start:], completion, "vllm serve")


def _start_of(command: Sequence[Word]) -> int | None:
    """Where the server's own words begin, ``None`` in a command that starts no server."""
    texts = [word.text for word in command]
    for index, text in enumerate(texts):
        following = texts[index + 1 : index + 2]
        if is_program(text, "vllm") and following == ["serve"]:
            return index + 2
        if text == "-m" and following == [API_SERVER]:
            return index + 2
        if IMAGE.fullmatch(text):
            return index + 1
    return None


def _assignments(words: Sequence[Word]) -> Iterator[tuple[str, Word]]:
    for word in words:
        if match := ASSIGNMENT.fullmatch(word.text):
            yield match[1], Word(match[2], word.line, word.column, word.unknown)


def _imported(
    env: Mapping[str, Word], words: Sequence[Word], completion: Completion, path: str | None
) -> Imported:
    return _Import(completion=completion, path=path).run(env, parse_words(words, path))


@define(kw_only=True)
class _Import:
    """Collects sections from flags; ``origins`` knows which flag gave which key."""

    completion: Completion
    path: str | None
    sections: dict[str, dict[str, Json]] = field(factory=dict)
    origins: dict[str, Given] = field(factory=dict)
    notes: list[str] = field(factory=list)
    unused: list[str] = field(factory=list)

    def run(self, env: Mapping[str, Word], line: CommandLine) -> Imported:
        self.notes.extend(line.remarks)
        model = self._model(line)
        self._environment(env)
        for given in line.given.values():
            self._flag(given)
        self._lora(line)
        self._config("model", model, self.completion.model_config)
        draft = self.sections.get("speculative", {}).get("model")
        if "speculative" in self.sections or self.completion.draft_config:
            self._config("speculative", draft, self.completion.draft_config)
        if self.completion.device is not None:
            self.sections["device"] = {"name": self.completion.device}
        document: dict[str, Json] = {"apiVersion": API_VERSION, "kind": DEPLOYMENT}
        if model is not None:
            document["name"] = PurePosixPath(model).name.lower() or model
        try:
            deployment = load_deployment({**document, **self.sections}, path=self.path)
        except DocumentError as error:
            self._refuse(error)
        return Imported(deployment=deployment, notes=tuple(self.notes), unused=tuple(self.unused))

    def _model(self, line: CommandLine) -> str | None:
        named = line.given.pop("--model", None)
        words = [*line.positional, *([] if named is None else [Word(str(named.value), named.where.line)])]
        for word in words:
            if word.unknown:
                raise self._error(
                    word, f"{word.unknown[0]} is left to the shell, which is not run; write its value"
                )
        if len(words) > 1:
            extra = printable(words[1].text)
            raise self._error(words[1], f"{extra} stands where only one model may be named")
        return words[0].text if words else None

    def _environment(self, env: Mapping[str, Word]) -> None:
        for name, word in env.items():
            if name not in PLANNING_ENV:
                self.unused.append(name)
            elif word.unknown:
                raise self._error(word, f"{name}: {word.unknown[0]} is left to the shell; write its value")
            else:
                self.sections.setdefault("engine", {}).setdefault("env", {})[name] = word.text

    def _flag(self, given: Given) -> None:
        config, _, name = (given.flag.field or "").partition(".")
        whole = f"{config}.{name}"
        if whole in UNMODELLED:
            self.notes.append(f"{given.flag.name} {UNMODELLED[whole]}")
        elif whole in WHOLE_SECTIONS:
            self._section(WHOLE_SECTIONS[whole], given)
        elif whole in KEYS:
            if not (whole == "ModelConfig.runner" and given.value != "pooling"):
                self._put(*KEYS[whole], _number(given.value), given)
        elif config in SECTIONS and _takes(config, name, given.value):
            self._put(SECTIONS[config][0], name, given.value, given)
        elif given.flag.name != "--enable-lora":
            self.unused.append(given.flag.name)

    def _section(self, section: str, given: Given) -> None:
        if given.value is None:
            return
        if not isinstance(given.value, dict):
            raise self._error(given.where, "needs a mapping in JSON, such as '{\"key\": 1}'")
        self.sections.setdefault(section, {})
        self.origins.setdefault(section, given)
        for key, value in given.value.items():
            self._put(section, key, value, given)

    def _put(self, section: str, key: str, value: Json, given: Given) -> None:
        dotted = f"{section}.{key}"
        if key in self.sections.get(section, {}):
            first = self.origins[dotted].flag.name
            raise self._error(given.where, f"and {first} both give {dotted}; drop one")
        self.sections.setdefault(section, {})[key] = value
        self.origins[dotted] = given

    def _lora(self, line: CommandLine) -> None:
        """LoRA is on or off by its own flag; the others only say how."""
        enabled = line.given.get("--enable-lora")
        if enabled is not None and enabled.value:
            self.sections.setdefault("lora", {})
        elif self.sections.pop("lora", None) is not None:
            self.notes.append("flags of LoRA have no effect without --enable-lora")

    def _config(self, section: str, model: str | None, written: str | None) -> None:
        """The config of the model in ``section``, from a file that is named or found."""
        option = "--model-config" if section == "model" else "--draft-config"
        if written is None and model is not None:
            found = find_model_config(model, self.completion.env)
            if found is None:
                self.notes.append(f"{option}: no config.json is known for {printable(model)}; give one")
            else:
                self.notes.append(f"{printable(model)}: {found.origin}")
                written = str(found.path)
        if written is not None:
            self.sections.setdefault(section, {})["config"] = written

    def _refuse(self, error: DocumentError) -> NoReturn:
        """Raises the loader's error with the flag in place of the key that the flag gave."""
        key = error.key or ""
        origin = next((given for start, given in self.origins.items() if _is_under(key, start)), None)
        if origin is None:
            raise error
        flag = origin.where.text.partition("=")[0]
        if origin.flag.field in WHOLE_SECTIONS:
            flag = f"{flag}: {key}"
        raise DocumentError(
            error.message, path=error.path, line=origin.where.line, column=origin.where.column, key=flag
        ) from None

    def _error(self, word: Word, message: str) -> DocumentError:
        key = printable(word.text.partition("=")[0]) if word.text.startswith("-") else None
        return DocumentError(message, path=self.path, line=word.line, column=word.column, key=key)


def _number(value: Json) -> Json:
    """The level of -O3, which vLLM's parser takes as text."""
    return int(value) if isinstance(value, str) and len(value) == 1 and value.isdecimal() else value


def _is_under(key: str, start: str) -> bool:
    return key == start or key.startswith((f"{start}.", f"{start}["))


def _takes(config: str, name: str, value: Json) -> bool:
    """Whether the section of ``config`` takes ``value`` under ``name``; others are not worth a refusal."""
    known = vllm_fields(config).get(name)
    if known is None:
        return False
    if name in fields_dict(SECTIONS[config][1]):
        return True
    # Of what planning never reads, a command line may have the text of what the field holds parsed.
    kinds = {"int": int, "float": float, "str": str, "bool": bool}
    return known.type in kinds and type(value) is kinds[known.type]
