"""Deployment: what a user wants, under the names of vLLM's own configs.

``None`` means "not given": the engine's default then applies, and the plan records which. Nothing
here is ever changed; what the engine makes of a value is a decision of the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from attrs import field, frozen

from planner.descriptors import MAX_GRAPH_TOKENS, MAX_LORAS
from planner.documents.engine_sections import SglangSection, TensorrtLlmSection
from planner.documents.units import GIB, SECONDS, SHARE, UNIT
from planner.errors import PlanError
from planner.modes import (
    AttentionSupport,
    CapturePolicy,
    CompilationMode,
    CUDAGraphMode,
    PerformanceMode,
    Runner,
    Usage,
)
from planner.traffic.histogram import Histogram

API_VERSION = "graphplan/v1"

Json = Any
"""A value as JSON has it: None, bool, int, float, str, or lists and str-keyed mappings of them."""


def within(minimum: int, maximum: int | None = None) -> dict[str, int]:
    """Field metadata: the smallest and the largest value that the field takes."""
    return {"minimum": minimum} if maximum is None else {"minimum": minimum, "maximum": maximum}


def unless_auto(backend: str | None) -> str | None:
    """The name of an attention backend as vLLM spells it, ``None`` where the engine is to choose."""
    return None if backend is None or backend.casefold() == "auto" else backend.upper()


@frozen(kw_only=True)
class HfConfig:
    """What planning uses of one Hugging Face ``config.json``.

    ``facts`` are its own keys and values, ``sha256`` the hexadecimal digest of the file's bytes
    (of the canonical JSON of ``facts`` where a user wrote them inline).
    """

    facts: Mapping[str, Json]
    sha256: str


@frozen(kw_only=True)
class EngineSection:
    """The engine that will serve, and how it is started."""

    name: str | None = None
    version: str | None = None
    runner: Runner | None = field(default=None, metadata={"choices": (Runner.V1, Runner.V2)})
    usage: Usage | None = None
    performance_mode: PerformanceMode | None = None
    optimization_level: int | None = field(default=None, metadata=within(0, 3))
    env: Mapping[str, str] = field(factory=dict)

    def flag(self, name: str) -> bool | None:
        """The environment variable ``name`` as a switch, ``None`` where it is not set.

        Raises:
            PlanError: it is set to something that is neither 0 nor 1.
        """
        value = self.env.get(name, "").strip()
        if value not in ("", "0", "1"):
            raise PlanError(f"{name} is {value!r}; set it to 0 or 1", fields=(f"engine.env.{name}",))
        return value == "1" if value else None


@frozen(kw_only=True)
class ModelSection:
    """The model, and what its attention can replay.

    ``attention_support`` wins over ``attention_backends`` (one a KV group), which wins over
    ``attention_backend``. ``varlen_max_query_len`` is the largest number of tokens a request may
    have in a FULL graph over mixed query lengths. ``num_kv_blocks`` bounds the state blocks of
    Mamba layers.
    """

    config: HfConfig | None = None
    max_model_len: int | None = field(default=None, metadata=within(1))
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    block_size: int | None = field(default=None, metadata=within(1))
    num_kv_blocks: int | None = field(default=None, metadata=within(0))
    enforce_eager: bool | None = None
    attention_backend: str | None = None
    attention_backends: tuple[str, ...] | None = None
    attention_support: AttentionSupport | None = None
    varlen_max_query_len: int | None = field(default=None, metadata=within(1))


@frozen(kw_only=True)
class AttentionSection:
    """vLLM's AttentionConfig: takes whatever users pass to ``--attention-config``.

    ``backend`` is another spelling of ``model.attention_backend``; ``backend_per_kind`` wins over
    both for layers of its kinds. The presence of ``hisparse_config`` turns HiSparse on.
    """

    vllm_config: ClassVar[str] = "AttentionConfig"

    backend: str | None = None
    backend_per_kind: Mapping[str, str] = field(factory=dict)
    flash_attn_version: int | None = field(default=None, metadata={"choices": (2, 3, 4)})
    use_trtllm_attention: bool | None = None
    hisparse_config: Mapping[str, Json] | None = None
    ignored: Mapping[str, Json] = field(factory=dict)


@frozen(kw_only=True)
class ParallelSection:
    """vLLM's ParallelConfig. ``enable_dp_attention`` is SGLang's and TensorRT-LLM's."""

    vllm_config: ClassVar[str] = "ParallelConfig"

    tensor_parallel_size: int | None = field(default=None, metadata=within(1))
    data_parallel_size: int | None = field(default=None, metadata=within(1))
    pipeline_parallel_size: int | None = field(default=None, metadata=within(1))
    prefill_context_parallel_size: int | None = field(default=None, metadata=within(1))
    decode_context_parallel_size: int | None = field(default=None, metadata=within(1))
    enable_dp_attention: bool | None = None
    enable_expert_parallel: bool | None = None
    is_moe_model: bool | None = None
    all2all_backend: str | None = None
    distributed_executor_backend: str | None = None
    enable_dbo: bool | None = None
    ubatch_size: int | None = field(default=None, metadata=within(0))
    dbo_decode_token_threshold: int | None = field(default=None, metadata=within(0))
    dbo_prefill_token_threshold: int | None = field(default=None, metadata=within(0))
    ignored: Mapping[str, Json] = field(factory=dict)

    @property
    def num_ubatches(self) -> int:
        """Microbatches that a step may be cut into; 1 where none are asked for."""
        return 2 if self.enable_dbo else max(self.ubatch_size or 0, 1)


