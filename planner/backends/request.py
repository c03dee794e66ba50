"""What the engine's choice of attention backends follows from."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, field, frozen

from planner.backends.environment import Capability, Environment
from planner.documents.deployment import Deployment, SpeculativeSection
from planner.errors import PlanError
from planner.methods import DFLASH_METHODS
from planner.models.facts import ModelFacts
from planner.modes import Runner

DRAFT_MODEL_METHODS = frozenset({"eagle", "eagle3", "draft_model"}) | DFLASH_METHODS
"""Speculative methods whose draft is a model of its own; those of MTP come with the target."""


PER_KIND_FIELD = "attention.backend_per_kind"

BACKEND_KINDS = (
    "full_attention",
    "sliding_window",
    "mla_attention",
    "sliding_window_mla",
    "cross_attention",
    "encoder_only_attention",
)
"""Kinds of layers that ask for a backend; a chunked-local layer asks as one of full attention."""


@frozen(kw_only=True)
class BackendRequest:
    """A model, its draft, and the settings that bear on attention backends.

    ``None`` means that the user left a setting open. ``draft`` is ``None`` where there is none
    or its config is not known. ``attention_backend_field`` is the setting that ``attention_backend``
    comes from. ``backend_per_kind`` is that of vLLM's AttentionConfig: a backend for each kind of
    layers.
    """

    target: ModelFacts
    draft: ModelFacts | None = None
    environment: Environment
    runner: Runner = Runner.V2
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    block_size: int | None = None
    attention_backend: str | None = None
    attention_backend_field: str = "model.attention_backend"
    backend_per_kind: Mapping[str, str] = field(factory=dict)
    tensor_parallel_size: int = 1
    speculative_method: str | None = None
    draft_attention_backend: str | None = None
    draft_kv_cache_dtype: str | None = None
    draft_tensor_parallel_size: int | None = None

    @property
    def is_dflash(self) -> bool:
        """Whether the draft proposes whole blocks, as DFlash and its relatives do."""
        return self.speculative_method in DFLASH_METHODS

    @property
    def is_mtp(self) -> bool:
        """Whether the target's own multi-token-prediction layers draft."""
        return self.speculative_method is not None and self.speculative_method.endswith("mtp")

    @property
    def has_draft_layers(self) -> bool:
        """Whether the draft has attention layers at all; n-gram and suffix matching have none."""
        return self.is_mtp or self.speculative_method in DRAFT_MODEL_METHODS


def backend_request(
    deployment: Deployment,
    *,
    target: ModelFacts,
    draft: ModelFacts | None,
    compute_capability: Capability,
    runner: Runner,
) -> BackendRequest:
    """The request that a deployment makes, with the facts of its models.

    Raises:
        PlanError: an environment variable that counts here is neither 0 nor 1, or a backend is named
            for a kind of layers that there is not.
    """
    model, speculative = deployment.model, deployment.speculative or SpeculativeSection()
    tensor_parallel_size = deployment.parallel.tensor_parallel_size or 1
    env = deployment_environment(deployment, compute_capability=compute_capability, runner=runner)
    return BackendRequest(
        target=target,
        draft=draft,
        environment=evolve(env, num_heads=(target.num_attention_heads or 0) // tensor_parallel_size),
        runner=runner,
        dtype=model.dtype,
        kv_cache_dtype=model.kv_cache_dtype,
        block_size=model.block_size,
        attention_backend=deployment.attention_backend,
        attention_backend_field=deployment.attention_backend_field,
        backend_per_kind=backends_per_kind(deployment),
        tensor_parallel_size=tensor_parallel_size,
        speculative_method=speculative.method,
        draft_attention_backend=speculative.attention_backend,
        draft_kv_cache_dtype=speculative.kv_cache_dtype,
        draft_tensor_parallel_size=speculative.draft_tensor_parallel_size,
    )


def deployment_environment(
    deployment: Deployment, *, compute_capability: Capability, runner: Runner
) -> Environment:
    """What all attention layers of a deployment share, as far as no model is needed.

    Raises:
        PlanError: an environment variable that counts here is neither 0 nor 1.
    """
    parallel, engine = deployment.parallel, deployment.engine
    speculative = deployment.speculative or SpeculativeSection()
    tokens = speculative.num_speculative_tokens or 0
    parallel_drafting = speculative.parallel_drafting or speculative.method in DFLASH_METHODS
    widened = 2 if runner is Runner.V1 and parallel_drafting else 1
    return Environment(
        capability=compute_capability,
        num_speculative_tokens=tokens,
        max_decode_query_len=1 + widened * tokens,
        decode_context_parallel_size=parallel.decode_context_parallel_size or 1,
        prefill_context_parallel_size=parallel.prefill_context_parallel_size or 1,
        adaptive_verification=bool(speculative.enable_adaptive_verification),
        batch_invariant=bool(engine.flag("VLLM_BATCH_INVARIANT")),
        flash_attn_version=deployment.attention.flash_attn_version,
        use_trtllm_attention=deployment.attention.use_trtllm_attention,
        cubins=engine.flag("VLLM_HAS_FLASHINFER_CUBIN") is not False,
    )


def backends_per_kind(deployment: Deployment) -> Mapping[str, str]:
    """The backend that is asked for by each kind of layers.

    Raises:
        PlanError: a kind that vLLM does not have.
    """
    asked = deployment.attention.backend_per_kind
    for kind in asked:
        if kind not in BACKEND_KINDS:
            raise PlanError(
                f"{kind!r} is no kind of layers that a backend can be asked for; those are: "
                f"{', '.join(BACKEND_KINDS)}",
                fields=(f"{PER_KIND_FIELD}.{kind}",),
            )
    return asked
