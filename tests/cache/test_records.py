"""Records: what was put comes back equal, and nothing else passes for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.captures import CaptureRecordV1
from cache.errors import CacheError, Fault
from cache.keys import plan_key
from cache.kinds import record_under
from cache.records import ArtifactRecord, PlanRecord, TrafficRecord
from cache.tables import Kind, decoded, encoded
from planner import Deployment, PlanError, compile_plan
from planner.documents.plan import Plan
from planner.testing import deployments
from tests.cache import samples

ARTIFACT = ArtifactRecord(capture="a" * 64, name="compiled", sha256="b" * 64, num_bytes=7)
TRAFFIC = TrafficRecord(plan=samples.digest(0), family="target").plus({samples.FULL: 3}, 2, 9.0)
RECORDS = [PlanRecord.of(samples.plan(), created=1.0), samples.capture(), TRAFFIC, ARTIFACT]


def stored(data: Any) -> Any:
    """``data`` as a table gives it back."""
    return decoded(encoded(data))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_under_its_key(record: Any) -> None:
    assert record_under(record.key, stored(record.as_json())) == record


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
@pytest.mark.parametrize("data", [None, 7, "x", [], {}, {"document": {}}, {"plan": 3}])
def test_other_data_is_no_record(record: Any, data: Any) -> None:
    with pytest.raises(CacheError) as caught:
        record_under(record.key, data)
    assert caught.value.fault is Fault.ALTERED


def compiled(deployment: Deployment) -> Plan | None:
    try:
        return compile_plan(deployment)
    except PlanError:
        return None


@settings(max_examples=60)
@given(deployments(), st.text(max_size=5))
def test_a_plan_comes_back_as_compile_makes_it(deployment: Deployment, name: str) -> None:
    plan = compiled(deployment)
    if plan is None:
        return
    record = PlanRecord.from_json(stored(PlanRecord.of(plan).as_json()))
    record.checked()
    renamed = evolve(deployment, name=name)
    again = record.plan(renamed)
    assert plan_key(renamed) == record.key
    assert again == compile_plan(renamed)
    for family, entries in plan.graphs.items():
        assert [entry.batch_descriptor for entry in again.graphs[family]] == [
            entry.batch_descriptor for entry in entries
        ]


def test_a_plan_of_a_deployment_with_lora_keeps_its_descriptors() -> None:
    deployment = samples.deployment(4, lora={"max_loras": 2})
    plan = compile_plan(deployment)
    assert any(entry.batch_descriptor.has_lora for entry in plan.entries())
    again = PlanRecord.of(plan).plan(deployment)
    assert [entry.batch_descriptor for entry in again.entries()] == [
        entry.batch_descriptor for entry in plan.entries()
    ]


def changed_plan(**changed: Any) -> PlanRecord:
    document = json.loads(json.dumps(PlanRecord.of(samples.plan()).document))
    document.update(changed)
    return PlanRecord(
        deployment=PlanRecord.of(samples.plan()).deployment,
        rules=PlanRecord.of(samples.plan()).rules,
        document=document,
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"graphs": {"target": [{"mode": "FULL", "num_tokens": 4}]}},
        {"digest": samples.digest(3)},
        {"deployment": {}},
        {"name": 3},
        {"kind": "Deployment"},
        {"graphs": None},
        {"graphs": {"target": [{"mode": "NONE", "num_tokens": 4}]}},
    ],
    ids=str,
)
def test_a_strangers_plan_that_is_not_what_it_says_is_refused(changed: dict[str, Any]) -> None:
    PlanRecord.of(samples.plan()).checked()
    with pytest.raises(CacheError) as caught:
        changed_plan(**changed).checked()
    assert caught.value.fault is Fault.ALTERED


@pytest.mark.parametrize(
    "graphs",
    [
        None,
        3,
        {"target": 3},
        {"target": [3]},
        {"target": [{}]},
        {"target": [{"mode": "ODD", "num_tokens": 1}]},
    ],
)
def test_entries_that_cannot_be_read_are_an_ordinary_error(graphs: Any) -> None:
    record = changed_plan(graphs=graphs)
    with pytest.raises(CacheError) as caught:
        record.plan(samples.deployment())
    assert caught.value.fault is Fault.ALTERED


def test_usage_adds_up() -> None:
    more = TRAFFIC.plus({samples.FULL: 2, samples.PIECEWISE: 1}, 1, 10.0)
    assert {row.entry: row.count for row in more.counts} == {samples.FULL: 5, samples.PIECEWISE: 1}
    assert (more.eager, more.updated) == (3, 10.0)


def test_a_capture_with_an_entry_twice_is_refused() -> None:
    record = samples.capture()
    twice = evolve(record, entries=(record.entries[0], record.entries[0]))
    with pytest.raises(CacheError, match="twice"):
        CaptureRecordV1.from_json(stored(twice.as_json()))


def test_an_artifact_names_a_file_and_no_path() -> None:
    with pytest.raises(CacheError, match="no SHA-256"):
        ArtifactRecord.from_json(stored(evolve(ARTIFACT, sha256="../../etc/passwd").as_json()))


def test_labels_are_what_people_look_for() -> None:
    labels = PlanRecord.of(samples.plan()).labels
    assert (labels.plan, labels.model, labels.engine) == (
        str(samples.plan().digest).removeprefix("sha256:"),
        "small",
        "vllm",
    )
    labels = samples.capture(rank=3).labels
    assert (labels.gpu, labels.family, labels.rank) == ("NVIDIA H200", "target", 3)
    assert RECORDS[3].key.kind is Kind.ARTIFACT
