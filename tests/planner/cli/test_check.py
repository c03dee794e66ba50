"""``planner check``: findings of both kinds of document, and what a changed plan says."""

from __future__ import annotations

import json
from pathlib import Path

from tests.planner.cli.conftest import DEPLOYMENT, Run, one_line


def codes(run: Run, path: Path) -> dict[str, str]:
    """Severity of each finding by its code."""
    (report,) = json.loads(run("check", path, "--format", "json").stdout)
    return {finding["code"]: finding["severity"] for finding in report["findings"]}


def test_a_good_deployment_and_its_plan_pass(run: Run, deployment: Path, plan: Path, by_hand: Path) -> None:
    result = run("check", deployment, plan, by_hand)
    assert result.exit_code == 0
    assert result.stderr == ""
    kinds = [line.split()[:2] for line in result.stdout.splitlines()[:3]]
    assert kinds == [[str(deployment), "Deployment"], [str(plan), "Plan"], [str(by_hand), "Plan"]]
    assert codes(run, plan) == codes(run, deployment)


def test_an_edited_plan_is_reported_and_read_all_the_same(run: Run, plan: Path) -> None:
    plan.write_text(plan.read_text().replace("num_tokens: 64}", "num_tokens: 63}"))
    result = run("check", plan)
    assert result.exit_code == 0
    assert run("check", plan, "--strict").exit_code == 1
    assert codes(run, plan)["edited"] == "warning"
    assert "fix: planner compile PLAN -o PLAN" in result.stdout


def test_an_edited_name_is_no_edit(run: Run, plan: Path) -> None:
    before = codes(run, plan)
    plan.write_text(plan.read_text().replace("name: small", "name: large"))
    assert codes(run, plan) == before


def test_a_plan_whose_deployment_compiles_to_other_graphs_is_stale(run: Run, plan: Path) -> None:
    plan.write_text(plan.read_text().replace("max_num_seqs: 8", "max_num_seqs: 4"))
    result = run("check", plan, "--strict")
    assert result.exit_code == 1
    assert codes(run, plan).items() >= {"edited": "warning", "stale": "warning"}.items()
    assert "target +0 -" in result.stdout


def test_a_plan_without_a_digest_is_by_hand_and_never_stale(run: Run, plan: Path) -> None:
    lines = plan.read_text().replace("num_tokens: 64}", "num_tokens: 63}").splitlines(keepends=True)
    plan.write_text("".join(line for line in lines if not line.startswith("digest: ")))
    assert {"edited", "stale"}.isdisjoint(codes(run, plan))


def test_a_plan_whose_deployment_is_refused_is_an_error(run: Run, plan: Path) -> None:
    plan.write_text(
        plan.read_text().replace("    cudagraph_mode: FULL\n", "    cudagraph_capture_sizes: []\n", 1)
    )
    assert run("check", plan).exit_code == 1
    assert codes(run, plan)["deployment-refused"] == "error"


def test_an_impossible_plan_fails(run: Run, by_hand: Path) -> None:
    by_hand.write_text(by_hand.read_text().replace("num_tokens: 4", "num_tokens: 3"))
    result = run("check", by_hand)
    assert result.exit_code == 1
    assert "error" in codes(run, by_hand).values()


def test_errors_stand_before_warnings_and_notes(run: Run, plan: Path) -> None:
    text = plan.read_text().replace("num_tokens: 32, num_reqs: 8", "num_tokens: 33, num_reqs: 8")
    plan.write_text(text)
    assert list(codes(run, plan).values()) == sorted(
        codes(run, plan).values(), key=["error", "warning", "info"].index
    )
    assert "error" in codes(run, plan).values()


def test_every_file_is_looked_at_and_the_worst_decides(run: Run, deployment: Path, by_hand: Path) -> None:
    by_hand.write_text(by_hand.read_text().replace("num_tokens: 4", "num_tokens: 3"))
    result = run("check", "no-such-file", by_hand, deployment)
    assert result.exit_code == 2
    assert one_line(result.stderr) == "planner: error: no-such-file: no such file"
    assert [line.split()[1] for line in result.stdout.splitlines()[:3]] == ["-", "Plan", "Deployment"]


def test_a_refused_deployment_names_its_file(run: Run, deployment: Path) -> None:
    deployment.write_text(DEPLOYMENT.replace("cudagraph_mode: FULL", "cudagraph_capture_sizes: []"))
    result = run("check", deployment)
    assert result.exit_code == 2
    assert one_line(result.stderr).startswith(
        f"planner: error: {deployment}: compilation.cudagraph_capture_sizes, compilation.cudagraph_mode: "
    )
    assert result.stdout.split()[-1] == "refused"


def test_json_holds_what_the_text_says(run: Run, deployment: Path) -> None:
    result = run("check", deployment, "no-such-file", "--format", "json")
    assert result.exit_code == 2
    first, second = json.loads(result.stdout)
    assert (first["file"], first["kind"], first["error"]) == (str(deployment), "Deployment", None)
    assert (second["kind"], second["error"], second["findings"]) == (None, "no-such-file: no such file", [])


def test_standard_input_is_checked(run: Run) -> None:
    result = run("check", "-", input=DEPLOYMENT)
    assert result.exit_code == 0
    assert result.stdout.startswith("standard input  Deployment")
