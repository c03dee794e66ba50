"""Settings: a deployment with every open value filled in, each fill recorded as a decision.

Later rules read settings only, so that a default is decided in one place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attrs import frozen

from planner.documents.deployment import Deployment, HfConfig
from planner.documents.plan import Decision, Microbatching
from planner.errors import PlanError
from planner.methods import DFLASH_METHODS, DSPARK, V1_DRAFT_METHODS, V1_SCHEDULED_METHODS, method_kind
from planner.modes import PerformanceMode, Runner, Usage
from planner.rules.breakable import breakable_reason
from planner.rules.devices import Device, batch_defaults, device_of
from planner.rules.lora import lora_cases
from planner.rules.runner import DEFAULT_RUNNER, choose_runner
from planner.rules.schedule import Tier, dense_schedule, schedule_fault, tiers_of

if TYPE_CHECKING:
    from planner.models.facts import ModelFacts

SUPPORTED_ENGINES = {"vllm": ("0.33",), "sglang": ("0.5.23",), "tensorrt-llm": ("1.2", "1.3")}

DEFAULT_DECODE_THRESHOLD = 32
DEFAULT_PREFILL_THRESHOLD = 512
BATCHED_EXPERTS_TOKENS = 256
"""vLLM 0.33's default token budget where expert kernels take a fixed batch from every rank."""

SCHEDULE_FIELD = "speculative.num_speculative_tokens_per_batch_size"


@frozen(kw_only=True)
class Settings:
    """What the rules work on; tokens and requests are those of one rank.

    ``num_speculative_tokens`` is 0 without speculative decoding. ``query_lens`` are the lengths
    that uniform decode batches may have, ``tiers`` the same with the widest batch of each.
    ``microbatching`` is ``None`` where no step is cut, ``target`` and ``draft`` where the model's
    config is not known, ``max_num_active_seqs`` where ``max_num_seqs`` alone limits a step.
    ``follows_schedule`` says that the number of draft tokens depends on the batch size,
    ``breakable_because`` why graphs are breakable, ``None`` where they are not.
    """

    runner: Runner
    optimization_level: int
    device: Device
    target: ModelFacts | None
    draft: ModelFacts | None
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_active_seqs: int | None
    data_parallel_size: int
    num_speculative_tokens: int
    tiers: tuple[Tier, ...]
    lora_cases: tuple[int, ...]
    microbatching: Microbatching | None
    follows_schedule: bool
    breakable_because: str | None
    decisions: tuple[Decision, ...]

    @property
    def query_len(self) -> int:
        """Tokens of a decode request: its sampled token and the drafts to verify."""
        return 1 + self.num_speculative_tokens

    @property
    def query_lens(self) -> tuple[int, ...]:
        """The query lengths in use, ascending."""
        return tuple(sorted({tier.query_len for tier in self.tiers}))


def settle(deployment: Deployment) -> Settings:
    """The settings of ``deployment``.

    Raises:
        PlanError: the engine would refuse a value, or graphplan does not know the engine.
    """
    require_supported_engine(deployment)
    engine = deployment.engine
    usage = engine.usage or Usage.API_SERVER
    performance_mode = engine.performance_mode or PerformanceMode.BALANCED
    device = device_of(deployment.device)
    target = _model_facts(deployment.model.config, "model.config")
    draft_config = deployment.speculative.config if deployment.speculative else None
    draft = _model_facts(draft_config, "speculative.config")
    ranks, rank_decisions = _lockstep_ranks(deployment, target)
    limits = _step_limits(deployment, target, device, usage, performance_mode, ranks)
    max_num_seqs = limits[0]
    draft_tokens = _num_speculative_tokens(deployment)
    _refuse_crowded_steps(deployment, draft_tokens, max_num_seqs, limits[1])
    active_seqs, active_decisions = _active_seqs(deployment, draft_tokens, max_num_seqs, limits[1])
    runner, runner_because = choose_runner(deployment, target=target, draft=draft)
    dense, schedule_decisions = _schedule(deployment, max_num_seqs, draft_tokens, runner)
    return Settings(
        runner=runner,
        optimization_level=2 if engine.optimization_level is None else engine.optimization_level,
        device=device,
        target=target,
        draft=draft,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=limits[1],
        max_num_active_seqs=active_seqs,
        data_parallel_size=ranks,
        num_speculative_tokens=draft_tokens,
        tiers=tiers_of(dense) if dense else (Tier(1 + draft_tokens, max_num_seqs),),
        lora_cases=_lora_cases(deployment, runner),
        microbatching=_microbatching(deployment, ranks),
        follows_schedule=bool(dense),
        breakable_because=breakable_reason(deployment, target),
        decisions=(
            *_engine_defaults(deployment, runner, runner_because),
            *rank_decisions,
            *limits[2],
            *active_decisions,
            *schedule_decisions,
        ),
    )