@frozen(kw_only=True)
class SchedulerSection:
    """vLLM's SchedulerConfig. Tokens and requests are counted for one data-parallel rank.

    SGLang counts both over the ranks of its data-parallel attention, and takes -1 tokens for prefill
    that is not chunked.
    """

    vllm_config: ClassVar[str] = "SchedulerConfig"

    max_num_seqs: int | None = field(default=None, metadata=within(1, MAX_GRAPH_TOKENS))
    max_num_batched_tokens: int | None = None
    max_num_active_seqs: int | None = field(default=None, metadata=within(1))
    enable_chunked_prefill: bool | None = None
    async_scheduling: bool | None = None
    runner_type: str | None = None
    ignored: Mapping[str, Json] = field(factory=dict)


@frozen(kw_only=True)
class SpeculativeSection:
    """vLLM's SpeculativeConfig. The two keys of the project's own describe the draft model.

    ``num_speculative_tokens_per_batch_size`` holds triples (first batch size, last batch size,
    draft tokens), both ends included.
    """

    vllm_config: ClassVar[str] = "SpeculativeConfig"

    method: str | None = None
    model: str | None = None
    config: HfConfig | None = None
    num_speculative_tokens: int | None = field(default=None, metadata=within(1, MAX_GRAPH_TOKENS))
    num_speculative_tokens_per_batch_size: tuple[tuple[int, ...], ...] | None = None
    enforce_eager: bool | None = None
    parallel_drafting: bool | None = None
    use_heterogeneous_vocab: bool | None = None
    enable_adaptive_verification: bool | None = None
    draft_tensor_parallel_size: int | None = field(default=None, metadata=within(1))
    kv_cache_dtype: str | None = None
    attention_backend: str | None = None
    attention_support: AttentionSupport | None = None
    ignored: Mapping[str, Json] = field(factory=dict)


@frozen(kw_only=True)
class LoraSection:
    """vLLM's LoRAConfig. Its presence in a document turns LoRA on."""

    vllm_config: ClassVar[str] = "LoRAConfig"

    max_loras: int | None = field(default=None, metadata=within(1, MAX_LORAS))
    specialize_active_lora: bool | None = None
    ignored: Mapping[str, Json] = field(factory=dict)


@frozen(kw_only=True)
class CompilationSection:
    """vLLM's CompilationConfig: takes whatever users pass to ``--compilation-config``."""

    vllm_config: ClassVar[str] = "CompilationConfig"

    mode: CompilationMode | None = None
    cudagraph_mode: CUDAGraphMode | None = None
    cudagraph_capture_sizes: tuple[int, ...] | None = field(
        default=None, metadata=within(1, MAX_GRAPH_TOKENS)
    )
    max_cudagraph_capture_size: int | None = field(default=None, metadata=within(0, MAX_GRAPH_TOKENS))
    cudagraph_specialize_lora: bool | None = None
    use_inductor_graph_partition: bool | None = None
    splitting_ops: tuple[str, ...] | None = None
    compile_sizes: tuple[int | str, ...] | None = None
    pass_config: Mapping[str, Json] | None = None
    cudagraph_mm_encoder: bool | None = None
    encoder_cudagraph_token_budgets: tuple[int, ...] | None = field(
        default=None, metadata=within(0, MAX_GRAPH_TOKENS)
    )
    encoder_cudagraph_max_vision_items_per_batch: int | None = field(
        default=None, metadata=within(0, MAX_GRAPH_TOKENS)
    )
    cudagraph_decoder_replay: bool | None = None
    decoder_replay_cudagraph_capture_sizes: tuple[int, ...] | None = field(
        default=None, metadata=within(1, MAX_GRAPH_TOKENS)
    )
    ignored: Mapping[str, Json] = field(factory=dict)


@frozen(kw_only=True)
class KvTransferSection:
    """vLLM's KVTransferConfig: takes whatever users pass to ``--kv-transfer-config``."""

    vllm_config: ClassVar[str] = "KVTransferConfig"

    kv_connector: str | None = None
    kv_connector_extra_config: Mapping[str, Json] = field(factory=dict)
    kv_connector_module_path: str | None = None
    ignored: Mapping[str, Json] = field(factory=dict)


