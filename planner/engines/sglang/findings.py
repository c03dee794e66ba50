"""What a person should know of a plan for SGLang beside what verification finds: what was assumed."""

from __future__ import annotations

from collections.abc import Iterator

from planner.documents.deployment import Deployment
from planner.documents.plan import Finding, Severity
from planner.engines.sglang.config import BREAKABLE
from planner.engines.sglang.grids import ALIGNED
from planner.engines.sglang.parallel import DEEPEP
from planner.engines.sglang.settings import Settings
from planner.errors import PlanError

RAGGED_VERIFY = "SGLANG_RAGGED_VERIFY_MODE"


def refuse_token_keyed_graphs(deployment: Deployment) -> None:
    """Refuse verification in graphs that are looked up by tokens, whose rules are not planned by.

    Raises:
        PlanError: the environment asks for it.
    """
    if deployment.engine.env.get(RAGGED_VERIFY, "").strip() == "compact":
        raise PlanError(
            "graphs of compact verification are looked up by tokens, which is not planned; leave it static",
            fields=(f"engine.env.{RAGGED_VERIFY}",),
        )


def findings_of(deployment: Deployment, settings: Settings) -> Iterator[Finding]:
    """The findings that follow from the settings alone."""
    yield from _assumptions(settings)
    facts, prefill = settings.facts, settings.config.prefill
    if facts is not None and facts.is_multimodal and prefill.backend == BREAKABLE:
        yield Finding(
            severity=Severity.WARNING,
            code="assumed-multimodal-prefill",
            message="SGLang records the prefill of multimodal models on a list of its own, and runs that of "
            f"others eagerly; {facts.architecture or 'this model'} is taken to be on it",
            fix="sglang.cuda_graph_backend_prefill: breakable, or disabled",
        )
    is_unaligned = any(size % ALIGNED for size in prefill.bs or ())
    if settings.layout.a2a == DEEPEP and prefill.backend == BREAKABLE and is_unaligned:
        yield Finding(
            severity=Severity.INFO,
            code="unaligned-sizes",
            message=f"prefill sizes are no multiples of {ALIGNED} tokens, which DeepEP takes: cutting the "
            "chunk up for the ranks of data-parallel attention made the list anew",
        )
    if deployment.lora is not None:
        yield Finding(
            severity=Severity.ERROR,
            code="unplanned-family",
            message="the server captures graphs with LoRA adapters and without, which this plan does not "
            "tell apart: which of them it makes depends on the LoRA backend",
            fix="leave lora out, and count the decode graphs twice",
        )


def _assumptions(settings: Settings) -> Iterator[Finding]:
    if settings.kv_tokens is None:
        yield Finding(
            severity=Severity.INFO,
            code="assumed-kv-cache",
            message=f"the KV cache of a rank is taken to hold {settings.request_pool} requests; where it has "
            f"fewer than {2 * settings.request_pool} tokens, the server captures fewer decode graphs",
            fix="model.num_kv_blocks and block_size",
        )
    if settings.facts is None:
        yield Finding(
            severity=Severity.INFO,
            code="assumed-model",
            message="without model.config, the model is taken to have plain attention and no images",
            fix="model.config",
        )
    elif settings.facts.mamba_state is not None:
        yield Finding(
            severity=Severity.INFO,
            code="assumed-state-cache",
            message="the cache of the recurrent layers is taken to hold the state of all requests",
        )
    if settings.speculation is not None and settings.speculation.is_eagle:
        yield Finding(
            severity=Severity.INFO,
            code="assumed-draft-layout",
            message="the draft is taken to have one layer of modules, and an attention backend whose extend "
            "pass SGLang records",
        )
