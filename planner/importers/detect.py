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

_LEADING = frozenset({"{", "!", "if", "then", "else", "elif", "while", "until", "do", "time"})
"""Words of a shell in front of a command."""
_CALLING = frozenset({"sudo", "doas", "exec", "command", "builtin", "env", "nohup", "eval"})
"""Programs that start the one behind them."""
_PRINTING = frozenset({"echo", "printf"})
_NAMES_ONLY = """
    : true false [ [[ test for case select function return exit export declare typeset local readonly
    unset read alias unalias trap type which whereis hash help man cat head tail grep egrep fgrep rg sed
    awk tr wc pgrep pkill killall kill ps logger wall git pip pip3 apt apt-get ls rm cp mv cd mkdir touch
    curl wget sleep
"""
_NAMING = _PRINTING | frozenset(_NAMES_ONLY.split())
"""Commands that start nothing of what stands among their words."""
_CONTAINING = frozenset({"docker", "podman", "nerdctl"})
_STARTING = frozenset({"run", "create"})
"""What those programs do with an image where its arguments count."""

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
    starts = (start for index in range(len(words)) if (start := _start_at(words, index)) is not None)
    first = next(starts, None)
    if first is None or _only_names(words[: first.at - 1]):
        return None
    if IMAGE.fullmatch(words[first.at - 1]):
        before = words[: first.at - 1]
        if _head(before) not in _CONTAINING:
            # Something else may be started in the image, by the name of its own program.
            return next(starts, first)
        return first if not _STARTING.isdisjoint(before) else None
    return first


def _start_at(words: Sequence[str], index: int) -> Start | None:
    """The start of a server whose program stands at ``index``."""
    word, following = words[index], words[index + 1] if index + 1 < len(words) else None
    if (engine := PROGRAMS.get(_program(word))) is not None:
        if following == _SERVE:
            return Start(engine, index + 2)
        is_own = engine == TENSORRT_LLM and following is not None
        return Start(engine, index + 1) if is_own and not is_other_command(words[index : index + 2]) else None
    if word == "-m" and following in MODULES:
        return _of_module(words, index + 1)
    return Start(VLLM, index + 1) if following is not None and IMAGE.fullmatch(word) else None


def _only_names(before: Sequence[str]) -> bool:
    """Whether a command that begins with ``before`` says the words behind it instead of starting them."""
    return _head(before) in _NAMING or not _PRINTING.isdisjoint(before)


def _head(words: Sequence[str]) -> str | None:
    """The program that a command starts, behind those that only call another."""
    caller: str | None = None
    for word in words:
        if caller == "command" and word in ("-v", "-V"):
            return "type"
        if _program(word) in _CALLING:
            caller = _program(word)
        elif not (word in _LEADING or ASSIGNMENT.fullmatch(word) or (caller and word.startswith("-"))):
            return _program(word)
    return None


def _of_module(words: Sequence[str], index: int) -> Start:
    engine = MODULES[words[index]]
    has_command = tuple(words[index + 1 : index + 2]) == (_SERVE,)
    return Start(engine, index + 1 + has_command)


def command_begins(words: Sequence[str]) -> int | None:
    """Where, among a program's arguments, a command that starts a server begins; ``None`` if none does."""
    for index in range(len(words)):
        if begins_command(words, index):
            return with_assignments(words, index)
    return None


def begins_command(words: Sequence[str], index: int) -> bool:
    """Whether the program of a command that starts a server stands at ``index``."""
    word, rest = words[index], words[index + 1 : index + 8]
    program = _program(word)
    if program.startswith("python"):
        return any(module in rest for module in MODULES)
    if program == "trtllm-serve":
        return bool(rest) and not is_other_command((word, rest[0]))
    if program in PROGRAMS:
        return tuple(rest[:1]) == (_SERVE,)
    return program in _CONTAINING and any(map(IMAGE.fullmatch, words[index + 1 :]))


def with_assignments(words: Sequence[str], index: int, least: int = 0) -> int:
    """Where a command begins with the assignments in front of its program, none of them before ``least``."""
    while index > least and ASSIGNMENT.fullmatch(words[index - 1]):
        index -= 1
    return index
