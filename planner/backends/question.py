"""What one attention layer asks of a backend."""

from __future__ import annotations

from attrs import frozen

from planner.models.facts import MlaDims
from planner.models.layers import LayerKind

QUANTISED_KV_PREFIXES = ("fp8", "nvfp4", "int4", "int8", "turboquant", "ultraquant")


@frozen(kw_only=True)
class Question:
    """The requirements of one attention layer; equal questions get equal answers.

    ``kind`` decides which of the user's per-kind backends counts. ``kv_cache_dtype`` is the
    setting's own word, ``auto`` where the cache has the model's type; ``block_size`` is the
    user's, ``None`` without one. ``num_heads`` counts query heads of one rank.
    """

    kind: LayerKind
    head_size: int
    v_head_size: int
    num_heads: int
    dtype: str
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    mla: MlaDims | None = None
    sparse: bool = False
    sinks: bool = False
    softcap: bool = False
    sliding_window: bool = False
    mm_prefix: bool = False
    non_causal: bool = False

    @property
    def quantised_kv(self) -> bool:
        """Whether the cache holds fewer bits than the model's own type."""
        return is_quantised(self.kv_cache_dtype)


def is_quantised(kv_cache_dtype: str) -> bool:
    """Whether a cache type holds fewer bits than any model's own type."""
    return kv_cache_dtype.startswith(QUANTISED_KV_PREFIXES)
