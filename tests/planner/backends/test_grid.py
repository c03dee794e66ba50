"""The engine's answers over models, devices and settings, as a grid of short notations.

A cell such as ``full:FLASH_ATTN/UB + full*:FLASHINFER/S = S -> FAP; draft UB -> FDO`` names the
groups (``*`` for the draft's) with their supports, the least support and the resolved mode, and
for a DFlash draft its own support and mode.
"""

import gzip
import json
import re
from pathlib import Path

import pytest
from attrs import evolve

from planner.backends.selection import select_backends
from planner.documents.load import load_deployment
from planner.errors import PlanError
from planner.modes import CompilationMode, CUDAGraphMode

DATA = Path(__file__).parents[2] / "data"
LEVELS = {
    "A": "ALWAYS",
    "UB": "UNIFORM_BATCH",
    "S": "UNIFORM_SINGLE_TOKEN_DECODE",
    "N": "NEVER",
}
MODES = {
    "FAP": "FULL_AND_PIECEWISE",
    "FDO": "FULL_DECODE_ONLY",
    "PW": "PIECEWISE",
    "FULL": "FULL",
    "NONE": "NONE",
}
KINDS = {
    "full": "full_attention",
    "swa": "sliding_window",
    "chunk": "chunked_local_attention",
    "mla": "mla_attention",
    "ssm": "mamba",
    "cross": "cross_attention",
    "enc": "encoder_only_attention",
}
UNCOMPILED = ("DeepseekV32", "GlmMoeDsa")
CELL = re.compile(
    r"(?P<groups>.+) = (?P<least>\w+) -> (?P<mode>\w+)(; draft (?P<draft>\w+) -> (?P<own>\w+))?"
)

MODELS = json.loads(gzip.decompress((DATA / "backend-models.json.gz").read_bytes()))
CASES = [
    (row["case"], row["deployment"], capability, answer)
    for row in map(json.loads, (DATA / "backend-grid.jsonl").read_text().splitlines())
    for capability, answer in row["answers"].items()
]


def deployment_of(settings, capability):
    document = {"apiVersion": "graphplan/v1", "kind": "Deployment", **settings}
    document.pop("attention", None)
    for section in ("model", "speculative"):
        if "config" in settings.get(section, {}):
            document[section] = {**settings[section], "config": MODELS[settings[section]["config"]]}
    document["device"] = {"compute_capability": capability}
    return load_deployment(document)


def requested_mode(deployment, target):
    """The mode before attention is looked at, of deployments that set nothing but the mode."""
    asked = deployment.compilation.cudagraph_mode or CUDAGraphMode.FULL_AND_PIECEWISE
    if deployment.model.enforce_eager:
        return CUDAGraphMode.NONE
    if target.is_pooling:
        return CUDAGraphMode.PIECEWISE
    return CUDAGraphMode.FULL_DECODE_ONLY if target.is_encoder_decoder else asked


def compile_mode(deployment, target):
    breakable = target.architecture.startswith(UNCOMPILED)
    eager = deployment.model.enforce_eager or breakable
    return CompilationMode.NONE if eager else CompilationMode.VLLM_COMPILE


def selected(settings, capability, request_of):
    """The selection, with the settings of vLLM's AttentionConfig that no deployment has."""
    deployment = deployment_of(settings, capability)
    _, request = request_of(deployment)
    attention = dict(settings.get("attention", {}))
    request = evolve(request, backend_per_kind=attention.pop("backend_per_kind", {}))
    request = evolve(request, environment=evolve(request.environment, **attention))
    return deployment, request, select_backends(request)


def notation(groups):
    names = {kind: short for short, kind in KINDS.items()}
    levels = {level: short for short, level in LEVELS.items()}
    return [
        f"{names[group.kind.value]}{'*' if group.draft else ''}:{group.backend}/{levels[group.support.name]}"
        for group in groups
    ]


def resolved(settings, capability, request_of, select):
    """The selection of a cell and everything with it, its mode included."""
    deployment, request, selection = selected(settings, capability, request_of)
    whole = evolve(select(deployment), selection=selection)
    mode = whole.mode(requested_mode(deployment, request.target), compile_mode(deployment, request.target))
    return whole, mode


@pytest.mark.parametrize(
    ("settings", "capability", "answer"),
    [case[1:] for case in CASES if case[3] != "error"],
    ids=[f"{case[0]} on {case[2]}" for case in CASES if case[3] != "error"],
)
def test_a_cell_of_the_grid(settings, capability, answer, request_of, select):
    whole, mode = resolved(settings, capability, request_of, select)
    cell = CELL.fullmatch(answer)
    assert notation(whole.selection.groups) == cell["groups"].split(" + ")
    assert whole.selection.support.name == LEVELS[cell["least"]]
    assert mode.name == MODES[cell["mode"]]
    if cell["draft"]:
        assert whole.selection.draft_support.name == LEVELS[cell["draft"]]
        assert whole.draft_mode(mode).name == MODES[cell["own"]]


@pytest.mark.parametrize(
    ("settings", "capability"),
    [case[1:3] for case in CASES if case[3] == "error"],
    ids=[f"{case[0]} on {case[2]}" for case in CASES if case[3] == "error"],
)
def test_a_refusal_of_the_grid(settings, capability, request_of, select):
    with pytest.raises(PlanError) as caught:
        resolved(settings, capability, request_of, select)
    assert caught.value.fields
