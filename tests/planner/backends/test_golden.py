"""Every deployment of the engine's own answers: its backends, their supports and the mode."""

import json
from collections import Counter

import pytest

from planner.documents.load import load_deployment
from planner.errors import PlanError
from planner.modes import CompilationMode, CUDAGraphMode
from tests.planner.golden_lines import backend_lines

LINES = backend_lines()
ANSWERED = [line for line in LINES if "error" not in line["answer"]]
REFUSED = [line for line in LINES if "error" in line["answer"]]


def as_answer(group):
    entry = {
        "kind": group.kind.value,
        "backend": group.backend,
        "support": group.support.name,
        "layers": group.layers,
    }
    return {**entry, "draft": True} if group.draft else entry


def counted(groups):
    return Counter(json.dumps(group, sort_keys=True) for group in groups)


@pytest.mark.parametrize("line", ANSWERED, ids=[line["name"] for line in ANSWERED])
def test_selection_is_the_engines_own(line, select):
    answer, selected = line["answer"], select(load_deployment(line["deployment"]))
    selection = selected.selection
    assert str(selected.runner) == answer["runner"]
    assert counted(map(as_answer, selection.groups)) == counted(answer["groups"])
    assert selection.support.name == answer["support"]
    assert (selection.deciding.label if selection.deciding else None) == answer["deciding"]
    assert selection.kv_cache_dtype == answer["kv_cache_dtype"]
    assert selection.block_size == answer["block_size"]
    mode = selected.mode(
        CUDAGraphMode[answer["requested"]],
        CompilationMode[answer["compile_mode"]],
        piecewise=answer["piecewise_available"],
    )
    assert mode.name == answer["cudagraph_mode"]
    draft = answer.get("draft")
    assert (selection.draft_support is not None) == (draft is not None)
    if draft is not None:
        assert selection.draft_support.name == draft["support"]
        assert list(map(as_answer, selection.draft_groups)) == draft["groups"]
        if "cudagraph_mode" in draft:
            assert selected.draft_mode(mode).name == draft["cudagraph_mode"]


@pytest.mark.parametrize("line", REFUSED, ids=[line["name"] for line in REFUSED])
def test_what_the_engine_refuses_is_refused_with_the_settings_named(line, select):
    deployment = load_deployment(line["deployment"])

    def resolve():
        return select(deployment).mode(deployment.compilation.cudagraph_mode, CompilationMode.VLLM_COMPILE)

    with pytest.raises(PlanError) as caught:
        resolve()
    assert caught.value.fields
    assert "\n" not in str(caught.value)


def test_the_golden_lines_hold_answers_and_refusals():
    assert len(ANSWERED) >= 25
    assert len(REFUSED) >= 12
