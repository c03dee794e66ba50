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


DRAFTLESS_METHODS = frozenset({"ngram", "ngram_gpu", "suffix", "extract_hidden_states"})
"""Speculative methods without a draft model."""

KNOWN_METHODS = V1_DRAFT_METHODS | DFLASH_METHODS | DRAFTLESS_METHODS
"""Speculative methods whose graphs are known; a model's own name of ``mtp`` ends in ``_mtp``."""


def similar_method(method: str) -> str | None:
    """The known method that is spelled most like ``method``, where one is close to it."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(method[:100].casefold(), sorted(KNOWN_METHODS), 1)), None)


def method_kind(method: str | None) -> str | None:
    """``method`` under the name that the engine uses inside: every model's MTP is ``mtp``."""
    return "mtp" if method is not None and method.endswith("_mtp") else method
