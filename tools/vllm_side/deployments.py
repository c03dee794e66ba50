"""Deployments that are compared: the shipped ones, and random ones of real models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import yaml
from attrs import evolve, frozen
from hypothesis import HealthCheck, Phase, given, seed, settings

from planner import Deployment, load_deployment
from planner.documents.deployment import AttentionSection, HfConfig, KvTransferSection
from planner.engines.shared import VLLM, engine_name
from planner.testing import deployments

PROJECT = Path(__file__).resolve().parents[2]
MODELS = PROJECT / "plans" / "models"

WITH_DRAFT = {
    "eagle3": ("llama-3.1-8b", "eagle3-stand-in"),
    "dflash": ("qwen3-8b", "qwen3-8b-dflash-b16"),
    "mtp": ("deepseek-v3", None),
    "ngram": ("qwen3-0.6b", None),
}
"""Models and drafts for random deployments, by method."""

PLAIN = ("llama-3.1-8b", "qwen3-0.6b", "mixtral-8x7b", "qwen3-30b-a3b")
WITH_EXPERTS = "qwen3-30b-a3b"
LONGEST = 32768
"""The shortest of the longest sequences of those models."""


@frozen
class Case:
    """A deployment and the folder with its model's config."""

    name: str
    deployment: Deployment
    model: Path


def shipped(folder: Path) -> Iterator[Case]:
    """The deployments of vLLM in ``plans/deployments``."""
    for source in sorted((PROJECT / "plans" / "deployments").glob("*.yaml")):
        deployment = load_deployment(source)
        if engine_name(deployment) != VLLM:
            continue
        written = yaml.safe_load(source.read_text())
        model = (source.parent / written["model"]["config"]).resolve().parent
        if deployment.speculative is not None and deployment.speculative.model is None:
            config = written["speculative"].get("config")
            draft = (source.parent / config).resolve().parent if config else _stand_in(model, folder)
            if deployment.speculative.method not in ("mtp", "ngram"):
                deployment = evolve(deployment, speculative=evolve(deployment.speculative, model=str(draft)))
        yield Case(source.stem, deployment, model)


def _stand_in(model: Path, folder: Path) -> Path:
    """An EAGLE3 draft of one layer in the dimensions of ``model``."""
    target = json.loads((model / "config.json").read_text())
    draft = folder / f"eagle3-of-{model.name}"
    draft.mkdir(exist_ok=True)
    own = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 32000}
    (draft / "config.json").write_text(json.dumps({**target, **own}))
    return draft


def random(count: int, start: int, folder: Path) -> list[Case]:
    """``count`` deployments from all over the rules; ``start`` seeds their choice."""
    found: list[Case] = []

    @seed(start)
    @settings(
        max_examples=2 * count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(deployments())
    def collect(deployment: Deployment) -> None:
        if len(found) < count:
            found.append(_of_a_model(deployment, len(found), folder))

    collect()
    return found


def _of_a_model(deployment: Deployment, number: int, folder: Path) -> Case:
    """``deployment`` with a real model, and without what needs installed packages that are not here."""
    speculative = deployment.speculative
    parallel = evolve(deployment.parallel, is_moe_model=None)
    name, draft = PLAIN[number % len(PLAIN)], None
    if parallel.enable_expert_parallel or parallel.enable_dbo:
        name = WITH_EXPERTS
    if speculative is not None:
        name, draft = WITH_DRAFT[str(speculative.method)]
        if draft == "eagle3-stand-in":
            speculative = evolve(speculative, model=str(_stand_in(MODELS / name, folder)))
        elif draft is not None:
            speculative = evolve(speculative, config=_config(MODELS / draft), model=str(MODELS / draft))
    length = deployment.model.max_model_len
    model = evolve(
        deployment.model, config=_config(MODELS / name), max_model_len=length and min(length, LONGEST)
    )
    deployment = evolve(
        deployment,
        name=f"random-{number}",
        model=model,
        parallel=parallel,
        speculative=speculative,
        attention=AttentionSection(),
        kv_transfer=KvTransferSection(),
    )
    return Case(f"random {number} ({name})", deployment, MODELS / name)


@cache
def _config(model: Path) -> HfConfig | None:
    """The config of a model as a Deployment holds it."""
    written = {"config": str(model / "config.json")}
    return load_deployment(
        {"apiVersion": "graphplan/v1", "kind": "Deployment", "model": written}
    ).model.config
