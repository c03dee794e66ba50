"""``planner estimate``: what the graphs of a plan will take, by formula and by a cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attrs import evolve

from cache.captures import CaptureRecordV1, EntryCapture
from cache.fingerprint import NONE, EnvironmentFingerprint
from cache.keys import stable_digest
from cache.store import PlanCache
from executor.models.config import DecoderConfig
from executor.models.stand_in import full_digest, shapes_digest
from planner import Plan, compile_plan, dump_plan, load_deployment, load_plan
from tests.cache.samples import MODEL, capture
from tests.planner.cli.conftest import PLAN_BY_HAND, PROJECT, Run

COMPILED = PROJECT / "plans/compiled/qwen3-8b-dflash.yaml"
DEPLOYMENT = PROJECT / "plans/deployments/qwen3-8b-dflash.yaml"


def record_of(plan: Plan, family: str, seconds: float) -> CaptureRecordV1:
    rows = tuple(EntryCapture(entry=entry, num_bytes=1 << 22, num_graphs=1) for entry in plan.entries(family))
    model = evolve(MODEL, config=full_digest(plan) or NONE)
    return capture(plan=stable_digest(plan), family=family, entries=rows, seconds=seconds, model=model)


def fill(directory: Path, *records: CaptureRecordV1, plans: tuple[Plan, ...] = ()) -> Path:
    with PlanCache(directory) as cache:
        for plan in plans:
            cache.put_plan(plan)
        for record in records:
            cache.put_capture(record)
    return directory


def test_a_plan_is_estimated_with_ranges_and_sources(run: Run) -> None:
    result = run("estimate", COMPILED)
    assert result.exit_code == 0
    assert "qwen3-8b-dflash: 115 entries in 2 families" in result.stdout
    for words in ("graphs", "memory", "start-up", "share", "KV cache", "formula", "target PIECEWISE"):
        assert words in result.stdout


def test_json_has_what_the_plan_says(run: Run) -> None:
    result = run("estimate", COMPILED, "--format", "json")
    said = json.loads(result.stdout)
    estimates = load_plan(COMPILED).estimates
    assert estimates is not None
    assert said.pop("findings") == []
    assert said["memory_gib"]["expected"] == estimates.memory_gib.expected
    assert said["seconds"]["source"] == "formula"


def test_a_plan_by_hand_on_standard_input_is_estimated(run: Run) -> None:
    result = run("estimate", "-", input=PLAN_BY_HAND)
    assert result.exit_code == 0
    assert "standard input: 2 entries in 1 families" in result.stdout


def test_a_cache_replaces_the_formulas(run: Run, tmp_path: Path) -> None:
    plan = load_plan(COMPILED)
    records = [record_of(plan, family, seconds) for family, seconds in (("target", 6.0), ("draft", 1.5))]
    cache = fill(tmp_path / "cache", *records)
    said = json.loads(run("estimate", COMPILED, "--cache", cache, "--format", "json").stdout)
    assert said["seconds"]["source"] == "measured on NVIDIA H200 (torch 2.11.0+cu130)"
    assert said["seconds"]["expected"] == pytest.approx(7.5, abs=0.02)


def test_a_capture_of_another_plan_is_scaled_by_what_its_own_deployment_says(
    run: Run, tmp_path: Path
) -> None:
    plan = load_plan(COMPILED)
    scheduler = evolve(plan.deployment.scheduler, max_num_seqs=16)
    other = compile_plan(evolve(plan.deployment, scheduler=scheduler))
    cache = fill(tmp_path / "cache", record_of(other, "target", 3.0), plans=(other,))
    said = json.loads(run("estimate", COMPILED, "--cache", cache, "--format", "json").stdout)
    source = f"scaled from {len(other.entries())} entries for target; formula for draft"
    assert said["seconds"]["source"].endswith(source)


@pytest.mark.parametrize("more", [(), ("--stand-in",)])
@pytest.mark.parametrize("is_own", [True, False], ids=["of the plan", "to scale from"])
@pytest.mark.parametrize("foreign", ["cpu", "shrunk", "float32"])
def test_a_capture_on_a_cpu_or_of_another_model_never_stands_in_for_the_server(
    run: Run, tmp_path: Path, foreign: str, is_own: bool, more: tuple[str, ...]
) -> None:
    plan = load_plan(COMPILED)
    scheduler = evolve(plan.deployment.scheduler, max_num_seqs=16)
    captured = plan if is_own else compile_plan(evolve(plan.deployment, scheduler=scheduler))
    record = record_of(captured, "target", 0.01)
    config = plan.deployment.model.config
    assert config is not None
    if foreign == "cpu":
        record = evolve(record, environment=evolve(record.environment, gpu=NONE))
    elif foreign == "shrunk":
        shrunk = shapes_digest(DecoderConfig.of(config.facts).shrunk(), None, None)
        record = evolve(record, model=evolve(record.model, config=shrunk))
    else:
        record = evolve(record, model=evolve(record.model, dtype="float32"))
    cache = fill(tmp_path / "cache", record, plans=() if is_own else (captured,))
    result = run("estimate", COMPILED, "--cache", cache, "--format", "json", *more)
    assert json.loads(result.stdout)["seconds"]["source"] == "formula"
    reasons = {"cpu": "on a CPU", "shrunk": "of another model", "float32": "computes in float32"}
    assert result.stderr.startswith("planner: note: 1 capture in the cache left out: ")
    assert reasons[foreign] in result.stderr


def test_a_capture_tells_nothing_of_a_plan_that_names_no_model(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN_BY_HAND)
    plan = load_plan(path)
    record = evolve(record_of(load_plan(COMPILED), "target", 0.01), plan=stable_digest(plan))
    result = run("estimate", path, "--cache", fill(tmp_path / "cache", record), "--format", "json")
    assert json.loads(result.stdout)["seconds"]["source"] == "formula"
    assert "names no model" in result.stderr


def test_a_deployment_is_compiled_first(run: Run) -> None:
    said = [
        json.loads(run("estimate", source, "--format", "json").stdout) for source in (DEPLOYMENT, COMPILED)
    ]
    assert said[0] == said[1]


def test_an_edited_plan_is_told_on_standard_error(run: Run, tmp_path: Path) -> None:
    plan = load_plan(COMPILED)
    path = tmp_path / "plan.yaml"
    path.write_text(dump_plan(evolve(plan, graphs={"target": plan.graphs["target"][1:]})))
    result = run("estimate", path)
    assert result.exit_code == 0
    assert "edited: the plan was changed after it was compiled" in result.stderr
    assert "stale: the deployment inside compiles to other graphs" in result.stderr
    assert run("estimate", COMPILED).stderr == ""


def test_what_is_not_known_of_a_model_is_told_with_its_reason(run: Run) -> None:
    hybrid = PROJECT / "plans/deployments/nemotron-3-nano-30b-a3b.yaml"
    assert "weights and KV cache are not estimated: what layers of mamba" in run("estimate", hybrid).stdout
    deployment = "{apiVersion: graphplan/v1, kind: Deployment, device: {name: H200}}"
    assert "names no model.config" in " ".join(run("estimate", "-", input=deployment).stdout.split())


def test_entries_that_failed_are_not_taken_for_captured(run: Run, tmp_path: Path) -> None:
    plan = load_plan(COMPILED)
    record = record_of(plan, "target", 6.0)
    first, *rest = record.entries
    failed = evolve(record, entries=(evolve(first, error="out of memory"), *rest))
    cache = fill(tmp_path / "cache", failed)
    said = json.loads(run("estimate", COMPILED, "--cache", cache, "--format", "json").stdout)
    assert "scaled from" in said["seconds"]["source"]


def test_compile_with_a_cache_says_what_was_measured(run: Run, tmp_path: Path) -> None:
    plan = compile_plan(load_deployment(DEPLOYMENT))
    cache = fill(tmp_path / "cache", record_of(plan, "target", 6.0))
    for _ in range(2):  # compiled, then found
        result = run("compile", DEPLOYMENT, "--cache", cache)
        made = load_plan(result.stdout)
        assert made.digest == plan.digest
        assert made.estimates is not None
        assert made.estimates.seconds.source.startswith("measured on NVIDIA H200")
        assert "measured on NVIDIA H200" in " ".join(result.stderr.split())
    assert load_plan(dump_plan(made)) == made


def test_a_foreign_environment_is_said_so(run: Run, tmp_path: Path) -> None:
    plan = load_plan(COMPILED)
    record = evolve(record_of(plan, "target", 6.0), environment=EnvironmentFingerprint(gpu="A", torch="2"))
    said = run("estimate", COMPILED, "--cache", fill(tmp_path / "cache", record), "--format", "json").stdout
    assert json.loads(said)["seconds"]["source"].startswith("measured on A (torch 2) for target")


def test_a_cache_that_is_not_there_is_one_line(run: Run, tmp_path: Path) -> None:
    result = run("estimate", COMPILED, "--cache", tmp_path / "none")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1


def test_what_does_not_fit_is_a_finding_and_exit_code_1(run: Run, tmp_path: Path) -> None:
    plan = load_plan(COMPILED)
    small = evolve(
        plan, deployment=evolve(plan.deployment, device=evolve(plan.deployment.device, memory_gib=8))
    )
    path = tmp_path / "plan.yaml"
    path.write_text(dump_plan(small), encoding="utf-8")
    result = run("estimate", path)
    assert result.exit_code == 1
    assert "memory-does-not-fit" in result.stdout
    assert json.loads(run("estimate", path, "--format", "json").stdout)["findings"]


def test_a_stand_in_has_a_narrower_range(run: Run) -> None:
    server, stand_in = (
        json.loads(run("estimate", COMPILED, "--format", "json", *more).stdout)["seconds"]
        for more in ((), ("--stand-in",))
    )
    assert stand_in["high"] - stand_in["low"] < server["high"] - server["low"]
    assert stand_in["expected"] == server["expected"]


def test_diff_tells_what_estimates_become(run: Run, tmp_path: Path) -> None:
    plan = load_plan(COMPILED)
    scheduler = evolve(plan.deployment.scheduler, max_num_seqs=16)
    path = tmp_path / "plan.yaml"
    path.write_text(dump_plan(compile_plan(evolve(plan.deployment, scheduler=scheduler))), encoding="utf-8")
    result = run("diff", COMPILED, path, "--format", "json")
    changed = {change["path"] for change in json.loads(result.stdout)["estimates"]}
    assert changed == {"estimates.num_graphs", "estimates.memory_gib.expected", "estimates.seconds.expected"}
    assert "estimates.memory_gib.expected" in run("diff", COMPILED, path).stdout
