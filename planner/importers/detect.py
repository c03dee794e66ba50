"""Telling an engine's command line from a document, cheaply: every ``planner compile`` asks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

API_SERVER = "vllm.entrypoints.openai.api_server"
IMAGE = re.compile(r"(?:[\w.:-]+/)*vllm-openai(?::[\w.-]+)?(?:@[\w:]+)?")
"""Container images whose arguments are those of ``vllm serve``."""
ASSIGNMENT = re.compile(r"([A-Z_][A-Z0-9_]*)=(.*)", re.DOTALL)
"""A setting of the environment; names with small letters, such as ``ExecStart``, are other things."""
OTHER_COMMANDS = frozenset({"bench", "chat", "collect-env", "complete", "launch", "run-batch"})
"""What ``vllm`` has beside ``serve``."""

_DOCUMENT = re.compile(r"^[ \t]*(?:apiVersion|kind)\s*:|\A\s*\{", re.MULTILINE)
_COMMAND = re.compile(rf"\bvllm\s+serve\b|{re.escape(API_SERVER)}|\bvllm-openai\b")


_MANIFEST = re.compile(
    r"^[ \t]*(?:- +)?(?:image|services|containers|entrypoint|command|args|spec):(?:\s|$)", re.MULTILINE
)
_OWN = re.compile(r"\bapiVersion\W{1,5}graphplan/")
_NAMED = re.compile(rf"\bvllm[\s\"',-]+serve\b|{re.escape(API_SERVER)}|\bvllm-openai\b")


def is_command(text: str) -> bool:
    """Whether ``text`` is a shell command that starts vLLM rather than a document."""
    return _COMMAND.search(text) is not None and not is_document(text) and not is_manifest(text)


def is_document(text: str) -> bool:
    """Whether ``text`` looks like a document, be it a right one or not."""
    return _DOCUMENT.search(text) is not None


def is_manifest(text: str) -> bool:
    """Whether ``text`` is YAML of Docker Compose or Kubernetes that starts vLLM."""
    return all(kind.search(text) for kind in (_NAMED, _MANIFEST)) and _OWN.search(text) is None


def is_other_command(words: Sequence[str]) -> bool:
    """Whether ``words`` hold a command of vLLM that starts no server, such as ``vllm bench``."""
    return any(
        is_program(word, "vllm") and following in OTHER_COMMANDS for word, following in pairwise(words)
    )


def is_program(word: str, name: str) -> bool:
    """Whether ``word`` calls the program ``name``, by itself or by its path."""
    return word.rpartition("/")[2] == name


def command_begins(words: Sequence[str]) -> int | None:
    """Where, among a program's arguments, a vLLM command begins; ``None`` if there is none."""
    for index, word in enumerate(words):
        if is_program(word, "vllm") and tuple(words[index + 1 : index + 2]) == ("serve",):
            return _with_assignments(words, index)
        if word.rpartition("/")[2].startswith("python") and API_SERVER in words[index + 1 : index + 8]:
            return _with_assignments(words, index)
        if word == "docker" and any(IMAGE.fullmatch(other) for other in words[index + 1 :]):
            return _with_assignments(words, index)
    return None


def _with_assignments(words: Sequence[str], index: int) -> int:
    while index and ASSIGNMENT.fullmatch(words[index - 1]):
        index -= 1
    return index
