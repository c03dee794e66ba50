"""Models' config.json files: what is kept, and that a stranger's file can neither hurt nor leak."""

import hashlib
import json
from pathlib import Path

import pytest

from planner.compile import compile_plan
from planner.documents.hf_config import config_facts
from planner.documents.load import load_deployment, load_plan
from planner.documents.writer import dump_deployment, dump_plan
from planner.errors import DocumentError
from planner.models.facts import model_facts

HEADER = {"apiVersion": "graphplan/v1", "kind": "Deployment"}
MODELS = sorted((Path(__file__).parents[3] / "plans" / "models").glob("*/config.json"))
CONFIG = {"model_type": "qwen3", "num_hidden_layers": 2, "eos_token_id": 7, "rms_norm_eps": 1e-06}
FACTS = {"model_type": "qwen3", "num_hidden_layers": 2}


def refused(config: bytes, tmp_path: Path) -> str:
    (tmp_path / "config.json").write_bytes(config)
    (tmp_path / "d.yaml").write_text(
        "apiVersion: graphplan/v1\nkind: Deployment\nmodel:\n  config: config.json\n"
    )
    with pytest.raises(DocumentError) as caught:
        load_deployment(tmp_path / "d.yaml")
    error = caught.value
    assert (error.path, error.line, error.column, error.key) == (
        str(tmp_path / "d.yaml"),
        4,
        11,
        "model.config",
    )
    assert str(tmp_path / "config.json") in error.message
    assert str(error).isprintable()
    return error.message


@pytest.mark.parametrize("kind", ["Deployment", "Plan"])
def test_a_relative_path_starts_at_the_folder_of_the_document(tmp_path, monkeypatch, kind):
    (tmp_path / "sub").mkdir()
    data = json.dumps(CONFIG).encode()
    (tmp_path / "config.json").write_bytes(data)
    section = "model: {config: ../config.json}"
    body = f"{section}\n" if kind == "Deployment" else f"deployment: {{{section}}}\ngraphs: {{}}\n"
    document = tmp_path / "sub" / "d.yaml"
    document.write_text(f"apiVersion: graphplan/v1\nkind: {kind}\n{body}")
    loaded = load_deployment(document) if kind == "Deployment" else load_plan(document).deployment
    assert loaded.model.config.facts == FACTS
    assert loaded.model.config.sha256 == hashlib.sha256(data).hexdigest()
    monkeypatch.chdir(tmp_path / "sub")
    for source in (document.read_text(), {**HEADER, "model": {"config": "../config.json"}}):
        if kind == "Deployment":
            assert load_deployment(source) == loaded


def test_the_draft_has_a_config_of_its_own(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    loaded = load_deployment({**HEADER, "speculative": {"config": tmp_path / "config.json"}})
    assert loaded.speculative.config.facts == FACTS


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (b"not json", "not JSON: Expecting value at line 1, column 1"),
        (b"[1]", "not a JSON object"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"hidden_size": 1, "hidden_size": 2}', "twice"),
        (b'{"text_config": {"a": 1, "a": 2}}', "twice"),
        (b"[" * 100_000, "deep"),
        (b'{"text_config":' * 200 + b"1" + b"}" * 200, "deep"),
        (b'{"hidden_size": NaN}', "hidden_size: the number is not finite"),
        (b'{"hidden_size": 1e999}', "hidden_size: the number is not finite"),
        (b'{"hidden_size": 1' + b"0" * 30 + b"}", "hidden_size: the number is out of range"),
        (b'{"hidden_size": 1' + b"0" * 5000 + b"}", "too many digits"),
        (b'{"model_type": "\\ud800"}', "half a character"),
        (b'{"layer_types": [' + b'"x",' * 300_000 + b'"x"]}', "larger than 1 MiB"),
    ],
)
def test_a_file_that_is_no_config_is_refused(config, words, tmp_path):
    assert words in refused(config, tmp_path)


def test_a_config_over_16_mib_is_refused(tmp_path):
    assert "16 MiB" in refused(b" " * (16 * 2**20 + 1), tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"root:hunter2:0:0\n",
        b'{"hunter2": 1, "hunter2": 2}',
        b'["hunter2"]',
        b'"hunter2',
        b'{"hunter2": "\\ud800"}',
    ],
)
def test_the_content_of_a_file_never_shows_in_a_message(content, tmp_path):
    assert "hunter2" not in refused(content, tmp_path)


