from __future__ import annotations

import pytest

from planner.cli.annotations import annotation, line_of
from planner.documents.plan import Finding, Severity


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"file": "a.yaml", "line": 3}, "::error file=a.yaml,line=3::m\n"),
        ({"file": "a,b:c%.yaml", "title": "x"}, "::error file=a%2Cb%3Ac%25.yaml,title=x::m\n"),
        ({"file": None}, "::error::m\n"),
    ],
)
def test_places_are_properties(options: dict[str, str], expected: str) -> None:
    assert annotation(Severity.ERROR, "m", **options) == expected  # type: ignore[arg-type]


def test_messages_stay_on_their_line() -> None:
    assert annotation(Severity.INFO, "a\nb: 100%, c\r", file=None) == "::notice::a%0Ab: 100%25, c%0D\n"


@pytest.mark.parametrize(
    ("fix", "message", "line"),
    [
        ("max_num_seqs: 4", "max_loras is odd", 1),
        (None, "lora.max_loras is odd", 2),
        ("max_num_seqs_more: 4", "nothing", None),
    ],
)
def test_a_finding_stands_at_the_setting_of_its_fix(fix: str | None, message: str, line: int | None) -> None:
    finding = Finding(severity=Severity.INFO, code="c", message=message, fix=fix)
    assert line_of(finding, {"scheduler.max_num_seqs": 1, "lora.max_loras": 2}) == line
