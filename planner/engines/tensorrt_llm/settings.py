"""TensorRT-LLM's settings: a deployment with every open value filled in.

Source: TensorRT-LLM's PyTorch backend as of its 1.3.0rc series, CUDA-graph config, executor and
graph runner (rules 1 to 6); read, never executed.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from planner.describe import range_fault
from planner.descriptors import MAX_GRAPH_TOKENS
from planner.documents.deployment import Deployment
from planner.documents.engine_sections import (
    TensorrtCudaGraphConfig,
    TensorrtLlmSection,
    TensorrtSpeculativeConfig,
)
from planner.documents.plan import Decision
from planner.engines.shared import TOKENS_FIELD
from planner.engines.tensorrt_llm.sizes import DEFAULT_MAXIMUM, OLDER_GRID_VERSIONS, generated_sizes
from planner.errors import PlanError
from planner.rules.settings import SUPPORTED_ENGINES

SEQS_FIELD = "scheduler.max_num_seqs"
CONFIG_FIELD = "tensorrt_llm.cuda_graph_config"
SIZES_FIELD = f"{CONFIG_FIELD}.batch_sizes"
MAX_FIELD = f"{CONFIG_FIELD}.max_batch_size"
PADDING_FIELD = f"{CONFIG_FIELD}.enable_padding"
SCHEDULE_FIELD = "tensorrt_llm.speculative_config.draft_len_schedule"
DRAFT_FIELD = "speculative.num_speculative_tokens"
PREFILL_BACKEND_FIELD = "tensorrt_llm.prefill_cuda_graph_backend"
PREFILL_SIZES_FIELD = "tensorrt_llm.prefill_capture_num_tokens"
COMPILE_FIELD = "tensorrt_llm.torch_compile_config"

DEFAULT_MAX_BATCH_SIZE = 2048
DEFAULT_MAX_NUM_TOKENS = 8192

DISABLED = "disabled"
SAVE_HIDDEN_STATES = "savehiddenstates"


@frozen(kw_only=True)
class Settings:
    """What the captures of a server follow from; requests and tokens are those of one rank.

    ``batch_sizes`` are those of the config, ascending, ``None`` where decode has no graphs.
    ``draft_len`` is the most drafts of a request; ``schedule`` has the draft length up to each number
    of requests, in ascending order, and is empty where the length is fixed.
    """

    batch_sizes: tuple[int, ...] | None
    padding: bool
    max_batch_size: int
    max_num_tokens: int
    max_seq_len: int | None
    beam_width: int
    draft_len: int
    schedule: tuple[tuple[int, int], ...]
    attention_ranks: int
    prefill_backend: str
    prefill_sizes: tuple[int, ...]
    decisions: tuple[Decision, ...]

    @property
    def limit(self) -> int:
        """Requests of the largest batch of decode."""
        return min(self.max_batch_size, self.max_num_tokens // (1 + self.draft_len))

    def draft_len_of(self, num_reqs: int) -> int:
        """Drafts of each request in a batch of so many."""
        if not self.schedule:
            return self.draft_len
        return next((length for most, length in self.schedule if num_reqs <= most), 0)

    def query_len(self, draft_len: int) -> int:
        """Tokens of a request with so many drafts, over all of its beams."""
        return self.beam_width * (draft_len + 1)


def settle(deployment: Deployment) -> Settings:
    """The settings of ``deployment``.

    Raises:
        PlanError: the engine would refuse a value, or its graphs cannot be planned.
    """
    section = deployment.tensorrt_llm or TensorrtLlmSection()
    config = section.cuda_graph_config
    if config is not None and config.is_of_encoder:
        raise PlanError("graphs of encoders are not planned; leave it out", fields=(CONFIG_FIELD,))
    max_batch_size, max_num_tokens, decisions = _limits(deployment)
    speculative = deployment.speculative
    if _saves_hidden_states(deployment):
        config, max_batch_size = None, 1
        because = f"method {speculative.method if speculative else ''} runs one request at a time"
        decisions = (
            *decisions,
            Decision(path=CONFIG_FIELD, became=None, rule="save-hidden-states", because=because),
        )
    draft_len, schedule = _drafts(deployment, section.speculative_config)
    sizes, padding, size_decisions = _sizes(deployment, config, schedule)
    backend, prefill_sizes, prefill_decisions = _prefill(section, sizes)
    tp = deployment.parallel.tensor_parallel_size or 1
    return Settings(
        batch_sizes=sizes,
        padding=padding,
        max_batch_size=max_batch_size,
        max_num_tokens=max_num_tokens,
        max_seq_len=deployment.model.max_model_len,
        beam_width=section.max_beam_width or 1,
        draft_len=draft_len,
        schedule=schedule,
        attention_ranks=tp if deployment.parallel.enable_dp_attention else 1,
        prefill_backend=backend,
        prefill_sizes=prefill_sizes,
        decisions=(*decisions, *size_decisions, *prefill_decisions),
    )


def _limits(deployment: Deployment) -> tuple[int, int, tuple[Decision, ...]]:
    scheduler = deployment.scheduler
    seqs, tokens = scheduler.max_num_seqs, scheduler.max_num_batched_tokens
    defaults = (
        (SEQS_FIELD, seqs, DEFAULT_MAX_BATCH_SIZE),
        (TOKENS_FIELD, tokens, DEFAULT_MAX_NUM_TOKENS),
    )
    because = "trtllm-serve's default, as far as it is known"
    decisions = tuple(
        Decision(path=path, became=default, rule="engine-limit", because=because)
        for path, asked, default in defaults
        if asked is None
    )
    return seqs or DEFAULT_MAX_BATCH_SIZE, tokens or DEFAULT_MAX_NUM_TOKENS, decisions


def _saves_hidden_states(deployment: Deployment) -> bool:
    method = (deployment.speculative.method if deployment.speculative else None) or ""
    return method.replace("_", "").casefold() == SAVE_HIDDEN_STATES


def _drafts(
    deployment: Deployment, config: TensorrtSpeculativeConfig | None
) -> tuple[int, tuple[tuple[int, int], ...]]:
    """The most drafts of a request, and the schedule."""
    speculative = deployment.speculative
    if speculative is None:
        if config is not None:
            raise PlanError(
                "given without speculative.method, so that nothing is drafted; write it",
                fields=("tensorrt_llm.speculative_config",),
            )
        return 0, ()
    schedule = _schedule(config.draft_len_schedule or {}) if config else ()
    asked = (config and config.total_draft_tokens) or speculative.num_speculative_tokens
    longest = max((length for _, length in schedule), default=0)
    if asked is None and not schedule:
        if _saves_hidden_states(deployment):
            return 0, ()
        raise PlanError(
            "the number of draft tokens is not given; write how many tokens are drafted a step",
            fields=(DRAFT_FIELD,),
        )
    if asked is not None and longest > asked:
        raise PlanError(
            f"the schedule drafts up to {longest} tokens, but {asked} are given as the most",
            fields=(SCHEDULE_FIELD, DRAFT_FIELD),
        )
    return asked or longest, schedule


def _schedule(asked: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
    schedule: dict[int, int] = {}
    for key, length in asked.items():
        if not key.isascii() or not key.isdecimal() or not 0 < len(key) < 8 or int(key) < 1:
            raise PlanError(f"{key!r} is no number of requests; write 1 or more", fields=(SCHEDULE_FIELD,))
        if fault := range_fault(length, 0, MAX_GRAPH_TOKENS):
            raise PlanError(f"draft length {fault}", fields=(f"{SCHEDULE_FIELD}.{key}",))
        schedule[int(key)] = length
    return tuple(sorted(schedule.items()))


def widest_batches(section: TensorrtLlmSection, num_reqs: int) -> Mapping[int, int]:
    """The most requests of decode with each scheduled number of tokens, up to ``num_reqs``."""
    config = section.speculative_config
    schedule = _schedule(config.draft_len_schedule or {}) if config else ()
    beams = section.max_beam_width or 1
    widest = {beams * (length + 1): most for most, length in schedule}
    return {**widest, beams: num_reqs} if schedule else {}


def _sizes(
    deployment: Deployment, config: TensorrtCudaGraphConfig | None, schedule: tuple[tuple[int, int], ...]
) -> tuple[tuple[int, ...] | None, bool, tuple[Decision, ...]]:
    """The config's batch sizes, whether batches are padded to them, and how that came about."""
    if config is None:
        return None, False, ()
    decisions: list[Decision] = []
    padding = bool(config.enable_padding)
    if schedule and not padding:
        because = "the engine pads wherever draft lengths follow a schedule"
        asked = config.enable_padding
        decisions.append(
            Decision(path=PADDING_FIELD, asked=asked, became=True, rule="schedule-pads", because=because)
        )
        padding = True
    if config.batch_sizes:
        sizes = tuple(sorted(config.batch_sizes))
        if config.max_batch_size and config.max_batch_size != sizes[-1]:
            raise PlanError(
                f"the largest size is {sizes[-1]} but the maximum is {config.max_batch_size}; make them "
                "equal, or drop the maximum",
                fields=(SIZES_FIELD, MAX_FIELD),
            )
    else:
        sizes, decision = _default_sizes(deployment, config)
        decisions.append(decision)
    merged = tuple(sorted({*sizes, *(most for most, _ in schedule if most <= sizes[-1])}))
    if schedule and merged != sizes:
        because = "a size for each batch at which the draft length changes"
        decisions.append(
            Decision(path=SIZES_FIELD, became=list(merged), rule="schedule-sizes", because=because)
        )
    return merged, padding, tuple(decisions)


