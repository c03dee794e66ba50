"""Telling an engine's command line from a document, cheaply: every ``planner compile`` asks."""

from __future__ import annotations

import re
from collections.abc import Sequence

API_SERVER = "vllm.entrypoints.openai.api_server"
IMAGE = re.compile(r"(?:[\w.:-]+/)*vllm-openai(?::[\w.-]+)?(?:@[\w:]+)?")
"""Container images whose arguments are those of ``vllm serve``."""
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)

_DOCUMENT = re.compile(r"^\s*(?:apiVersion|kind)\s*:|\A\s*\{", re.MULTILINE)
_COMMAND = re.compile(rf"\bvllm\s+serve\b|{re.escape(API_SERVER)}|\bvllm-openai\b")


def is_command(text: str) -> bool:
    """Whether ``text`` is a shell command that starts vLLM rather than a document."""
    return _COMMAND.search(text) is not None and _DOCUMENT.search(text) is None


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
