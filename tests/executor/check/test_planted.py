from __future__ import annotations

import inspect

import pytest
import torch

from executor.check import check_forward
from executor.check.report import Code
from tests.executor.check.planting import CLEAN, HOST, STATE, Build, marked, named


@pytest.mark.parametrize("build", [*HOST, *STATE], ids=named)
def test_each_planted_fault_is_found_at_its_line_and_nothing_else_is(build: Build) -> None:
    with torch.no_grad():
        report = check_forward(build("cpu"))
    found = {(each.code, each.line) for each in report.findings}
    certain, possible = marked(build), marked(build, "FAULT-ANY")
    assert found
    assert certain <= found <= certain | possible
    assert {each.file for each in report.findings} == {inspect.getsourcefile(build)}
    assert all(each.function == f"{build.__name__}.<locals>.forward" for each in report.findings)
    assert report.ok == all(each.severity != "error" for each in report.findings)


@pytest.mark.parametrize("build", CLEAN, ids=named)
def test_what_can_be_captured_gives_no_finding(build: Build) -> None:
    with torch.no_grad():
        assert check_forward(build("cpu")).findings == ()


def test_every_kind_of_fault_is_planted_or_tested_by_hand() -> None:
    planted = {code for build in (*HOST, *STATE) for code, _ in marked(build) | marked(build, "FAULT-ANY")}
    assert {code.code for code in Code} - planted == {"moved-output"}
