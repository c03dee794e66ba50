"""What a data-parallel rank brings to a step, and what it then runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from attrs import fields_dict, frozen

from planner.descriptors import BatchExecutionDescriptor
from planner.errors import BatchError


@frozen(kw_only=True)
class Batch:
    """What one rank brings to a step. Tokens and requests are its own, before padding.

    ``uniform_token_count``, ``max_query_len`` and ``num_active_loras`` are those of ``dispatch``.
    ``need_eager`` forbids graphs, ``allow_ubatching`` allows microbatches, ``uniform_decode`` says
    that every request has the decode query length, ``allow_skip_drafts`` that drafting may be left
    out of this step.
    """

    num_reqs: int
    num_tokens: int
    uniform_token_count: int | None = None
    max_query_len: int | None = None
    num_active_loras: int = 0
    need_eager: bool = False
    allow_ubatching: bool = False
    uniform_decode: bool = False
    allow_skip_drafts: bool = False


_COUNTS = ("num_reqs", "num_tokens", "uniform_token_count", "max_query_len", "num_active_loras")


@frozen
class Agreement:
    """What one rank runs. All fields but ``descriptor`` are the same on every rank.

    ``num_tokens_across_dp`` are the tokens that each rank runs, ``num_reqs`` the largest number
    of requests of any rank. With no work on any rank, and where there is only one rank, all fields
    after ``descriptor`` are ``None``. The ranks of the V1 runner agree on tokens and mode alone;
    the other fields stay ``None``.
    """

    descriptor: BatchExecutionDescriptor
    num_tokens_across_dp: tuple[int, ...] | None = None
    uniform_token_count: int | None = None
    eager: bool | None = None
    num_reqs: int | None = None
    skip_drafts: bool | None = None


def as_batch(source: Mapping[str, Any] | object) -> Batch:
    """A batch from a mapping or from any object with the attributes of ``Batch``.

    Raises:
        BatchError: a field is missing, unknown or of another type, or no batch is so.
    """
    batch = source if isinstance(source, Batch) else _from_fields(source)
    for name in _COUNTS:
        value = getattr(batch, name)
        if value is None or type(value) is int:
            continue  # Every step comes here, and the abstract class answers slowly.
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise BatchError(f"batch: {name}: expected a whole number, found {value!r}")
    reqs, tokens, count = batch.num_reqs, batch.num_tokens, batch.uniform_token_count
    if reqs < 0 or tokens < reqs:
        raise BatchError(
            f"batch: {reqs} requests cannot share {tokens} tokens; each request has at least one token"
        )
    if count is not None and reqs * count != tokens:
        raise BatchError(f"batch: {reqs} requests of {count} are {reqs * count} tokens, not {tokens}")
    longest = batch.max_query_len
    if longest is not None and reqs * longest < tokens:
        most = reqs * longest
        raise BatchError(f"batch: {reqs} requests of up to {longest} are {most} tokens at most, not {tokens}")
    return batch


def refuse_foreign_columns(columns: Sequence[Sequence[int]], rank: int, num_rows: int) -> None:
    """Refuse columns that ranks of one runner cannot have exchanged.

    Raises:
        BatchError: a column has another number of rows, or ``rank`` has none.
    """
    for index, values in enumerate(columns):
        if len(values) != num_rows:
            raise BatchError(f"column of rank {index}: {len(values)} rows; a column has {num_rows}")
    if not 0 <= rank < len(columns):
        raise BatchError(f"rank {rank}: there are {len(columns)} columns, for ranks from 0 on")


def _from_fields(source: Mapping[str, Any] | object) -> Batch:
    known = fields_dict(Batch)
    if isinstance(source, Mapping):
        given = dict(source)
    else:
        given = {name: getattr(source, name) for name in known if hasattr(source, name)}
    unknown = [key for key in given if key not in known]
    missing = [key for key in ("num_reqs", "num_tokens") if key not in given]
    if unknown or missing:
        fault = f"unknown field {unknown[0]!r}" if unknown else f"field {missing[0]!r} is missing"
        raise BatchError(f"batch: {fault}; the fields are {', '.join(known)}")
    return Batch(**given)
