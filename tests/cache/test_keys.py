"""Keys: content decides, and nothing that differs from start to start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given

import planner
from cache.errors import CacheError
from cache.keys import (
    as_digest,
    capture_key,
    code_digest,
    deployment_digest,
    is_place,
    plan_key,
    rules_version,
    stable_digest,
    traffic_key,
)
from planner import Plan, compile_plan, load_deployment
from planner.documents.digest import plan_digest
from planner.testing import plans
from tests.cache import samples


def compiled(**sections: Any) -> Plan:
    return compile_plan(load_deployment({"apiVersion": "graphplan/v1", "kind": "Deployment", **sections}))


MODEL = {"attention_support": "ALWAYS"}


def test_a_plan_is_found_by_deployment_and_rules() -> None:
    deployment = samples.deployment()
    key = plan_key(deployment)
    assert key == plan_key(evolve(deployment, name="another name"))
    assert key != plan_key(samples.deployment(16))
    assert key != plan_key(deployment, rules="0" * 64)
    assert key == plan_key(deployment, rules=rules_version())


PARTS = {"plan": "p", "environment": "e", "model": "m", "family": "target", "rank": 0}


@pytest.mark.parametrize("changed", [*({name: "other"} for name in PARTS if name != "rank"), {"rank": 1}])
def test_each_part_of_a_captures_key_counts(changed: dict[str, Any]) -> None:
    assert capture_key(**{**PARTS, **changed}) != capture_key(**PARTS)


def test_keys_of_different_kinds_do_not_meet() -> None:
    assert traffic_key("p", "target").digest != traffic_key("p", "draft").digest
    assert str(traffic_key("p", "target")).startswith("traffic/")


@pytest.mark.parametrize(
    "volatile",
    [
        {"parallel": {"master_addr": "10.0.0.1", "master_port": 29501, "node_rank": 1}},
        {"parallel": {"data_parallel_master_ip": "10.0.0.1", "data_parallel_rpc_port": 5000}},
        {"parallel": {"data_parallel_rank": 1, "distributed_timeout_seconds": 5}},
        {"compilation": {"cache_dir": "/var/a", "debug_dump_path": "/var/b"}},
        {"engine": {"env": {"VLLM_NIXL_SIDE_CHANNEL_PORT": "5601", "VLLM_HOST_IP": "10.0.0.1"}}},
        {"kv_transfer": {"engine_id": "f00", "kv_port": 14579}},
        {"kv_transfer": {"kv_connector_extra_config": {"proxy_ip": "10.0.0.1", "lookup": {"rpc_port": 3}}}},
        {"name": "another name"},
    ],
    ids=str,
)
def test_what_differs_from_start_to_start_does_not_count(volatile: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"model": MODEL}
    changed = compiled(**plain, **volatile)
    emptied = {
        name: {} if name in ("parallel", "compilation", "engine", "kv_transfer") else None
        for name in volatile
    }
    assert stable_digest(changed) == stable_digest(compiled(**plain, **emptied))


def test_where_a_draft_lies_does_not_count_and_which_it_is_does() -> None:
    def with_draft(model: str) -> Plan:
        return compiled(
            model=MODEL,
            speculative={
                "method": "dflash",
                "num_speculative_tokens": 3,
                "attention_support": "ALWAYS",
                "model": model,
            },
        )

    assert stable_digest(with_draft("/models/a")) == stable_digest(with_draft("/mnt/other/a"))
    assert stable_digest(with_draft("org/a")) != stable_digest(with_draft("org/b"))
    assert [is_place(name) for name in ("org/a", "a", "./a", "~/a", "a/b/c")] == [
        False,
        False,
        True,
        True,
        True,
    ]


@pytest.mark.parametrize(
    "counted",
    [
        {"parallel": {"disable_custom_all_reduce": True}},
        {"compilation": {"pass_config": {"fuse_act_quant": True}}},
        {"compilation": {"custom_ops": ["none"]}},
        {"scheduler": {"max_num_seqs": 7}},
        {"engine": {"env": {"VLLM_BATCH_INVARIANT": "1"}}},
    ],
    ids=str,
)
def test_what_decides_a_capture_counts(counted: dict[str, Any]) -> None:
    assert stable_digest(compiled(model=MODEL, **counted)) != stable_digest(compiled(model=MODEL))


@given(plans())
def test_without_such_settings_it_is_the_plans_own_digest(plan: Plan) -> None:
    assert deployment_digest(plan.deployment) == deployment_digest(evolve(plan.deployment, name="x"))
    if plan.deployment.speculative is None and not list(plan.deployment.ignored_paths()):
        assert stable_digest(plan) == plan_digest(plan.deployment, plan.resolved, plan.graphs)


def test_the_version_of_the_rules_is_that_of_their_source(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    source = tmp_path / "rules" / "sizes.py"
    source.write_text("LARGEST = 512\n")
    before = code_digest(tmp_path)
    assert code_digest(tmp_path) == before
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "main.py").write_text("print()\n")
    assert code_digest(tmp_path, leave_out=frozenset({"cli"})) == before
    assert code_digest(tmp_path) != before
    source.write_text("LARGEST = 1024\n")
    assert code_digest(tmp_path, leave_out=frozenset({"cli"})) != before
    source.rename(tmp_path / "rules" / "other.py")
    assert code_digest(source.with_name("other.py")) != before


def test_all_rules_are_in_their_version() -> None:
    folder = Path(planner.__file__).parent
    assert (folder / "rules" / "sizes.py").is_file()
    assert rules_version.__wrapped__() == code_digest(
        folder, leave_out=frozenset({"cli", "importers", "testing.py", "shipped_models"})
    )


def test_code_that_is_not_there_is_an_ordinary_error(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="not installed"):
        code_digest(tmp_path)
    with pytest.raises(CacheError, match="cannot be read"):
        code_digest(tmp_path / "gone.py")


@pytest.mark.parametrize("text", ["", "xyz", "sha256:", "ABC", "0" * 65, "é"])
def test_what_is_no_beginning_of_a_digest_is_told(text: str) -> None:
    with pytest.raises(CacheError, match="hexadecimal digits"):
        as_digest(text)
    assert as_digest("sha256:0af") == as_digest("0af") == "0af"
