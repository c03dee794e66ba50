"""Whether the name of a plan and the model of a server may mean one model.

A plan has no field for its model's id: its name is all there is to go by, and people shorten names.
"""

from __future__ import annotations

import re

_SIZE = re.compile(r"(?:\d{1,3}x)?\d{1,4}(?:\.\d{1,3})?[bm]", re.ASCII)
_VENDOR = "meta"
"""Llama's ids have it in front, which hardly anybody writes."""


def may_be_same_model(name: str, model: str) -> bool:
    """Whether ``name`` has the model's family and size in it, or ``model`` (an id or a path) has ``name``."""
    ours = _letters(name)
    return _letters(_family_and_size(model)).removeprefix(_VENDOR) in ours or ours in _letters(model)


def _family_and_size(model: str) -> str:
    """The beginning of an id's last part, up to its size; its first two words where it has none."""
    words = [word for word in re.split(r"[\s_-]+", model.rstrip("/").rpartition("/")[2].casefold()) if word]
    end = next((index for index, word in enumerate(words) if _SIZE.fullmatch(word)), 1)
    return "".join(words[: end + 1])


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))
