"""Trees of tensors as JSON: they come back as they were, and nothing else is taken for one."""

from __future__ import annotations

import json
from collections import namedtuple
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from executor.materialize.tree_data import decoded, encoded
from tests.executor.materialize.drawings import SOME

PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.just(torch.zeros(1))
)
TREES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(), inner, max_size=3),
    ),
    max_leaves=8,
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.sampled_from(["tensor", "tuple", "list", "map"]), st.text()), inner, max_size=2
        ),
    ),
    max_leaves=8,
)


@SOME
@given(TREES)
def test_trees_come_back_as_they_were(tree: Any) -> None:
    leaves: list[torch.Tensor] = []

    def put(tensor: torch.Tensor) -> int:
        leaves.append(tensor)
        return len(leaves) - 1

    data = json.loads(json.dumps(encoded(tree, put)))
    assert decoded(data, lambda number: leaves[number]) == tree


@SOME
@given(JSON)
def test_what_is_no_tree_is_told(data: Any) -> None:
    def leaf(number: Any) -> torch.Tensor:
        if number != 0:
            raise ValueError("no tensor")
        return torch.zeros(1)

    try:
        tree = decoded(data, leaf)
    except ValueError:
        return
    assert encoded(tree, lambda _: 0) == data


@pytest.mark.parametrize(
    ("tree", "kind"),
    [
        ({1, 2}, "set"),
        ([torch.float32], "dtype"),
        ({"x": object()}, "object"),
        (namedtuple("Pair", "a b")(1, 2), "Pair"),
        ({1: 2}, "dict"),
    ],
)
def test_what_json_cannot_keep_is_named(tree: Any, kind: str) -> None:
    with pytest.raises(TypeError, match=f"a {kind}"):
        encoded(tree, lambda _: 0)
