"""Which of vLLM's two model runners serves a deployment, and why.

Watermarking, which forces the V2 runner, has no setting in a deployment and is not modelled; neither
are a draft whose ``lm_head`` is quantised and Parse-3.5's MTP, which V1 does not serve.

Source: vLLM 0.33, runner choice and the unsupported features of either runner (rules 0, 3.5).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attrs import frozen

from planner.documents.deployment import Deployment, SpeculativeSection
from planner.errors import PlanError
from planner.methods import DFLASH_METHODS
from planner.modes import Runner

if TYPE_CHECKING:
    from planner.models.facts import ModelFacts

V2_ENV = "VLLM_USE_V2_MODEL_RUNNER"
DEFAULT_RUNNER = "the engine's default"
"""Why V2 serves where nothing speaks against it."""


@frozen
class Unsupported:
    """A feature that a runner does not serve, and the settings that ask for it."""

    what: str
    fields: tuple[str, ...]


def choose_runner(
    deployment: Deployment, *, target: ModelFacts | None = None, draft: ModelFacts | None = None
) -> tuple[Runner, str]:
    """The runner that serves, and the circumstance that decides.

    ``engine.runner`` stands for the environment variable that forces a runner. Facts of the
    models are ``None`` where their configs are not known.

    Raises:
        PlanError: the two ways of forcing a runner contradict each other, or the runner does not
            serve a feature that is asked for.
    """
    forced, because = _forced(deployment)
    beyond_v2 = tuple(_beyond_v2(deployment, target, explicit=forced is Runner.V2))
    if forced is None and not beyond_v2 and not deployment.uses_hisparse:
        return Runner.V2, DEFAULT_RUNNER
    runner = forced or Runner.V1
    if deployment.uses_hisparse:
        runner, because = _hisparse_runner(forced)
    elif forced is None:
        because = f"the V2 runner does not serve {beyond_v2[0].what}"
    missing = beyond_v2 if runner is Runner.V2 else tuple(_beyond_v1(deployment, target, draft))
    if missing:
        raise PlanError(
            f"the {runner} runner ({because}) does not serve {missing[0].what}; change one of the two",
            fields=(*missing[0].fields, "engine.runner"),
        )
    return runner, because


def _forced(deployment: Deployment) -> tuple[Runner | None, str]:
    asked = deployment.engine.runner
    by_flag = deployment.engine.flag(V2_ENV)
    if by_flag is None:
        return asked, "" if asked is None else f"engine.runner is {asked}"
    by_env, value = Runner.V2 if by_flag else Runner.V1, int(by_flag)
    if asked not in (None, by_env):
        raise PlanError(
            f"engine.runner is {asked} but {V2_ENV} is {value}; drop one of the two",
            fields=("engine.runner", f"engine.env.{V2_ENV}"),
        )
    return by_env, f"{V2_ENV} is {value}"


def _hisparse_runner(forced: Runner | None) -> tuple[Runner, str]:
    """HiSparse runs on V2 alone, even beside features that would make the engine choose V1."""
    field = "attention.hisparse_config"
    if forced is Runner.V1:
        raise PlanError(
            "HiSparse runs on the v2 runner, but v1 is asked for; drop one of the two",
            fields=(field, "engine.runner"),
        )
    return Runner.V2, f"{field} is given, and HiSparse runs on v2 alone"


def _beyond_v2(deployment: Deployment, target: ModelFacts | None, *, explicit: bool) -> Iterator[Unsupported]:
    parallel, speculative = deployment.parallel, deployment.speculative or SpeculativeSection()
    pipelined = (parallel.pipeline_parallel_size or 1) > 1
    if parallel.distributed_executor_backend == "external_launcher" and pipelined:
        fields = ("parallel.distributed_executor_backend", "parallel.pipeline_parallel_size")
        yield Unsupported("external_launcher with pipeline stages", fields)
    if speculative.method in ("suffix", "custom_class"):
        yield Unsupported(f"the speculative method {speculative.method}", ("speculative.method",))
    if speculative.parallel_drafting and speculative.method not in DFLASH_METHODS:
        fields = ("speculative.parallel_drafting", "speculative.method")
        yield Unsupported(f"parallel drafting with method {speculative.method}", fields)
    if speculative.use_heterogeneous_vocab:
        field = "speculative.use_heterogeneous_vocab"
        yield Unsupported("a draft with a vocabulary of its own", (field,))
    if parallel.num_ubatches > 1:
        if not explicit:
            field = "parallel.enable_dbo"
            yield Unsupported(f"microbatches (DBO) unless {V2_ENV} asks for them", (field,))
        yield from _beyond_microbatches(deployment, target)


_SINGLE_WITH_MICROBATCHES = (
    "pipeline_parallel_size",
    "decode_context_parallel_size",
    "prefill_context_parallel_size",
)


def _beyond_microbatches(deployment: Deployment, target: ModelFacts | None) -> Iterator[Unsupported]:
    cases = (
        (deployment.lora is not None, "LoRA", "lora"),
        (deployment.speculative is not None, "speculative decoding", "speculative"),
        *(
            ((getattr(deployment.parallel, field) or 1) > 1, f"{field} above 1", f"parallel.{field}")
            for field in _SINGLE_WITH_MICROBATCHES
        ),
        (target is not None and target.is_multimodal, "a multimodal model", "model.config"),
        (target is not None and target.is_encoder_decoder, "an encoder-decoder", "model.config"),
        (target is not None and target.is_encoder_only, "an encoder-only model", "model.config"),
        (target is not None and target.is_hybrid, "a hybrid model", "model.config"),
    )
    for met, what, field in cases:
        if met:
            yield Unsupported(f"microbatches (DBO) with {what}", ("parallel.enable_dbo", field))


def _beyond_v1(
    deployment: Deployment, target: ModelFacts | None, draft: ModelFacts | None
) -> Iterator[Unsupported]:
    parallel, speculative = deployment.parallel, deployment.speculative or SpeculativeSection()
    if (parallel.prefill_context_parallel_size or 1) > 1:
        field = "parallel.prefill_context_parallel_size"
        yield Unsupported("prefill context parallelism", (field,))
    if (parallel.pipeline_parallel_size or 1) > 1 and deployment.scheduler.async_scheduling:
        fields = ("parallel.pipeline_parallel_size", "scheduler.async_scheduling")
        yield Unsupported("pipeline stages with asynchronous scheduling", fields)
    if parallel.ignored.get("enable_batch_sharded_sampling") is True:
        field = "parallel.enable_batch_sharded_sampling"
        yield Unsupported("batch-sharded sampling", (field,))
    if speculative.method == "dspark":
        yield Unsupported("the speculative method dspark", ("speculative.method",))
    if speculative.enable_adaptive_verification:
        yield Unsupported("adaptive verification", ("speculative.enable_adaptive_verification",))
    architecture = (target and target.architecture) or ""
    if architecture.startswith("Step5"):
        yield Unsupported("Step5 models", ("model.config",))
    if "Diffusion" in architecture:
        yield Unsupported("diffusion models", ("model.config",))
    if draft is not None and speculative.method == "dflash":
        yield from _beyond_v1_dflash(draft)


def _beyond_v1_dflash(draft: ModelFacts) -> Iterator[Unsupported]:
    from planner.models.layers import LayerKind

    kinds = {layer.kind for layer in draft.layers}
    if {LayerKind.SLIDING_WINDOW, LayerKind.FULL_ATTENTION} <= kinds:
        what = "a DFlash draft that mixes sliding and full attention"
        yield Unsupported(what, ("speculative.config",))
    name = draft.architecture or ""
    if "DFlash2" in name or "LiLiCorr" in name or "XPress" in name:
        yield Unsupported(f"the draft architecture {name}", ("speculative.config",))