def test_a_config_may_stand_in_the_document_itself():
    loaded = load_deployment({**HEADER, "model": {"config": CONFIG}})
    assert loaded.model.config.facts == FACTS
    canonical = b'{"model_type":"qwen3","num_hidden_layers":2}'
    assert loaded.model.config.sha256 == hashlib.sha256(canonical).hexdigest()
    assert load_deployment(dump_deployment(loaded)) == loaded


def test_a_pasted_config_json_is_taken_with_numbers_that_only_json_has():
    text = f"apiVersion: graphplan/v1\nkind: Deployment\nmodel:\n  config: {json.dumps(CONFIG)}\n"
    assert load_deployment(text).model.config.facts == FACTS


def test_the_digest_of_the_file_is_kept_beside_an_inline_config():
    sha = "0" * 63 + "f"
    loaded = load_deployment({**HEADER, "model": {"config": CONFIG, "config_sha256": sha}})
    assert loaded.model.config.sha256 == sha
    assert load_deployment(dump_deployment(loaded)) == loaded


@pytest.mark.parametrize(
    ("model", "key", "words"),
    [
        ({"config_sha256": "0" * 64}, "model.config_sha256", "inline config only"),
        ({"config": "plans/x.json", "config_sha256": "0" * 64}, "model.config", "no such file"),
        ({"config": CONFIG, "config_sha256": "F" * 64}, "model.config_sha256", "64 lower-case"),
        ({"config": CONFIG, "config_sha256": 5}, "model.config_sha256", "expected a string"),
        ({"config": [1]}, "model.config", "path of a config.json"),
        ({"config": 5}, "model.config", "expected a string"),
        ({"config": {"hidden_size": float("inf")}}, "model.config.hidden_size", "not finite"),
    ],
)
def test_configs_that_make_no_sense_are_refused(model, key, words):
    with pytest.raises(DocumentError) as caught:
        load_deployment({**HEADER, "model": model})
    assert caught.value.key == key
    assert words in caught.value.message


def test_the_digest_beside_a_path_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DocumentError, match="inline config only"):
        load_deployment(
            {**HEADER, "model": {"config": str(tmp_path / "config.json"), "config_sha256": "0" * 64}}
        )


def test_null_configs_are_none():
    loaded = load_deployment({**HEADER, "model": {"config": None, "config_sha256": None}})
    assert loaded == load_deployment(HEADER)


def test_shipped_models_are_found():
    assert len(MODELS) >= 10


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.parent.name)
def test_the_facts_of_a_config_say_all_that_planning_reads(path):
    config = json.loads(path.read_text())
    facts = config_facts(config)
    assert model_facts(facts) == model_facts(config)
    assert config_facts(facts) == facts


def test_nested_configs_are_filtered_and_quantisation_is_cut_to_its_kv_cache():
    config = {
        "text_config": {"hidden_size": 8, "rms_norm_eps": 1.0, "text_config": {"head_dim": 4, "x": 1}},
        "vision_config": None,
        "quantization_config": {
            "quant_method": "modelopt",
            "ignore": ["a"],
            "quantization": {"kv_cache_quant_algo": "FP8", "x": 1},
        },
    }
    assert config_facts(config) == {
        "text_config": {"hidden_size": 8, "text_config": {"head_dim": 4}},
        "vision_config": None,
        "quantization_config": {"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}},
    }


def test_facts_that_no_document_can_hold_are_refused():
    with pytest.raises(DocumentError, match="not finite"):
        config_facts({"head_dim": float("nan")})


def deep_config(levels: int) -> dict[str, object]:
    value: object = 1
    for _ in range(levels):
        value = {"a": value}
    facts = {**CONFIG, "num_attention_heads": 8, "hidden_size": 64, "rope_scaling": value}
    return {**HEADER, "model": {"config": facts, "attention_support": "ALWAYS"}}


def test_a_deep_fact_that_is_read_can_be_written_into_a_plan():
    """Found by fuzzing: a plan writes the config further in than the deployment had it."""
    plan = compile_plan(load_deployment(deep_config(45)))
    assert load_plan(dump_plan(plan)) == plan
    with pytest.raises(DocumentError, match="nested more than 48 levels"):
        load_deployment(deep_config(55))