def require_supported_engine(deployment: Deployment) -> None:
    """Refuse an engine, or a version of one, whose rules are not known.

    Raises:
        PlanError: it is one of those.
    """
    engine = deployment.engine
    name = engine.name or "vllm"
    if name not in SUPPORTED_ENGINES:
        known = ", ".join(SUPPORTED_ENGINES)
        raise PlanError(
            f"{name!r} is no engine that can be planned for; those are: {known}", fields=("engine.name",)
        )
    versions = SUPPORTED_ENGINES[name]
    if engine.version is not None and engine.version not in versions:
        supported = ", ".join(versions)
        raise PlanError(
            f"the rules of {name} {engine.version!r} are not known; supported versions: {supported}",
            fields=("engine.version",),
        )


def _engine_defaults(deployment: Deployment, runner: Runner, because_runner: str) -> Iterator[Decision]:
    engine = deployment.engine
    open_values = (
        ("engine.runner", engine.runner, runner.value, because_runner),
        (
            "engine.version",
            engine.version,
            SUPPORTED_ENGINES["vllm"][-1],
            "the newest version whose rules are known",
        ),
        ("engine.usage", engine.usage, Usage.API_SERVER.value, "vllm serve"),
        (
            "engine.performance_mode",
            engine.performance_mode,
            PerformanceMode.BALANCED.value,
            "vLLM's default",
        ),
        ("engine.optimization_level", engine.optimization_level, 2, "vLLM's default"),
    )
    for path, asked, became, because in open_values:
        if asked is None:
            is_chosen = path == "engine.runner" and because != DEFAULT_RUNNER
            rule = "runner-choice" if is_chosen else "engine-default"
            yield Decision(path=path, became=became, rule=rule, because=because)


def _model_facts(config: HfConfig | None, field: str) -> ModelFacts | None:
    if config is None:
        return None
    from planner.models.facts import model_facts

    return model_facts(config.facts, field=field)


def is_moe_model(deployment: Deployment, target: ModelFacts | None) -> bool | None:
    """Whether the model has experts; ``None`` where neither the deployment nor a config says."""
    asked = deployment.parallel.is_moe_model
    return target.is_moe if asked is None and target is not None else asked


def _lockstep_ranks(deployment: Deployment, target: ModelFacts | None) -> tuple[int, tuple[Decision, ...]]:
    """Data-parallel ranks that agree on every step; those of a dense model run on their own."""
    ranks = deployment.parallel.data_parallel_size or 1
    if is_moe_model(deployment, target) is not False or ranks == 1:
        return ranks, ()
    independent = Decision(
        path="parallel.data_parallel_size",
        asked=ranks,
        became=1,
        rule="dense-ranks-are-independent",
        because=f"the model has no experts: each of the {ranks} ranks serves and captures by itself",
    )
    return 1, (independent,)


def _refuse_crowded_steps(
    deployment: Deployment, draft_tokens: int, max_num_seqs: int, max_num_batched_tokens: int
) -> None:
    """Refuses a step that has no room for a token of every request, or for the drafts of one.

    Source: vLLM 0.33, the checks of its scheduler config and of its speculative slots.
    """
    if max_num_seqs > max_num_batched_tokens:
        raise PlanError(
            f"{max_num_seqs} requests do not fit into a step of {max_num_batched_tokens} tokens; raise the "
            "one or lower the other",
            fields=("scheduler.max_num_seqs", "scheduler.max_num_batched_tokens"),
        )
    method = method_kind(deployment.speculative.method) if deployment.speculative else None
    drafts = method in V1_DRAFT_METHODS and method not in DFLASH_METHODS
    if drafts and max_num_batched_tokens <= draft_tokens:
        raise PlanError(
            f"a step of {max_num_batched_tokens} tokens has no room for one and its {draft_tokens} drafts; "
            "raise the one or lower the other",
            fields=("scheduler.max_num_batched_tokens", "speculative.num_speculative_tokens"),
        )


