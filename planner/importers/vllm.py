"""From a ``vllm serve`` command line to a Deployment: each flag under the key that it stands for.

Source: vLLM 0.33, the flags of its serve parser and the config fields that they fill (rules 10).
"""

from __future__ import annotations

import re
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
from planner.documents.plan import Finding, Severity
from planner.documents.tree import printable
from planner.documents.vllm_fields import vllm_fields
from planner.errors import DocumentError
from planner.importers.detect import API_SERVER, ASSIGNMENT, IMAGE, is_program
from planner.importers.model_configs import config_in, find_model_config
from planner.importers.shell import Word, commands_of
from planner.importers.vllm_flags import CommandLine, Given, parse_words
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

CONTAINER_OPTIONS = {
    "--env-file": "is not read; write -e NAME=VALUE",
    "--entrypoint": "changes what the image starts; give the vllm serve line itself",
}
"""Options of ``docker run`` that could change the command, and what to do instead."""

_TAG = re.compile(r"v?(\d+\.\d+)(?:[.\w-]*)")


@frozen(kw_only=True)
class Imported:
    """A Deployment that was read off a command line.

    ``notes`` are remarks for the user; ``unused`` are the flags and environment variables that have no
    effect on planning. ``findings`` belong into the plan beside its own.
    """

    deployment: Deployment
    notes: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


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
    found: list[tuple[dict[str, Word], list[Word], int]] = []
    remarks = []
    for command in commands_of(text, path):
        if found and command[0].text.startswith("--"):
            remarks.append(
                f"line {command[0].line} begins with {printable(command[0].text)} and is not part of the "
                "command, which has ended before it"
            )
        if command[0].text == "export":
            env.update(_assignments(command[1:]))
        elif (start := _start_of(command)) is not None:
            found.append((env | dict(_assignments(command[:start])), command, start))
    if not found:
        raise DocumentError("no vllm serve command is found", path=path)
    if len(found) > 1:
        lines = ", ".join(str(words[0].line) for _, words, _ in found)
        raise DocumentError(f"{len(found)} vLLM commands are found, on lines {lines}; give one", path=path)
    return _imported(*found[0], completion, path, remarks)


def import_words(words: Sequence[str], completion: Completion) -> Imported:
    """The Deployment of a command that a shell has split into ``words`` already.

    Raises:
        DocumentError: it starts no vLLM server, or a flag or value that vLLM would refuse.
    """
    command = [Word(text) for text in words]
    start = _start_of(command)
    if start is None:
        raise DocumentError("no vllm serve command is found", path=printable(words[0]))
    return _imported(dict(_assignments(command[:start])), command, start, completion, "vllm serve")


def _start_of(command: Sequence[Word]) -> int | None:
    """Where the server's own words begin, ``None`` in a command that starts no server."""
    texts = [word.text for word in command]
    for index, text in enumerate(texts):
        following = texts[index + 1 : index + 2]
        if is_program(text, "vllm") and following == ["serve"]:
            return index + 2
        if text == "-m" and following == [API_SERVER]:
            return index + 2
        if IMAGE.fullmatch(text) and following:
            return index + 1
    return None


def _assignments(words: Sequence[Word]) -> Iterator[tuple[str, Word]]:
    for word in words:
        if match := ASSIGNMENT.fullmatch(word.text.removeprefix("--env=")):
            yield match[1], Word(match[2], word.line, word.column, word.unknown)


def _imported(
    env: Mapping[str, Word],
    command: Sequence[Word],
    start: int,
    completion: Completion,
    path: str | None,
    remarks: Sequence[str] = (),
) -> Imported:
    if IMAGE.fullmatch(command[start - 1].text):
        _refuse_container_options(command[:start], path)
    notes = [*remarks, *_release_notes(command[start - 1].text)]
    return _Import(completion=completion, path=path, notes=notes).run(env, parse_words(command[start:], path))


def _refuse_container_options(words: Sequence[Word], path: str | None) -> None:
    for word in words:
        name = word.text.partition("=")[0]
        if name in CONTAINER_OPTIONS:
            message = CONTAINER_OPTIONS[name]
            raise DocumentError(message, path=path, line=word.line, column=word.column, key=name)


def _release_notes(program: str) -> Iterator[str]:
    """The remark that an image holds another release than the one whose rules are known."""
    tag = _TAG.fullmatch(program.partition("@")[0].rpartition("vllm-openai")[2].removeprefix(":"))
    if tag is not None and tag[1] not in SUPPORTED_ENGINES["vllm"]:
        yield f"the image is of vLLM {tag[1]}; the plan follows the rules of {SUPPORTED_ENGINES['vllm'][-1]}"


@define(kw_only=True)
class _Import:
    """Collects sections from flags; ``origins`` knows which flag gave which key."""

    completion: Completion
    path: str | None
    sections: dict[str, dict[str, Json]] = field(factory=dict)
    origins: dict[str, Given] = field(factory=dict)
    notes: list[str] = field(factory=list)
    unused: list[str] = field(factory=list)
    findings: list[Finding] = field(factory=list)

    def run(self, env: Mapping[str, Word], line: CommandLine) -> Imported:
        self.notes.extend(line.remarks)
        model = self._model(line)
        revision = line.given.pop("--revision", None)
        self._environment(env)
        for given in line.given.values():
            self._flag(given)
        self._lora(line)
        self._config("model", model, self.completion.model_config, revision and revision.value)
        speculative = self.sections.get("speculative", {})
        if "speculative" in self.sections or self.completion.draft_config:
            draft = speculative.get("model")
            self._config("speculative", draft, self.completion.draft_config, speculative.get("revision"))
        if self.completion.device is not None:
            self.sections["device"] = {"name": self.completion.device}
        document: dict[str, Json] = {"apiVersion": API_VERSION, "kind": DEPLOYMENT}
        if model is not None:
            document["name"] = PurePosixPath(model).name.lower() or model
        try:
            deployment = load_deployment({**document, **self.sections}, path=self.path)
        except DocumentError as error:
            self._refuse(error)
        return Imported(
            deployment=deployment,
            notes=tuple(self.notes),
            unused=tuple(self.unused),
            findings=tuple(self.findings),
        )

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
        if given.flag.name == "--config":
            raise self._error(given.where, "is not read yet; write its flags on the line")
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

    def _config(self, section: str, model: Json, written: str | None, revision: Json) -> None:
        """The config of the model in ``section``, from a file that is named or found."""
        option = "--model-config" if section == "model" else "--draft-config"
        if written is not None:
            written = config_in(written)
        elif isinstance(model, str):
            wanted = revision if isinstance(revision, str) else None
            found = find_model_config(model, self.completion.env, wanted)
            if found is None:
                at = f" at revision {printable(wanted)}" if wanted else ""
                message = f"no config.json is known for {printable(model)}{at}"
                self.notes.append(f"{option}: {message}; give one")
                self._unknown_model(f"{message}; the plan is that of a model without special needs", option)
            else:
                self.notes.append(f"{printable(model)}: {found.origin}")
                written = str(found.path)
        elif section == "model":
            self._unknown_model("the command line names no model", option)
        if written is not None:
            self.sections.setdefault(section, {})["config"] = written

    def _unknown_model(self, message: str, option: str) -> None:
        finding = Finding(
            severity=Severity.WARNING, code="unknown-model", message=message, fix=f"{option} config.json"
        )
        self.findings.append(finding)

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
