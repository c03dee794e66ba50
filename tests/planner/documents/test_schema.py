"""JSON Schemas: current, valid, and of one mind with the loader."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from planner.documents.data import as_data
from planner.documents.load import load_deployment, load_plan
from planner.documents.schema import KINDS, json_schema
from planner.errors import DocumentError

FOLDER = Path(__file__).parents[3] / "plans" / "schemas"
DEPLOYMENT = {"apiVersion": "graphplan/v1", "kind": "Deployment"}
PLAN = {"apiVersion": "graphplan/v1", "kind": "Plan"}

VALID = [
    DEPLOYMENT,
    {**DEPLOYMENT, "engine": None, "lora": {}, "compilation": {"cudagraph_mode": 2, "mode": "NONE"}},
    {**DEPLOYMENT, "model": {"config": {"hidden_size": 8}, "config_sha256": "0" * 64, "max_model_len": 8}},
    {
        **DEPLOYMENT,
        "speculative": {"num_speculative_tokens_per_batch_size": [[1, 2, 3]], "prompt_lookup_max": 4},
    },
    {**DEPLOYMENT, "parallel": {"node_rank": 0, "numa_bind_nodes": None, "eplb_config": {"a": 1}}},
    {**DEPLOYMENT, "compilation": {"cudagraph_mode": "full_and_piecewise", "mode": "Vllm_Compile"}},
    {**DEPLOYMENT, "engine": {"runner": "V2", "usage": "OFFLINE"}, "model": {"attention_support": None}},
    {**PLAN, "graphs": {"target": [{"mode": "Full", "num_tokens": 8, "num_reqs": 8}]}},
    {**PLAN, "graphs": {"target": [{"mode": 1, "num_tokens": 8}]}},
    {**DEPLOYMENT, "compilation": {"compile_sizes": [8, "x"], "pass_config": {"a": True}}},
    {
        **DEPLOYMENT,
        "attention": {
            "backend_per_kind": {"sliding_window": "x"},
            "flash_attn_version": 3,
            "hisparse_config": {},
        },
        "kv_transfer": {"kv_connector": "x", "kv_role": "kv_both", "kv_connector_extra_config": {"a": [1]}},
    },
    {**PLAN, "graphs": {}},
    {
        **PLAN,
        "deployment": {"scheduler": {"max_num_seqs": 8}},
        "resolved": {
            "target": {
                "runner": "v2",
                "cudagraph_mode": "FULL",
                "attention_groups": [
                    {"kind": "full_attention", "backend": "FLASH_ATTN", "support": "ALWAYS"}
                ],
            }
        },
        "decisions": [{"path": "a.b", "asked": 1, "became": [1, 2], "rule": "r", "because": "b"}],
        "findings": [{"severity": "info", "code": "c", "message": "m"}],
        "graphs": {
            "draft": [
                {
                    "mode": "FULL",
                    "num_tokens": 8,
                    "num_reqs": 1,
                    "prologue": {"kind": "dflash_context_kv", "num_context_tokens": 8},
                }
            ]
        },
    },
]
INVALID = [
    {"kind": "Deployment"},
    {**DEPLOYMENT, "kind": "Plan"},
    {**DEPLOYMENT, "nmae": "x"},
    {**DEPLOYMENT, "scheduler": {"max_num_seqs": 0}},
    {**DEPLOYMENT, "scheduler": {"max_num_seqs": "8"}},
    {**DEPLOYMENT, "scheduler": {"watermark": 1.0}},
    {**DEPLOYMENT, "parallel": {"world_size": 8}},
    {**DEPLOYMENT, "attention": {"flash_attn_version": 1}},
    {**DEPLOYMENT, "attention": {"hisparse_config": True}},
    {**DEPLOYMENT, "kv_transfer": {"kv_role": "both"}},
    {**DEPLOYMENT, "lora": {"max_lora_rank": 17}},
    {**DEPLOYMENT, "compilation": {"cudagraph_capture_sizes": [1, -1]}},
    {**DEPLOYMENT, "engine": {"runner": "v3"}},
    {**PLAN},
    {**PLAN, "graphs": {"target": [{"mode": "NONE", "num_tokens": 8}]}},
    {**PLAN, "graphs": {"target": [{"mode": 0, "num_tokens": 8}]}},
    {**DEPLOYMENT, "compilation": {"cudagraph_mode": "FULL-AND-PIECEWISE"}},
    {**DEPLOYMENT, "compilation": {"cudagraph_mode": "FULL_AND_PIECEWI\u017fE"}},
    {**DEPLOYMENT, "compilation": {"cudagraph_mode": "2"}},
    {**DEPLOYMENT, "compilation": {"cudagraph_capture_sizes": [0]}},
    {**PLAN, "graphs": {}, "findings": [{"severity": "INFO", "code": "c", "message": "m"}]},
    {**PLAN, "graphs": {"target": [{"mode": "FULL", "num_tokens": 8, "with_lora": True}]}},
    {**PLAN, "graphs": {"target": [{"mode": "FULL"}]}},
    {**PLAN, "graphs": {}, "findings": [{"severity": "fatal", "code": "c", "message": "m"}]},
]


def is_valid(document) -> bool:
    kind = "plan" if "graphs" in document or document == PLAN else "deployment"
    return Draft202012Validator(json_schema(kind)).is_valid(document)


def loads(document) -> bool:
    try:
        (load_plan if "graphs" in document or document == PLAN else load_deployment)(document)
    except DocumentError:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_the_shipped_schema_is_current(kind):
    """If this fails: planner schema KIND > plans/schemas/KIND.schema.json."""
    assert json.loads((FOLDER / f"{kind}.schema.json").read_text()) == json_schema(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_is_a_valid_schema_and_describes_its_objects(kind):
    schema = json_schema(kind)
    Draft202012Validator.check_schema(schema)
    assert all(definition["description"] for definition in schema["$defs"].values())


@pytest.mark.parametrize("document", VALID, ids=str)
def test_schema_and_loader_take_what_is_valid(document):
    assert is_valid(document)
    assert loads(document)


@pytest.mark.parametrize("document", INVALID, ids=str)
def test_schema_and_loader_refuse_what_is_not(document):
    assert not is_valid(document)
    assert not loads(document)


@pytest.mark.parametrize("document", VALID, ids=str)
def test_what_is_written_is_valid(document):
    loaded = (load_plan if "graphs" in document else load_deployment)(document)
    assert is_valid(as_data(loaded))
