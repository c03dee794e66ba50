"""Sizes as the V1 runner pads them: rounded to whole decode requests, and looked up in one table.

Source: vLLM 0.33, size adjustment for speculative decoding and the V1 dispatcher's padding
(rules 2.5, 2.7 and 4.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from planner.documents.plan import Decision
from planner.errors import PlanError
from planner.rules.sizes import MAX_FIELD, SIZES_FIELD, CaptureSizes

COMPILE_SIZES_FIELD = "compilation.compile_sizes"
DRAFT_TOKENS_FIELD = "speculative.num_speculative_tokens"
ALL_CAPTURE_SIZES = "cudagraph_capture_sizes"
"""The word that stands for every capture size in a list of compile sizes."""


def rounded_to_query_len(sizes: CaptureSizes, query_len: int) -> CaptureSizes:
    """``sizes`` as whole numbers of decode requests of ``query_len`` tokens.

    Each size is rounded up; what then exceeds the maximum is lost, and where nothing is left one
    request alone is captured. The decisions are those of this step, after the ones before it.

    Raises:
        PlanError: not even one request fits the maximum.
    """
    if not sizes.sizes or query_len <= 1:
        return sizes
    rounded = sorted({-(-size // query_len) * query_len for size in sizes.sizes})
    kept = tuple(size for size in rounded if size <= sizes.maximum)
    if not kept and query_len <= sizes.maximum:
        kept = (query_len,)
    if not kept:
        raise PlanError(
            f"a decode request has {query_len} tokens ({DRAFT_TOKENS_FIELD} and one) but the largest capture "
            f"size is {sizes.maximum}; raise it to {query_len} at least, or draft fewer tokens",
            fields=(MAX_FIELD, DRAFT_TOKENS_FIELD),
        )
    because = f"the v1 runner captures whole decode requests of {query_len} tokens"
    if rounded[-1] > sizes.maximum:
        because += f"; what rounds up to more than {sizes.maximum} is lost"
    decisions = (
        Decision(path=path, asked=asked, became=became, rule="sizes-rounded-to-query-length", because=because)
        for path, asked, became in (
            (SIZES_FIELD, list(sizes.sizes), list(kept)),
            (MAX_FIELD, sizes.maximum, kept[-1]),
        )
        if asked != became
    )
    return CaptureSizes(kept, kept[-1], (*sizes.decisions, *decisions))


def padding_table(sizes: Sequence[int]) -> tuple[int, ...]:
    """The size that runs each number of tokens, from 0 to the last of the ascending ``sizes``."""
    table = [0]
    for size in sizes:
        table.extend([size] * (size + 1 - len(table)))
    return tuple(table)


def expanded_compile_sizes(asked: Iterable[int | str] | None, sizes: Sequence[int]) -> tuple[int, ...]:
    """The sizes to compile for, with the word for all capture sizes replaced by them.

    Raises:
        PlanError: another word.
    """
    expanded: list[int] = []
    for entry in dict.fromkeys(asked or ()):
        if isinstance(entry, int):
            expanded.append(entry)
        elif entry == ALL_CAPTURE_SIZES:
            expanded.extend(sizes)
        else:
            raise PlanError(
                f"{entry!r} is no size; write integers, or {ALL_CAPTURE_SIZES} for all of them",
                fields=(COMPILE_SIZES_FIELD,),
            )
    return tuple(expanded)


def refuse_padded_compile_sizes(compile_sizes: Iterable[int], sizes: CaptureSizes) -> None:
    """Refuse sizes to compile for that no step would ever have, because it is padded to another.

    Raises:
        PlanError: a size up to the maximum is no capture size.
    """
    table = padding_table(sizes.sizes)
    for size in compile_sizes:
        if 0 <= size < len(table) and table[size] != size:
            raise PlanError(
                f"{size} would be padded to {table[size]} and never run as {size}; "
                f"make it a capture size, or drop it from the sizes to compile for",
                fields=(COMPILE_SIZES_FIELD, SIZES_FIELD),
            )
