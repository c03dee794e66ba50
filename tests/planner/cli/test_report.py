"""``planner report``: a page in a file, and errors in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from attrs import evolve

from planner import dump_plan, load_plan
from tests.planner.cli.conftest import Run, one_line

HISTOGRAM = "num_reqs,num_tokens,count\n3,12,9\n"


def test_a_page_is_written(run: Run, plan: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = run("report", plan, "-o", page)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    assert "<h1>small</h1>" in page.read_text()


def test_a_page_replaces_an_earlier_one_but_nothing_else(run: Run, plan: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert run("report", plan, "-o", page).exit_code == 0
    assert run("report", plan, "-o", page).exit_code == 0
    page.write_text("my own page")
    result = run("report", plan, "-o", page)
    assert result.exit_code == 2
    assert "holds something else" in one_line(result.stderr)


def test_the_source_is_never_overwritten(run: Run, plan: Path) -> None:
    result = run("report", plan, "-o", plan)
    assert result.exit_code == 2
    assert "would overwrite a source" in one_line(result.stderr)


def test_a_deployment_is_compiled_first(run: Run, deployment: Path, plan: Path) -> None:
    from_deployment = run("report", "-", input=deployment.read_text()).stdout
    assert from_deployment == run("report", "-", input=plan.read_text()).stdout


def test_two_plans_are_compared(run: Run, plan: Path, by_hand: Path) -> None:
    page = run("report", plan, "--against", by_hand).stdout
    assert "What changed" in page
    assert str(by_hand) in page


def test_traffic_is_read_from_a_file(run: Run, plan: Path, tmp_path: Path) -> None:
    histogram = tmp_path / "histogram.csv"
    histogram.write_text(HISTOGRAM)
    assert "What the traffic costs" in run("report", plan, "--traffic", histogram).stdout


def test_the_traffic_that_a_plan_was_made_for_is_drawn(run: Run, tmp_path: Path) -> None:
    (tmp_path / "histogram.csv").write_text(HISTOGRAM)
    deployment = tmp_path / "traffic.yaml"
    deployment.write_text(
        "apiVersion: graphplan/v1\nkind: Deployment\nscheduler: {max_num_seqs: 8}\n"
        "capture: {policy: traffic, traffic: histogram.csv}\n"
    )
    plan = tmp_path / "plan.yaml"
    assert run("compile", deployment, "-o", plan, "-q").exit_code == 0
    for source in (deployment, plan):
        page = run("report", source).stdout
        assert "What the traffic costs" in page
        assert "by number of capture sizes" in page


def test_traffic_that_is_wider_than_the_server_is_a_finding(
    run: Run, plan: Path, by_hand: Path, tmp_path: Path
) -> None:
    histogram = tmp_path / "histogram.csv"
    histogram.write_text("num_reqs,num_tokens,count\n200,200,9\n3,3,1\n,900,2\n")
    page = run("report", plan, "--traffic", histogram).stdout
    assert "traffic-too-wide" in page
    assert "90.0% of the counted decode steps have more than 8 requests, the most that run at once" in page
    assert run("report", by_hand, "--traffic", histogram).exit_code == 0
    histogram.write_text("num_reqs,num_tokens,count\n3,3,1\n")
    assert "traffic-too-wide" not in run("report", plan, "--traffic", histogram).stdout


def test_an_edited_plan_has_the_warnings_of_check(run: Run, plan: Path) -> None:
    codes = ("<td>edited</td>", "<td>stale</td>")
    assert not any(code in run("report", plan).stdout for code in codes)
    loaded = load_plan(plan)
    plan.write_text(
        dump_plan(evolve(loaded, graphs={**loaded.graphs, "target": loaded.graphs["target"][1:]}))
    )
    page = run("report", plan).stdout
    assert all(code in page for code in codes)


def test_standard_input_is_read_once(run: Run) -> None:
    result = run("report", "-", "--against", "-")
    assert result.exit_code == 2
    assert "once only" in one_line(result.stderr)


def test_a_missing_extra_is_told(run: Run, plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    result = run("report", plan)
    assert result.exit_code == 3
    assert one_line(result.stderr) == (
        "planner: error: a report needs Jinja2, which is not installed: pip install 'graphplan[report]'"
    )
