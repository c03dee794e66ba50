"""Loading: what counts as a file, text or mapping, the header, and what a plan's entries inherit."""

import json
import os
from pathlib import Path

import pytest

from planner.documents.deployment import Deployment
from planner.documents.load import load_deployment, load_document, load_plan
from planner.documents.plan import Plan
from planner.documents.sources import read_file
from planner.errors import DocumentError

DEPLOYMENT = "apiVersion: graphplan/v1\nkind: Deployment\n"
PLAN = "apiVersion: graphplan/v1\nkind: Plan\n"
RESOLVED = "resolved: {target: {runner: v2, cudagraph_mode: FULL, lora_cases: [0, 1]}}"
PIECEWISE = "{mode: PIECEWISE, num_tokens: 8}"
LORA = "{mode: FULL, num_tokens: 8, num_active_loras: 1}"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "d.yaml"
    path.write_text(DEPLOYMENT + "name: here\n")
    return path


@pytest.mark.parametrize("as_source", [Path, str])
def test_a_path_or_a_one_line_string_is_a_file(file, as_source):
    assert load_deployment(as_source(file)).name == "here"


def test_other_strings_bytes_and_mappings_are_documents():
    text = DEPLOYMENT + "name: here\n"
    flow = "{apiVersion: graphplan/v1, kind: Deployment, name: here}"
    mapping = {"apiVersion": "graphplan/v1", "kind": "Deployment", "name": "here"}
    sources = (
        text,
        text.encode(),
        flow,
        " " + flow,
        mapping,
        json.dumps(mapping),
        json.dumps(mapping, indent=1),
    )
    assert {load_deployment(source).name for source in sources} == {"here"}


def test_errors_name_the_file_or_the_given_name(file):
    file.write_text(DEPLOYMENT + "nmae: x\n")
    with pytest.raises(DocumentError) as caught:
        load_deployment(file)
    assert str(caught.value).startswith(f"{file}:3:1: nmae: unknown key; did you mean name?")
    with pytest.raises(DocumentError) as caught:
        load_deployment(file, path="<stdin>")
    assert caught.value.path == "<stdin>"
    with pytest.raises(DocumentError) as caught:
        load_deployment(DEPLOYMENT + "nmae: x\n")
    assert str(caught.value).startswith("line 3, column 1: nmae: ")


def test_files_that_are_none_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"x" * 11)
    (tmp_path / "secret").write_text("")
    cases = {
        "missing": "no such file",
        ".": "folder",
        "pipe": "pipe",
        "large": "larger",
        "a\0b": "cannot be read",
    }
    for name, words in cases.items():
        with pytest.raises(DocumentError, match=words) as caught:
            read_file(tmp_path / name, max_bytes=10)
        assert str(caught.value).isprintable()
    assert read_file(tmp_path / "large", max_bytes=11) == b"x" * 11


@pytest.mark.parametrize("source", [None, 5, ["a"], {1, 2}])
def test_a_source_of_another_type_is_refused(source):
    with pytest.raises(DocumentError, match="expected a path, YAML text or a mapping"):
        load_document(source)


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("[1]\n", None, "apiVersion"),
        ("just text\n", None, "apiVersion"),
        ("kind: Plan\n", None, "apiVersion: graphplan/v1"),
        ("apiVersion: graphplan/v1\n", None, "kind: Deployment or Plan"),
        ("apiVersion:\nkind: Plan\n", None, "apiVersion is missing"),
        ("apiVersion: graphplan/v2\nkind: Plan\n", "apiVersion", "it reads graphplan/v1"),
        ("apiVersion: [graphplan/v1]\nkind: Plan\n", "apiVersion", "expected a string"),
        ("apiVersion: graphplan/v1\nkind: plan\n", "kind", "'plan' is no kind of document"),
    ],
)
def test_a_document_says_its_version_and_kind(text, key, words):
    for load in (load_document, load_deployment, load_plan):
        with pytest.raises(DocumentError) as caught:
            load(text)
        assert words in caught.value.message
        assert caught.value.key == key


def test_one_kind_in_the_place_of_the_other_is_refused():
    with pytest.raises(DocumentError, match="this is a Plan, where a Deployment is expected") as caught:
        load_deployment(PLAN + "graphs: {}\n")
    assert (caught.value.line, caught.value.key) == (2, "kind")
    with pytest.raises(DocumentError, match="this is a Deployment, where a Plan is expected"):
        load_plan({"apiVersion": "graphplan/v1", "kind": "Deployment"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PLAN + "scheduler: {max_num_seqs: 8}\nmodel: {}\n", "scheduler, model are keys of a Deployment"),
        (PLAN + "name: x\nlora: {}\n", "lora is a key of a Deployment; write kind: Deployment"),
        (DEPLOYMENT + "name: x\ngraphs: {}\n", "graphs is a key of a Plan; write kind: Plan"),
    ],
)
def test_a_document_under_the_name_of_the_other_kind_is_told_so(text, words):
    for load in (load_document, load_plan if "kind: Plan" in text else load_deployment):
        with pytest.raises(DocumentError) as caught:
            load(text)
        assert words in caught.value.message
        assert (caught.value.key, caught.value.line) == ("kind", 2)


def test_a_document_with_keys_of_both_kinds_is_what_it_says():
    with pytest.raises(DocumentError, match="unknown key") as caught:
        load_document(PLAN + "graphs: {}\nscheduler: {}\n")
    assert caught.value.key == "scheduler"


def test_load_document_goes_by_kind():
    assert isinstance(load_document(DEPLOYMENT), Deployment)
    assert isinstance(load_document(PLAN + "graphs: {}\n"), Plan)


def test_a_plan_needs_graphs_only_and_keeps_their_order():
    plan = load_plan(
        PLAN + "graphs:\n  draft: []\n  target:\n  - {mode: FULL, num_tokens: 8}\n  - " + PIECEWISE
    )
    assert list(plan.graphs) == ["draft", "target"]
    assert [entry.mode.name for entry in plan.entries("target")] == ["FULL", "PIECEWISE"]
    assert plan.deployment == Deployment()


def test_a_prologue_is_read():
    prologue = "prologue: {kind: dflash_context_kv, num_context_tokens: 512}"
    plan = load_plan(PLAN + f"graphs: {{draft: [{{mode: FULL, num_tokens: 512, {prologue}}}]}}\n")
    entry = plan.entries("draft")[0]
    assert entry.prologue is not None
    assert (entry.prologue.kind, entry.prologue.num_context_tokens) == ("dflash_context_kv", 512)


@pytest.mark.parametrize(
    ("body", "has_lora"),
    [
        (f"graphs: {{target: [{PIECEWISE}]}}", False),
        (f"graphs: {{target: [{PIECEWISE}, {LORA}]}}", True),
        (f"graphs: {{draft: [{LORA}], target: [{PIECEWISE}]}}", False),
        (f"deployment: {{lora: {{}}}}\ngraphs: {{target: [{PIECEWISE}]}}", True),
        (f"{RESOLVED}\ngraphs: {{target: [{PIECEWISE}]}}", True),
    ],
)
def test_a_piecewise_entry_has_lora_where_its_family_does(body, has_lora):
    entry = load_plan(PLAN + body + "\n").entries("target")[0]
    assert entry.batch_descriptor.has_lora is has_lora
