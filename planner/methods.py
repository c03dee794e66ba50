"""Names of speculative methods, as vLLM 0.33's SpeculativeConfig spells them."""

from __future__ import annotations

DFLASH = "dflash"
DSPARK = "dspark"

DFLASH_METHODS = frozenset({DFLASH, DSPARK})
"""Methods whose draft proposes a whole block at once."""

V1_DRAFT_METHODS = frozenset({"eagle", "eagle3", "mtp", "draft_model", "dflash"})
"""Speculative methods whose draft is a model with a dispatcher of its own."""

V1_SCHEDULED_METHODS = V1_DRAFT_METHODS | {"ngram"}
"""Speculative methods that can draft different numbers of tokens by batch size."""


def method_kind(method: str | None) -> str | None:
    """``method`` under the name that the engine uses inside: every model's MTP is ``mtp``."""
    return "mtp" if method is not None and method.endswith("_mtp") else method
