"""What a user sees of an error: one printable line of bounded length, whatever stood in the document."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import (
    BatchError,
    DocumentError,
    FamilyError,
    GraphplanError,
    PlanError,
    compile_plan,
    load_deployment,
)
from planner.errors import HEAD_LENGTH, TAIL_LENGTH, clear_line

DEPLOYMENT = {"apiVersion": "graphplan/v1", "kind": "Deployment"}


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_printable_text_of_ordinary_length_stays_as_it_is(text: str) -> None:
    assert clear_line(text) == text or not text.isprintable()
    assert clear_line(text).isprintable()


def test_line_breaks_and_terminal_codes_are_shown_as_escapes() -> None:
    assert clear_line("a\nb\x1b[31m\u2028ü") == "a\\nb\\x1b[31m\\u2028ü"


@pytest.mark.parametrize("error", [GraphplanError, BatchError, FamilyError, DocumentError])
def test_every_kind_of_error_is_one_line(error: type[GraphplanError]) -> None:
    assert str(error("first\nsecond")) == "first\\nsecond"


def test_a_long_message_keeps_its_beginning_and_its_end() -> None:
    text = str(PlanError("x" * 10_000 + "; write less", fields=("a.b",)))
    assert text.startswith("a.b: xxx")
    assert text.endswith("; write less")
    assert len(text) < HEAD_LENGTH + TAIL_LENGTH + 10


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"config": {"num_hidden_layers": 1, "num_attention_heads": 1, "torch_dtype": "x" * 5_000}}},
        {"engine": {"name": "\x1b[31mvllm\n" * 500}},
    ],
)
def test_a_strangers_value_does_not_bury_the_message(sections: dict[str, object]) -> None:
    with pytest.raises(PlanError) as refusal:
        compile_plan(load_deployment({**DEPLOYMENT, **sections}))
    assert len(str(refusal.value)) < 2_000
    assert str(refusal.value).isprintable()
