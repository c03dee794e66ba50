"""``planner diff``: an exit code for scripts, lines for people, JSON for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.planner.cli.conftest import DEPLOYMENT, Run


@pytest.fixture
def smaller(run: Run, tmp_path: Path) -> Path:
    """The plan of the same deployment with half the requests."""
    deployment = tmp_path / "smaller-deployment.yaml"
    deployment.write_text(DEPLOYMENT.replace("max_num_seqs: 8", "max_num_seqs: 4"))
    path = tmp_path / "smaller.yaml"
    assert run("compile", deployment, "-o", path, "-q").exit_code == 0
    return path


def test_a_plan_does_not_differ_from_itself(run: Run, plan: Path) -> None:
    result = run("diff", plan, plan)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "the plans do not differ\n", "")


def test_a_person_reads_what_changed(run: Run, plan: Path, smaller: Path) -> None:
    result = run("diff", plan, smaller)
    assert result.exit_code == 1
    assert result.stdout.startswith(
        "settings\n"
        "  scheduler.max_num_seqs  8 -> 4\n"
        "\n"
        "graphs of target\n"
        "  -  2 graphs  FULL, requests of 4  24, 32 tokens\n"
        "  -  4 graphs  PIECEWISE            40..64/8 tokens\n"
        "\n"
        "graphs of draft\n"
        "  -  2 graphs  FULL, requests of 4, dflash_context_kv  24, 32 tokens\n"
        "\n"
        "resolved values\n"
    )


def test_a_program_reads_every_graph(run: Run, plan: Path, smaller: Path) -> None:
    result = run("diff", smaller, plan, "--format", "json")
    assert result.exit_code == 1
    changes = json.loads(result.stdout)
    assert not changes["same"]
    assert {"path": "scheduler.max_num_seqs", "before": 4, "after": 8} in changes["settings"]
    assert changes["families"]["target"]["lost"] == []
    assert {"mode": "PIECEWISE", "num_tokens": 64} in changes["families"]["target"]["gained"]
    assert changes["families"]["draft"]["gained"][0]["prologue"]["kind"] == "dflash_context_kv"


def test_another_order_is_told(run: Run, by_hand: Path, tmp_path: Path) -> None:
    lines = by_hand.read_text().splitlines(keepends=True)
    turned = tmp_path / "turned.yaml"
    turned.write_text("".join([*lines[:-2], lines[-1], lines[-2]]))
    result = run("diff", by_hand, turned)
    assert result.exit_code == 1
    assert result.stdout == "graphs of target\n  ~  captured in another order\n"


def test_a_new_family_is_told(run: Run, by_hand: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.yaml"
    more.write_text(by_hand.read_text() + "  draft: []\n")
    assert run("diff", by_hand, more).stdout == "graphs of draft, a new family\n"
    assert run("diff", more, by_hand).stdout == "graphs of draft, a family that is gone\n"


def test_one_plan_is_read_from_standard_input(run: Run, plan: Path) -> None:
    assert run("diff", plan, "-", input=plan.read_text()).exit_code == 0