@frozen(kw_only=True)
class DeviceSection:
    """The accelerator of one rank. ``memory_gib`` is its whole memory in GiB."""

    name: str | None = None
    compute_capability: str | None = None
    memory_gib: float | None = field(default=None, metadata={**within(0), UNIT: GIB})


@frozen(kw_only=True)
class CaptureSection:
    """How the capture sizes are chosen: by whom, for what traffic, and within which limits.

    ``traffic`` is the file of a histogram, or ``cache`` for the counts of a cache;
    ``traffic_sha256`` is the digest of what was counted, which stands in plans. ``max_graphs`` bounds
    the graphs of one mode and LoRA case, that is the capture sizes; ``max_padding`` the share of
    padded tokens, from 0 to 1; ``memory_budget`` GiB of all graphs of one rank; ``startup_budget``
    the seconds that their capture takes. ``step_times`` are measured pairs (tokens, seconds of a
    step); without them a step costs its tokens.
    """

    policy: CapturePolicy | None = None
    traffic: str | None = None
    traffic_sha256: str | None = None
    max_graphs: int | None = field(default=None, metadata=within(1, MAX_GRAPH_TOKENS))
    max_padding: float | None = field(default=None, metadata={**within(0, 1), UNIT: SHARE})
    memory_budget: float | None = field(default=None, metadata={**within(0), UNIT: GIB})
    startup_budget: float | None = field(default=None, metadata={**within(0), UNIT: SECONDS})
    step_times: tuple[tuple[float, ...], ...] | None = None
    histogram: Histogram | None = None

    @property
    def limits(self) -> dict[str, int | float]:
        """The limits that are given, by their name."""
        names = ("max_graphs", "max_padding", "memory_budget", "startup_budget")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @property
    def unused(self) -> Iterator[str]:
        """The keys that are given and that the policy makes nothing of."""
        if self.policy is not CapturePolicy.TRAFFIC:
            yield from (name for name in ("traffic", "step_times") if getattr(self, name) is not None)
        if self.policy in (None, CapturePolicy.ENGINE):
            yield from self.limits


@frozen(kw_only=True)
class Deployment:
    """One serving deployment. Every section is optional; an absent one means all defaults.

    ``speculative`` and ``lora`` are ``None`` where the deployment does without.
    """

    name: str | None = None
    engine: EngineSection = field(factory=EngineSection)
    model: ModelSection = field(factory=ModelSection)
    attention: AttentionSection = field(factory=AttentionSection)
    parallel: ParallelSection = field(factory=ParallelSection)
    scheduler: SchedulerSection = field(factory=SchedulerSection)
    speculative: SpeculativeSection | None = None
    lora: LoraSection | None = None
    compilation: CompilationSection = field(factory=CompilationSection)
    kv_transfer: KvTransferSection = field(factory=KvTransferSection)
    sglang: SglangSection | None = None
    tensorrt_llm: TensorrtLlmSection | None = None
    device: DeviceSection = field(factory=DeviceSection)
    capture: CaptureSection = field(factory=CaptureSection)

    @property
    def attention_backend(self) -> str | None:
        """The backend that is asked for all of the target's layers, under either of its spellings.

        ``None`` means that the engine chooses, which ``auto`` asks for as well.

        Raises:
            PlanError: the two spellings name different backends.
        """
        by_model, by_section = unless_auto(self.model.attention_backend), unless_auto(self.attention.backend)
        if by_model and by_section and by_model != by_section:
            raise PlanError(
                f"{by_model} and {by_section} are both asked for; drop one of the two",
                fields=("model.attention_backend", "attention.backend"),
            )
        return by_model or by_section

    @property
    def attention_backend_field(self) -> str:
        """Dotted path of the setting that ``attention_backend`` comes from."""
        return "attention.backend" if unless_auto(self.attention.backend) else "model.attention_backend"

    @property
    def uses_hisparse(self) -> bool:
        """Whether sparse MLA keeps its cache in host memory and reads the hot part alone."""
        return self.attention.hisparse_config is not None

    @property
    def verifies_adaptively(self) -> bool:
        """Whether drafts are verified in numbers that differ by request."""
        return self.speculative is not None and bool(self.speculative.enable_adaptive_verification)

    def ignored_paths(self) -> Iterator[str]:
        """Dotted paths of settings that vLLM knows and planning does not use."""
        for name in (
            *("attention", "parallel", "scheduler", "speculative", "lora", "compilation"),
            "kv_transfer",
        ):
            section = getattr(self, name)
            if section is not None:
                yield from (f"{name}.{key}" for key in section.ignored)
        yield from (f"capture.{key}" for key in self.capture.unused)