def _active_seqs(
    deployment: Deployment, draft_tokens: int, max_num_seqs: int, max_num_batched_tokens: int
) -> tuple[int | None, tuple[Decision, ...]]:
    """Most requests that a step schedules, where that is limited (rules 2.7, DFlash).

    Raises:
        PlanError: the drafts of one request leave nothing of the token budget.
    """
    asked = deployment.scheduler.max_num_active_seqs
    speculative = deployment.speculative
    if speculative is None or speculative.method not in DFLASH_METHODS:
        return asked, ()
    drafted = draft_tokens if speculative.method == DSPARK else draft_tokens + 1
    fitting = max_num_batched_tokens // drafted
    if max_num_batched_tokens <= drafted:
        raise PlanError(
            f"each request drafts {drafted} tokens, but the budget of a step is {max_num_batched_tokens}; "
            "raise the one or lower the other",
            fields=("scheduler.max_num_batched_tokens", "speculative.num_speculative_tokens"),
        )
    if fitting >= (asked or max_num_seqs):
        return asked, ()
    lowered = Decision(
        path="scheduler.max_num_active_seqs",
        asked=asked,
        became=fitting,
        rule="drafts-fit-the-token-budget",
        because=f"each request drafts {drafted} tokens of a budget of {max_num_batched_tokens}",
    )
    return fitting, (lowered,)


def _num_speculative_tokens(deployment: Deployment) -> int:
    speculative = deployment.speculative
    if speculative is None:
        return 0
    if speculative.num_speculative_tokens is None:
        raise PlanError(
            "the number of draft tokens is not given; write how many tokens are drafted a step",
            fields=("speculative.num_speculative_tokens",),
        )
    return speculative.num_speculative_tokens


def _step_limits(
    deployment: Deployment,
    target: ModelFacts | None,
    device: Device,
    usage: Usage,
    performance_mode: PerformanceMode,
    ranks: int,
) -> tuple[int, int, tuple[Decision, ...]]:
    """Requests and tokens of one step, and the decisions for those left open (rules 10.1)."""
    scheduler, parallel = deployment.scheduler, deployment.parallel
    defaults = batch_defaults(device, usage)
    seqs, tokens, because = defaults.max_num_seqs, defaults.max_num_batched_tokens, defaults.because
    token_reasons = [because]
    batched_experts = parallel.all2all_backend in ("deepep_low_latency", "nixl_ep")
    if parallel.enable_expert_parallel and batched_experts and ranks > 1:
        tokens = BATCHED_EXPERTS_TOKENS
        token_reasons = [f"expert batches of all2all_backend {parallel.all2all_backend}"]
    if performance_mode is PerformanceMode.THROUGHPUT:
        seqs, tokens = 2 * seqs, 2 * tokens
        because += ", doubled by performance_mode throughput"
        token_reasons.append("doubled by performance_mode throughput")
    if scheduler.max_num_seqs is not None:
        seqs = scheduler.max_num_seqs
    model_len = deployment.model.max_model_len or (target and target.max_position_embeddings)
    if scheduler.enable_chunked_prefill is False and model_len and model_len > tokens:
        tokens = model_len
        token_reasons.append("raised to the model length, as prefill is not chunked")
    if model_len and seqs * model_len < tokens:
        tokens = seqs * model_len
        token_reasons.append(f"no more than {seqs} requests of {model_len} tokens")
    if scheduler.max_num_batched_tokens is not None:
        tokens = scheduler.max_num_batched_tokens
    decisions = []
    if scheduler.max_num_seqs is None:
        if tokens < seqs:
            seqs = tokens
            because += f", no more than the token budget {tokens}"
        decisions.append(
            Decision(path="scheduler.max_num_seqs", became=seqs, rule="device-default", because=because)
        )
    if scheduler.max_num_batched_tokens is None:
        because = ", ".join(token_reasons)
        path = "scheduler.max_num_batched_tokens"
        decisions.append(Decision(path=path, became=tokens, rule="device-default", because=because))
    return seqs, tokens, tuple(decisions)


