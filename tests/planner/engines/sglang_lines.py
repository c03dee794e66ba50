"""SGLang 0.5.23's own answers, and its flags as sections of a Deployment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.planner.golden_lines import PROJECT, lines_of

MODELS: dict[str, dict[str, Any]] = {
    "dsv3": {"config": str(PROJECT / "plans" / "models" / "deepseek-v3" / "config.json")},
    "moe": {},
    "llama": {},
    "llama-2-7b": {},
}
"""The models of the answers on flags: what of them decides is latent attention, and one name."""

CONTEXT = 131072
KV_TOKENS = 10_000_000
"""What the answers take for the longest sequence and for the tokens of a rank's KV cache."""

COUNTS = {
    "--tp-size": ("parallel", "tensor_parallel_size"),
    "--pp-size": ("parallel", "pipeline_parallel_size"),
    "--dp-size": ("parallel", "data_parallel_size"),
    "--attn-dp-size": ("parallel", "data_parallel_size"),
    "--max-running-requests": ("scheduler", "max_num_seqs"),
    "--chunked-prefill-size": ("scheduler", "max_num_batched_tokens"),
}
LISTS = ("--cuda-graph-bs-decode", "--cuda-graph-bs-prefill")
TEXTS = ("--cuda-graph-backend-decode", "--cuda-graph-backend-prefill", "--moe-a2a-backend", "--deepep-mode")


def sglang_lines(name: str) -> list[dict[str, Any]]:
    """The lines of one of the files."""
    return lines_of(f"sglang-0.5.23-{name}")


def deployment_of(line: dict[str, Any]) -> dict[str, Any]:
    """The deployment that the flags of a line stand for."""
    model = {**MODELS[line["model"]], "max_model_len": CONTEXT, "num_kv_blocks": KV_TOKENS}
    document: dict[str, Any] = {
        "apiVersion": "graphplan/v1",
        "kind": "Deployment",
        "engine": {"name": "sglang", "version": "0.5.23"},
        "model": model,
        "parallel": {},
        "scheduler": {},
        "sglang": {"model_path": f"/models/{line['model']}"},
    }
    if line["memory_mib"] is not None:
        document["device"] = {"memory_gib": line["memory_mib"] / 1024}
    for flag, values in _flags(line["argv"]):
        _put(document, flag, values)
    return document


def _flags(argv: list[str]) -> Iterator[tuple[str, list[str]]]:
    flags: list[tuple[str, list[str]]] = []
    for word in argv:
        if word.startswith("--"):
            flags.append((word, []))
        else:
            flags[-1][1].append(word)
    yield from flags


def _put(document: dict[str, Any], flag: str, values: list[str]) -> None:
    own, name = document["sglang"], flag.removeprefix("--").replace("-", "_")
    if flag in COUNTS:
        section, key = COUNTS[flag]
        document[section][key] = int(values[0])
    if flag in ("--attn-dp-size", "--enable-dp-attention"):
        document["parallel"]["enable_dp_attention"] = True
    elif flag == "--speculative-algorithm":
        document["speculative"] = {"method": values[0].lower()}
    elif flag in ("--speculative-draft-model-path", *COUNTS):
        return
    elif flag == "--disaggregation-mode":
        own["disaggregation_mode"] = values[0]
    elif flag == "--cuda-graph-config":
        own[name] = json.loads(values[0])
    elif flag in TEXTS:
        own[name] = values[0]
    elif flag in LISTS:
        own[name] = [int(value) for value in values]
    else:
        own[name] = int(values[0]) if values else True
