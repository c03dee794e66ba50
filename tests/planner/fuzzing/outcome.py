"""How a document must end: in a result that holds together, or in one clear error."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from planner import (
    BatchError,
    Deployment,
    DispatchTable,
    GraphplanError,
    Plan,
    V1DispatchTable,
    agree,
    compile_plan,
    dump_deployment,
    dump_plan,
    load_deployment,
    load_plan,
)
from planner.documents.digest import is_edited
from planner.documents.load import load_document
from planner.documents.writer import plan_to_json
from planner.verify import verify

COMPILED = "compiled"
PLAN = "plan"
MAX_MESSAGE = 2_000
MAX_JSON = 2**20
"""JSON is read back up to this size only: more takes seconds and shows nothing that YAML does not."""


class FaultError(Exception):
    """A document ended in something that it must not end in."""


def outcome_of(source: bytes, rng: Random) -> str:
    """``compiled`` or ``plan`` for a document that is in order, else the class of the one error.

    Raises:
        FaultError: a result does not hold together, or an error is no clear line.
    """
    try:
        document = load_document(source)
        plan = document if isinstance(document, Plan) else compile_plan(document)
        text = dump_plan(plan)
        tables = {family: plan.dispatch_table(family) for family in plan.graphs}
    except GraphplanError as error:
        _require_clear(error)
        return type(error).__name__
    again = load_plan(text)
    _require_readable(plan, text, again)
    if isinstance(document, Deployment):
        _require_stable(document, plan, again)
    for table in tables.values():
        _require_dispatch(table, rng)
    return PLAN if isinstance(document, Plan) else COMPILED


def _require(holds: bool, fault: str) -> None:
    if not holds:
        raise FaultError(fault)


def _require_clear(error: GraphplanError) -> None:
    text = str(error)
    _require(bool(text.strip()), f"{type(error).__name__} without a message")
    _require(text.isprintable(), f"the message is not one printable line: {text[:300]!r}")
    _require(len(text) < MAX_MESSAGE, f"a message of {len(text)} characters: {text[:300]}")


def _require_stable(deployment: Deployment, plan: Plan, again: Plan) -> None:
    """Written and read again, a deployment is the same and compiles to the same plan."""
    reloaded = load_deployment(dump_deployment(deployment))
    _require(reloaded == deployment, "the deployment reads back different")
    digest = compile_plan(again.deployment).digest
    _require(digest == plan.digest, "compiling the plan's own deployment gives another digest")
    _require(not is_edited(again), "the plan's digest no longer fits once it was read back")


def _require_readable(plan: Plan, text: str, again: Plan) -> None:
    """``again``, read from ``text``, is the plan that was written."""
    _require(again == plan, "the plan reads back different")
    _require(dump_plan(again) == text, "the plan is written differently the second time")
    _require(verify(again) == verify(plan), "the findings differ once the plan was read back")
    json = plan_to_json(plan)
    _require(len(json) > MAX_JSON or load_plan(json) == plan, "the plan's JSON reads back different")


def _require_dispatch(table: DispatchTable | V1DispatchTable, rng: Random) -> None:
    for batch in _batches(table, rng):
        try:
            _dispatch(table, batch)
            agree(table, [batch, batch | {"num_tokens": batch["num_tokens"] + 1}])
        except BatchError as error:
            _require_clear(error)


def _batches(table: DispatchTable | V1DispatchTable, rng: Random) -> Iterator[dict[str, Any]]:
    """A few batches: of entries of the family, just beyond them, and of no tokens."""
    entries = table.entries
    chosen = [rng.choice(entries) for _ in range(4)] if entries else []
    for entry in chosen:
        tokens = max(entry.num_tokens + rng.choice((0, 0, -1, 1)), 1)
        uniform = entry.uniform_token_count
        yield {
            "num_tokens": tokens,
            "num_reqs": min(entry.num_reqs or 1, tokens),
            "uniform_token_count": uniform,
            "uniform_decode": uniform is not None,
            "num_active_loras": max(entry.num_active_loras + rng.choice((0, 0, -1, 1)), 0),
            "max_query_len": entry.max_query_len,
            "allow_ubatching": rng.random() < 0.5,
        }
    yield {"num_tokens": 0, "num_reqs": 0}
    yield {"num_tokens": 2**21, "num_reqs": 1, "num_active_loras": 3}


def _dispatch(table: DispatchTable | V1DispatchTable, batch: dict[str, Any]) -> None:
    if isinstance(table, V1DispatchTable):
        mode, key = table.dispatch(
            batch["num_tokens"], batch.get("uniform_decode", False), batch.get("num_active_loras", 0)
        )
        _require(not mode or key.num_tokens >= batch["num_tokens"], f"{key} is too small for {batch}")
        return
    taken = ("num_reqs", "num_tokens", "uniform_token_count", "num_active_loras", "max_query_len")
    found = table.dispatch(**{name: batch[name] for name in taken if name in batch})
    _require(found.num_tokens >= batch["num_tokens"], f"{found} is too small for {batch}")
