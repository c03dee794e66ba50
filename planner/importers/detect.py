"""Telling an engine's command line from a document, cheaply: every ``planner compile`` asks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from attrs import frozen

VLLM = "vllm"
SGLANG = "sglang"
TENSORRT_LLM = "tensorrt-llm"
ENGINES = (VLLM, SGLANG, TENSORRT_LLM)

IMAGE = re.compile(r"(?:[\w.:-]+/)*vllm-openai(?:-[\w.]+)?(?::[\w.-]+)?(?:@[\w:]+)?")
"""Container images whose arguments are those of ``vllm serve``."""
ASSIGNMENT = re.compile(r"([A-Z_][A-Z0-9_]*)=(.*)", re.DOTALL)
"""A setting of the environment; names with small letters, such as ``ExecStart``, are other things."""

MODULES = {
    "vllm.entrypoints.openai.api_server": VLLM,
    "vllm.entrypoints.cli.main": VLLM,
    "sglang.launch_server": SGLANG,
    "tensorrt_llm.commands.serve": TENSORRT_LLM,
}
"""Python modules that start a server."""
PROGRAMS = {"vllm": VLLM, "sglang": SGLANG, "trtllm-serve": TENSORRT_LLM}
_OTHER_COMMANDS = {
    "vllm": frozenset({"bench", "chat", "collect-env", "complete", "launch", "run-batch"}),
    "sglang": frozenset({"generate", "version", "killall"}),
    "trtllm-serve": frozenset(
        {"disaggregated", "disaggregated_mpi_worker", "mm_embedding_serve", "grpc", "visual_gen"}
    ),
}
"""What the programs have beside their server."""
_SERVE = "serve"

_NAMES = (
    r"\bvllm{gap}serve\b",
    r"\bsglang{gap}serve\b",
    r"\btrtllm-serve\b",
    *(re.escape(module) for module in MODULES),
    r"\bvllm-openai\b",
)
_DOCUMENT = re.compile(r"^[ \t]*(?:apiVersion|kind)\s*:|\A\s*\{", re.MULTILINE)
_COMMAND = re.compile("|".join(_NAMES).replace("{gap}", r"\s+"))
_NAMED = re.compile("|".join(_NAMES).replace("{gap}", r"[\s\"',-]+"))
_MANIFEST = re.compile(
    r"^[ \t]*(?:- +)?\"?(?:image|services|containers|entrypoint|command|args|spec)\"?:(?:\s|$)", re.MULTILINE
)
_OWN = re.compile(r"\bapiVersion\W{1,5}graphplan/")


@frozen
class Start:
    """Where the own arguments of a server begin among the words that start it."""

    engine: str
    at: int


def is_command(text: str) -> bool:
    """Whether ``text`` is a shell command that starts a server rather than a document."""
    return _COMMAND.search(text) is not None and not is_document(text) and not is_manifest(text)


def is_document(text: str) -> bool:
    """Whether ``text`` looks like a document, be it a right one or not."""
    return _DOCUMENT.search(text) is not None


def is_manifest(text: str) -> bool:
    """Whether ``text`` is YAML of Docker Compose or Kubernetes that starts a server."""
    return _NAMED.search(text) is not None and has_containers(text)


def has_containers(text: str) -> bool:
    """Whether ``text`` looks like YAML of Docker Compose or Kubernetes."""
    return _MANIFEST.search(text) is not None and _OWN.search(text) is None


def is_own_document(text: str) -> bool:
    """Whether ``text`` is a document of this program, be it a right one or not."""
    return _OWN.search(text) is not None


def is_other_command(words: Sequence[str]) -> bool:
    """Whether ``words`` hold a command of an engine that starts no server, such as ``vllm bench``."""
    return any(following in _OTHER_COMMANDS.get(_program(word), ()) for word, following in pairwise(words))


def _program(word: str) -> str:
    """The name of a program that is called by itself or by its path."""
    return word.rpartition("/")[2]


def is_shell(word: str) -> bool:
    """Whether ``word`` calls a shell."""
    return _program(word) in ("sh", "bash", "dash", "ash", "zsh", "ksh")


def start_of(words: Sequence[str]) -> Start | None:
    """Where a server's own words begin, ``None`` in a command that starts no server."""
    for index, word in enumerate(words):
        following = words[index + 1] if index + 1 < len(words) else None
        if (engine := PROGRAMS.get(_program(word))) is not None:
            if following == _SERVE:
                return Start(engine, index + 2)
            if engine == TENSORRT_LLM and following is not None and not is_other_command((word, following)):
                return Start(engine, index + 1)
        if word == "-m" and following in MODULES:
            return _of_module(words, index + 1)
        if following is not None and IMAGE.fullmatch(word):
            return Start(VLLM, index + 1)
    return None


def _of_module(words: Sequence[str], index: int) -> Start:
    engine = MODULES[words[index]]
    has_command = tuple(words[index + 1 : index + 2]) == (_SERVE,)
    return Start(engine, index + 1 + has_command)


def command_begins(words: Sequence[str]) -> int | None:
    """Where, among a program's arguments, a command that starts a server begins; ``None`` if none does."""
    for index, word in enumerate(words):
        rest = words[index + 1 : index + 8]
        if _starts_here(word, rest) or (word == "docker" and any(map(IMAGE.fullmatch, words[index + 1 :]))):
            return _with_assignments(words, index)
    return None


def _starts_here(word: str, rest: Sequence[str]) -> bool:
    program = _program(word)
    if program.startswith("python"):
        return any(module in rest for module in MODULES)
    if program == "trtllm-serve":
        return bool(rest) and not is_other_command((word, rest[0]))
    return program in PROGRAMS and tuple(rest[:1]) == (_SERVE,)


def _with_assignments(words: Sequence[str], index: int) -> int:
    while index and ASSIGNMENT.fullmatch(words[index - 1]):
        index -= 1
    return index
