"""The config that a vLLM engine prints when it begins: one line, read with small parsers of its values.

Nothing is evaluated. The line has ``name=value`` pairs, and inside them the compilation config as a
Python mapping, or as JSON in older versions; a value that is cut off or of another form is unknown.

Source: vLLM 0.33, the engine core's first message and the configs' own text forms.
"""

from __future__ import annotations

import re

from attrs import frozen

from planner.modes import CUDAGraphMode

BEGINNING = "LLM engine (v"
"""Words of the message that has an engine's config."""

_VERSION = re.compile(r"LLM engine \(v([^()\s]{1,60})\) with config: ")
_COMPILATION = "compilation_config="
_DRAFT_TOKENS = re.compile(r"\bnum_spec_tokens=(\d{1,6})\b.|\bspeculative_config=(None)\b", re.ASCII)

_MODEL = re.compile(r"""model=(['"])([^'"]{1,300})\1""")
_DTYPE = re.compile(r", dtype=(?:torch\.)?(\w{1,40})[^\w]", re.ASCII)

_LARGEST_DIGITS = 7
# What ends where the line does may be cut off.
_NUMBER = re.compile(r"(\d{1,7})\D", re.ASCII)
_MODE_NAME = re.compile(r"<?(?:CUDAGraphMode\.)?[\"']?([A-Z_]{1,40})[^A-Z_]")
_MODE_PAIR = re.compile(r"[\[(] {0,4}(\d) {0,4}, {0,4}(\d) {0,4}[\])]", re.ASCII)


@frozen(kw_only=True)
class ServerConfig:
    """What the engine was started with, ``None`` where its first message does not say it."""

    version: str | None = None
    model: str | None = None
    dtype: str | None = None
    max_model_len: int | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    cudagraph_mode: CUDAGraphMode | None = None
    cudagraph_capture_sizes: tuple[int, ...] | None = None
    max_cudagraph_capture_size: int | None = None
    num_speculative_tokens: int | None = None


def server_config(text: str) -> ServerConfig | None:
    """The config in ``text``, or ``None`` where it is not an engine's first message."""
    if BEGINNING not in text:
        return None
    version = _VERSION.search(text)
    if version is None:
        return None
    settings = text[version.end() :]
    compilation = settings[max(settings.rfind(_COMPILATION), 0) :]
    drafts = _DRAFT_TOKENS.search(settings)
    model, dtype = _MODEL.match(settings), _DTYPE.search(settings)
    return ServerConfig(
        version=version[1],
        model=model[2] if model else None,
        dtype=dtype[1] if dtype else None,
        max_model_len=_setting(settings, "max_seq_len"),
        tensor_parallel_size=_setting(settings, "tensor_parallel_size"),
        pipeline_parallel_size=_setting(settings, "pipeline_parallel_size"),
        data_parallel_size=_setting(settings, "data_parallel_size"),
        cudagraph_mode=_mode(_value(compilation, "cudagraph_mode")),
        cudagraph_capture_sizes=_sizes(_value(compilation, "cudagraph_capture_sizes")),
        max_cudagraph_capture_size=_number(_value(compilation, "max_cudagraph_capture_size")),
        num_speculative_tokens=int(drafts[1] or 0) if drafts else None,
    )


def _setting(settings: str, key: str) -> int | None:
    """The number of the first pair ``key=``."""
    return _number(settings.partition(f", {key}=")[2])


def _value(mapping: str, key: str) -> str:
    """The text from the value of ``key`` on, or nothing."""
    for quote in "'\"":
        _, found, rest = mapping.partition(f"{quote}{key}{quote}:")
        if found:
            return rest.lstrip(" ")
    return ""


def _number(text: str) -> int | None:
    found = _NUMBER.match(text)
    return int(found[1]) if found else None


def _sizes(text: str) -> tuple[int, ...] | None:
    """The sizes of a list, ascending, which older versions print from the largest down."""
    end = text.find("]")
    if not text.startswith("[") or end < 0:
        return None
    items = [item.strip(" ") for item in text[1:end].split(",")]
    if items == [""]:
        return ()
    if not all(item.isascii() and item.isdecimal() and len(item) <= _LARGEST_DIGITS for item in items):
        return None
    return tuple(sorted({int(item) for item in items}))


def _mode(text: str) -> CUDAGraphMode | None:
    """A mode by its name or its value, in any of the forms that versions print."""
    name, pair, number = _MODE_NAME.match(text), _MODE_PAIR.match(text), _number(text)
    if name:
        return CUDAGraphMode.__members__.get(name[1])
    value = (int(pair[1]), int(pair[2])) if pair else number
    return next((mode for mode in CUDAGraphMode if mode.value == value), None)
