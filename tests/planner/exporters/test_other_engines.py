"""Plans of SGLang and TensorRT-LLM go around as those of vLLM do."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from planner import compile_plan, load_deployment
from planner.engines.shared import SGLANG, TENSORRT_LLM
from planner.exporters.export import export
from planner.exporters.exported import CONFIG, FORMATS
from tests.planner.engines.sglang_lines import sglang_lines
from tests.planner.exporters.round_trip import assert_same_plan, of_the_same_model, started

MAXIMA = (1, 2, 3, 32, 100, 128, 200, 256, 2048)
PREFILL: tuple[dict[str, Any], ...] = (
    {},
    {"prefill_cuda_graph_backend": "piecewise"},
    {"prefill_cuda_graph_backend": "breakable", "prefill_capture_num_tokens": [8, 64]},
    {"torch_compile_config": {"enable_piecewise_cuda_graph": True, "capture_num_tokens": [16, 32]}},
)


def goes_around(document: dict[str, Any], engine: str, form: str, folder: Path, *, pinned: bool) -> None:
    deployment = load_deployment(document)
    plan = compile_plan(deployment)
    exported = export(plan, engine, form, pinned=pinned)
    again = of_the_same_model(started(exported, form, folder), deployment)
    assert_same_plan(compile_plan(again), plan)


@pytest.mark.parametrize("pinned", [False, True])
def test_deployments_that_sglang_answered_go_around(tmp_path: Path, pinned: bool) -> None:
    lines = sglang_lines("sizes")[:: 6 if pinned else 3]
    for number, line in enumerate(lines):
        form = FORMATS[number % len(FORMATS)]
        goes_around(line["deployment"], SGLANG, form, tmp_path, pinned=pinned)


@pytest.mark.parametrize("maximum", MAXIMA)
@pytest.mark.parametrize("padding", [None, True, False])
def test_sizes_of_tensorrt_llm_go_around(tmp_path: Path, maximum: int, padding: bool | None) -> None:
    lists: tuple[dict[str, Any], ...] = ({"max_batch_size": maximum}, {"batch_sizes": [1, 5, 7]})
    for number, (sizes, prefill) in enumerate(product(lists, PREFILL)):
        config = sizes if padding is None else {**sizes, "enable_padding": padding}
        document = {
            "apiVersion": "graphplan/v1",
            "kind": "Deployment",
            "engine": {"name": TENSORRT_LLM},
            "scheduler": {"max_num_seqs": max(maximum, 8)},
            "tensorrt_llm": {"cuda_graph_config": config, **prefill},
        }
        goes_around(document, TENSORRT_LLM, CONFIG, tmp_path, pinned=number % 2 == 1)
