"""Calling the Python interface with the wrong kind of thing is told in one line, with what to call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner import (
    ArgumentError,
    Deployment,
    GraphplanError,
    Plan,
    agree,
    column,
    compile_plan,
    decide,
    dump_deployment,
    dump_plan,
    load_deployment,
    load_plan,
)
from planner.documents.load import load_document
from planner.testing import batches

PLAN = Plan(graphs={"target": ()})
TABLE = PLAN.dispatch_table()
BATCH = {"num_reqs": 1, "num_tokens": 1}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compile_plan("my.yaml"), "found a value of type str; load_deployment makes one"),
        (lambda: compile_plan(Path("my.yaml")), "load_deployment makes one"),
        (lambda: compile_plan({"name": "x"}), "found a value of type dict; load_deployment makes one"),
        (lambda: compile_plan(PLAN), "compile_plan takes a Deployment, found a value of type Plan; compile"),
        (lambda: compile_plan(None), "compile_plan takes a Deployment, found a value of type NoneType"),
        (lambda: dump_plan(Deployment()), "found a value of type Deployment; dump_deployment writes that"),
        (lambda: dump_plan("x.yaml"), "load_plan makes one"),
        (lambda: dump_deployment(PLAN), "found a value of type Plan; dump_plan writes that"),
        (lambda: load_plan(Deployment()), "this is a Deployment already: compile_plan makes a plan of it"),
        (lambda: load_plan(PLAN), "this is a Plan already: use it as it is"),
        (lambda: load_deployment(PLAN), "this is a Plan already: its Deployment is plan.deployment"),
        (lambda: load_document(PLAN), "use it as it is"),
        (lambda: agree(PLAN, [BATCH]), "type Plan; plan.dispatch_table(family) makes one"),
        (lambda: column(PLAN, BATCH), "column takes a dispatch table"),
        (lambda: decide(PLAN, [], 0, BATCH), "decide takes a dispatch table"),
        (lambda: batches(None, "target"), "batches takes a Plan, found a value of type NoneType"),
        (
            lambda: agree(TABLE, BATCH),
            "agree takes a list of batches, one a rank, found a value of type dict",
        ),
    ],
)
def test_an_argument_of_another_type_is_named_with_what_to_call(
    call: Callable[[], Any], message: str
) -> None:
    with pytest.raises(ArgumentError) as caught:
        call()
    assert message in str(caught.value)
    assert isinstance(caught.value, GraphplanError)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"num_reqs": "1", "num_tokens": 1}, "num_reqs: expected a whole number, found '1'"),
        ({"num_reqs": True, "num_tokens": 1}, "num_reqs: expected a whole number, found True"),
        ({"num_reqs": 2, "num_tokens": 1}, "2 requests cannot share 1 tokens"),
        ({"num_reqs": 2, "num_tokens": 5, "uniform_token_count": 2}, "2 requests of 2 are 4 tokens, not 5"),
        ({"num_reqs": 2, "num_tokens": 5, "max_query_len": 2}, "are 4 tokens at most, not 5"),
    ],
)
def test_agree_checks_batches_that_dispatch_takes_as_they_are(batch: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphplanError) as caught:
        agree(TABLE, [batch])
    assert message in str(caught.value)