def _default_sizes(
    deployment: Deployment, config: TensorrtCudaGraphConfig
) -> tuple[tuple[int, ...], Decision]:
    maximum, padding = config.max_batch_size or DEFAULT_MAXIMUM, bool(config.enable_padding)
    version = deployment.engine.version or SUPPORTED_ENGINES["tensorrt-llm"][-1]
    sizes = generated_sizes(maximum, padding=padding, doubling=version in OLDER_GRID_VERSIONS)
    whose = "asked for" if config.max_batch_size else "the engine's default"
    because = f"the grid {'with' if padding else 'without'} padding up to {maximum} requests, {whose}"
    return sizes, Decision(path=SIZES_FIELD, became=list(sizes), rule="sizes-default", because=because)


def _prefill(
    section: TensorrtLlmSection, decode_sizes: tuple[int, ...] | None
) -> tuple[str, tuple[int, ...], tuple[Decision, ...]]:
    """Backend and sizes of prefill, under their present or their older keys."""
    older = section.torch_compile_config
    backend, sizes = section.prefill_cuda_graph_backend, section.prefill_capture_num_tokens
    if older is not None and older.enable_piecewise_cuda_graph is not None:
        meant = "piecewise" if older.enable_piecewise_cuda_graph else DISABLED
        if backend is not None and backend != meant:
            raise PlanError(
                f"{backend} and {meant} are both asked for; drop the older of the two",
                fields=(PREFILL_BACKEND_FIELD, f"{COMPILE_FIELD}.enable_piecewise_cuda_graph"),
            )
        backend = meant
    if older is not None and older.capture_num_tokens is not None:
        if sizes is not None and set(sizes) != set(older.capture_num_tokens):
            raise PlanError(
                "two different lists are given; drop the older of the two",
                fields=(PREFILL_SIZES_FIELD, f"{COMPILE_FIELD}.capture_num_tokens"),
            )
        sizes = older.capture_num_tokens
    if backend in (None, DISABLED):
        return DISABLED, (), ()
    if sizes is not None:
        return backend or DISABLED, sizes, ()
    became = decode_sizes or ()
    because = "not given: the engine takes the batch sizes of decode for numbers of tokens"
    decision = Decision(
        path=PREFILL_SIZES_FIELD, became=list(became), rule="prefill-sizes-default", because=because
    )
    return backend or DISABLED, became, (decision,)