def _schedule(
    deployment: Deployment, max_num_seqs: int, draft_tokens: int, runner: Runner
) -> tuple[tuple[int, ...], tuple[Decision, ...]]:
    """Draft tokens by batch size, empty where the number is fixed."""
    speculative = deployment.speculative
    if speculative is None or speculative.num_speculative_tokens_per_batch_size is None:
        return (), ()
    schedule = speculative.num_speculative_tokens_per_batch_size
    # Also where they turn out to be independent, which the engine finds out later.
    ranks = deployment.parallel.data_parallel_size or 1
    rule, because = dropped_schedule(speculative.method, ranks, runner)
    if rule:
        dropped = Decision(
            path=SCHEDULE_FIELD,
            asked=[list(entry) for entry in schedule],
            became=None,
            rule=rule,
            because=f"{because}; {draft_tokens} tokens are drafted at every batch size",
        )
        return (), (dropped,)
    fault = schedule_fault(schedule)
    if fault is not None:
        raise PlanError(f"the schedule is refused: {fault}", fields=(SCHEDULE_FIELD,))
    return dense_schedule(schedule, max_num_seqs, draft_tokens), ()


def dropped_schedule(method: str | None, ranks: int, runner: Runner) -> tuple[str, str]:
    """The rule that drops a schedule and its reason, both empty where it stays (rules 3.5)."""
    if ranks > 1:
        because = f"{ranks} data-parallel ranks in lock-step could draft different lengths"
        return "schedule-needs-one-rank", because
    if runner is Runner.V1 and method is not None and method_kind(method) not in V1_SCHEDULED_METHODS:
        known = ", ".join(sorted(V1_SCHEDULED_METHODS))
        return (
            "schedule-needs-method",
            f"the v1 runner follows one for the methods {known} only, not {method}",
        )
    return "", ""


def _lora_cases(deployment: Deployment, runner: Runner) -> tuple[int, ...]:
    lora = deployment.lora
    if lora is None:
        return (0,)
    specialize = deployment.compilation.cudagraph_specialize_lora
    return lora_cases(
        1 if lora.max_loras is None else lora.max_loras,
        specialize_active_lora=bool(lora.specialize_active_lora),
        specialize_lora=True if specialize is None else specialize,
        runner=runner,
    )


def _microbatching(deployment: Deployment, ranks: int) -> Microbatching | None:
    """Microbatches of one step; only ranks in lock-step ever cut one.

    Raises:
        PlanError: a threshold below the number of microbatches, or an all-to-all backend that
            cannot overlap.
    """
    parallel = deployment.parallel
    num_ubatches = parallel.num_ubatches
    if num_ubatches == 1:
        return None
    decode = parallel.dbo_decode_token_threshold
    prefill = parallel.dbo_prefill_token_threshold
    microbatching = Microbatching(
        num_ubatches=num_ubatches,
        decode_token_threshold=DEFAULT_DECODE_THRESHOLD if decode is None else decode,
        prefill_token_threshold=DEFAULT_PREFILL_THRESHOLD if prefill is None else prefill,
    )
    for name, threshold in (
        ("dbo_decode_token_threshold", microbatching.decode_token_threshold),
        ("dbo_prefill_token_threshold", microbatching.prefill_token_threshold),
    ):
        if threshold < num_ubatches:
            raise PlanError(
                f"the threshold is {threshold} tokens, fewer than the {num_ubatches} microbatches; "
                f"raise it to {num_ubatches} at least",
                fields=(f"parallel.{name}",),
            )
    overlapping = ("deepep_low_latency", "deepep_high_throughput", "nixl_ep")
    backend = parallel.all2all_backend or "allgather_reducescatter"
    if backend not in overlapping:
        raise PlanError(
            f"microbatches are on but all2all_backend is {backend}; choose one of {', '.join(overlapping)}, "
            "or turn enable_dbo off",
            fields=("parallel.all2all_backend", "parallel.enable_dbo"),
        )
    return microbatching if ranks > 1 else None
