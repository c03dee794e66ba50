"""The digest of a plan: what changes it, and what does not."""

import hashlib
import json

from attrs import evolve

from planner.descriptors import DFLASH_CONTEXT_KV, PlanEntry, Prologue
from planner.documents.data import as_data
from planner.documents.deployment import Deployment, DeviceSection, EngineSection, ParallelSection
from planner.documents.digest import canonical_json, is_edited, plan_digest
from planner.documents.load import load_plan
from planner.documents.plan import Decision, Plan, ResolvedFamily
from planner.documents.writer import dump_plan
from planner.modes import CUDAGraphMode, Runner

ENTRY = PlanEntry(CUDAGraphMode.FULL, 16, 1, 16, None, 2, 2, Prologue(DFLASH_CONTEXT_KV, 16))
PLAN = Plan(
    name="a",
    deployment=Deployment(
        name="b",
        engine=EngineSection(env={"B": "2", "A": "ü"}),
        device=DeviceSection(memory_gib=139),
        parallel=ParallelSection(ignored={"nnodes": 1}),
    ),
    resolved={"target": ResolvedFamily(runner=Runner.V2, cudagraph_mode=CUDAGraphMode.FULL)},
    graphs={"target": (ENTRY, PlanEntry(CUDAGraphMode.PIECEWISE, 8))},
)


def digest(plan: Plan) -> str:
    return plan_digest(plan.deployment, plan.resolved, plan.graphs)


def test_the_digest_is_over_canonical_json_of_what_is_written():
    data = as_data(PLAN)
    del data["deployment"]["name"]
    kept = {key: data[key] for key in ("deployment", "resolved", "graphs")}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"))
    assert text.isascii()
    assert digest(PLAN) == "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def test_canonical_json_sorts_keys_and_escapes():
    assert canonical_json({"b": [1, None], "a": "ü"}) == b'{"a":"\\u00fc","b":[1,null]}'


def test_names_decisions_and_the_order_of_keys_do_not_count():
    other = evolve(
        PLAN,
        name="c",
        deployment=evolve(PLAN.deployment, name="d", engine=EngineSection(env={"A": "ü", "B": "2"})),
        decisions=(Decision(path="p", rule="r", because="b"),),
    )
    assert digest(other) == digest(PLAN)


def test_settings_families_and_the_order_of_entries_count():
    others = [
        evolve(PLAN, deployment=evolve(PLAN.deployment, parallel=ParallelSection(ignored={"nnodes": 2}))),
        evolve(PLAN, resolved={}),
        evolve(PLAN, graphs={"target": PLAN.graphs["target"][::-1]}),
        evolve(PLAN, graphs={"target": (evolve(ENTRY, num_ubatches=1),)}),
        evolve(PLAN, graphs={"draft": PLAN.graphs["target"]}),
    ]
    assert len({digest(plan) for plan in [PLAN, *others]}) == len(others) + 1


def test_an_edited_plan_is_known_by_its_digest():
    plan = evolve(PLAN, digest=digest(PLAN))
    assert not is_edited(plan)
    assert not is_edited(PLAN)
    assert not is_edited(load_plan(dump_plan(plan)))
    edited = dump_plan(plan).replace("num_tokens: 8", "num_tokens: 4")
    assert is_edited(load_plan(edited))
