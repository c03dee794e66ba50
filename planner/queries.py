"""A batch as dispatch is asked about it: read, checked, and put to a family's table.

The two runners ask differently: V2 by requests, tokens and uniform token count, V1 by tokens and
whether the batch is a uniform decode. A query speaks for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from attrs import Attribute, evolve, fields, frozen

from planner.describe import range_fault
from planner.descriptors import BatchDescriptor, BatchExecutionDescriptor
from planner.dispatch import DispatchTable
from planner.dispatch_v1 import V1DispatchTable
from planner.engines.lookup import LookupTable
from planner.errors import BatchError
from planner.modes import CUDAGraphMode

Table: TypeAlias = DispatchTable | V1DispatchTable

Answer: TypeAlias = BatchExecutionDescriptor | tuple[CUDAGraphMode, BatchDescriptor]
"""What dispatch returns: V2's descriptor, or V1's mode and key."""

LARGEST = 10**18 - 1
"""No count that a batch can have comes near it."""


@frozen(kw_only=True)
class Query:
    """One batch of one rank, before padding.

    ``uniform_token_count`` is the tokens of every request where all have the same number,
    ``max_query_len`` those of the longest where none is in prefill. ``uniform_decode`` says that
    every request has the family's decode query length. V1 needs no ``num_reqs``.
    """

    num_tokens: int
    num_reqs: int | None = None
    uniform_token_count: int | None = None
    max_query_len: int | None = None
    num_active_loras: int = 0
    num_ubatches: int = 1
    uniform_decode: bool = False


def query_of(values: Mapping[str, Any]) -> Query:
    """The query with these fields, whose types are those of JSON.

    Raises:
        BatchError: a field is unknown, missing, of another type or out of range.
    """
    known = {attribute.name: attribute for attribute in fields(Query)}
    for name, value in values.items():
        if name not in known:
            raise BatchError(f"unknown field {name!r}; the fields are {', '.join(known)}")
        _check_value(known[name], value)
    if "num_tokens" not in values:
        raise BatchError("field 'num_tokens' is missing; each batch gives its number of tokens")
    return Query(**values)


def _check_value(attribute: Attribute[Any], value: Any) -> None:
    name, default = attribute.name, attribute.default
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise BatchError(f"{name}: expected true or false, found {value!r}")
        return
    if value is None and default is None:
        return
    if type(value) is not int:
        raise BatchError(f"{name}: expected a whole number, found {_shown(value)}")
    least = 0 if default == 0 else 1
    if fault := range_fault(value, least, LARGEST):
        raise BatchError(f"{name}: {fault}")


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def settled(query: Query, table: Table) -> Query:
    """``query`` with what follows from it: a uniform decode has a uniform token count, and back.

    Raises:
        BatchError: no runner forms such a batch, or this one cannot tell it apart.
    """
    is_v1 = isinstance(table, V1DispatchTable)
    _refuse_foreign_fields(query, table)
    query = _with_uniformity(query, table.decode_query_len, is_v1=is_v1)
    reqs, tokens, count = query.num_reqs, query.num_tokens, query.uniform_token_count
    if reqs is None:
        return query
    if tokens < reqs:
        raise BatchError(f"{reqs} requests have at least {reqs} tokens, but num_tokens is {tokens}")
    if count is not None and reqs * count != tokens:
        raise BatchError(f"{reqs} requests of {count} are {reqs * count} tokens, but num_tokens is {tokens}")
    if query.max_query_len is not None and reqs * query.max_query_len < tokens:
        most = reqs * query.max_query_len
        raise BatchError(
            f"{reqs} requests of up to {query.max_query_len} are {most} tokens at most, "
            f"but num_tokens is {tokens}"
        )
    return query


def _refuse_foreign_fields(query: Query, table: Table) -> None:
    is_v1 = isinstance(table, V1DispatchTable)
    if not is_v1 and query.num_reqs is None:
        whose = str(table.runner) if isinstance(table, LookupTable) else "the v2 runner"
        raise BatchError(f"field 'num_reqs' is missing; {whose} dispatches by requests too")
    if isinstance(table, LookupTable) and query.num_ubatches != 1:
        raise BatchError(f"num_ubatches: {table.runner} does not dispatch by it; leave it out")
    if is_v1 and (query.max_query_len is not None or query.num_ubatches != 1):
        name = "num_ubatches" if query.max_query_len is None else "max_query_len"
        raise BatchError(f"{name}: the v1 runner does not dispatch by it; leave it out")


def _with_uniformity(query: Query, decode_query_len: int | None, *, is_v1: bool) -> Query:
    count = query.uniform_token_count
    if not query.uniform_decode:
        return evolve(query, uniform_decode=count is not None and count == decode_query_len)
    if decode_query_len is None:
        raise BatchError("uniform_decode: the plan does not tell the query length; give uniform_token_count")
    if count not in (None, decode_query_len):
        raise BatchError(
            f"uniform_decode means {decode_query_len} tokens a request, but uniform_token_count is {count}"
        )
    if is_v1 and query.num_reqs is None:
        return query
    return evolve(query, uniform_token_count=decode_query_len)


def ask(table: Table, query: Query) -> Answer:
    """What dispatch answers to a settled query, in the form of the table's runner.

    Raises:
        BatchError: the runner itself refuses the batch.
    """
    if isinstance(table, V1DispatchTable):
        return table.dispatch(query.num_tokens, query.uniform_decode, query.num_active_loras)
    return table.dispatch(
        num_reqs=query.num_reqs or 0,
        num_tokens=query.num_tokens,
        uniform_token_count=query.uniform_token_count,
        num_active_loras=query.num_active_loras,
        max_query_len=query.max_query_len,
        num_ubatches=query.num_ubatches,
    )
