"""Reading YAML that was written for other programs: several documents, tags, merge keys."""

from __future__ import annotations

import pytest

from planner.documents.reader import read_foreign_yaml
from planner.documents.scalars import to_json
from planner.errors import DocumentError


def data(text: str) -> list[object]:
    return [to_json(root) for root in read_foreign_yaml(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\n---\nb: 2\n", [{"a": 1}, {"b": 2}]),
        ("---\n---\n# nothing\n---\na: 1\n...\n", [{"a": 1}]),
        ("", []),
        ("x: &x {a: 1, b: 2}\ny: {<<: *x, a: 3}", [{"x": {"a": 1, "b": 2}, "y": {"a": 3, "b": 2}}]),
        (
            "x: &x {a: 1}\ny: &y {a: 2, b: 2}\nz: {<<: [*x, *y]}",
            [{"x": {"a": 1}, "y": {"a": 2, "b": 2}, "z": {"a": 1, "b": 2}}],
        ),
        ("a: !!python/object:os.system [x]\nb: !Ref z\nc: !!str 1", [{"a": ["x"], "b": "z", "c": 1}]),
        ("x: {<<: 3, a: 1}", [{"x": {"a": 1}}]),
    ],
)
def test_foreign_documents_are_read(text: str, expected: list[object]) -> None:
    assert data(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a 1\n---\nb: *a", "has no anchor before it"),
        ("a: 1\na: 2", "duplicate key a"),
        ("? [a]\n: 1", "a key must be a single word"),
        ("a: [1", "not valid YAML"),
    ],
)
def test_what_no_program_reads_is_refused(text: str, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        data(text)
