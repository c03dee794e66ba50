"""Capture sizes: from the user's settings, or the engine's default grid, to the sizes in force.

Source: vLLM 0.33, size computation of the engine config (rules 2.3 to 2.5).
"""

from __future__ import annotations

from attrs import frozen

from planner.documents.deployment import Deployment, HfConfig
from planner.documents.plan import Decision
from planner.errors import PlanError
from planner.modes import PerformanceMode
from planner.rules.devices import device_of
from planner.rules.schedule import Tier

SIZES_FIELD = "compilation.cudagraph_capture_sizes"
MAX_FIELD = "compilation.max_cudagraph_capture_size"
TOKENS_FIELD = "scheduler.max_num_batched_tokens"

MODEL_MAXIMA = {"GptOssForCausalLM": 1024}
"""Largest capture size in tokens that the engine sets by architecture where the user sets no size."""

INTERACTIVE_SIZES = 32
"""Up to here the interactivity mode captures every size."""


@frozen(kw_only=True)
class SizeRequest:
    """What capture sizes follow from; all counts are tokens of one rank but ``max_num_seqs``.

    ``asked_sizes`` and ``asked_max`` are the user's, ``None`` where left open; ``model_max`` stands
    for the latter where both are open and the model has a maximum of its own. ``ceiling`` is the
    platform's limit on the default maximum. ``tiers`` are the query lengths in use.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    query_len: int
    tiers: tuple[Tier, ...]
    ceiling: int
    interactivity: bool = False
    asked_sizes: tuple[int, ...] | None = None
    asked_max: int | None = None
    model_max: int | None = None

    @property
    def given_max(self) -> int | None:
        """The maximum that is not the engine's own default."""
        return self.model_max if self.asked_max is None and self.asked_sizes is None else self.asked_max


def size_request(
    deployment: Deployment,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    query_len: int,
    tiers: tuple[Tier, ...],
) -> SizeRequest:
    """What the sizes of ``deployment`` follow from, under limits that are already settled."""
    compilation = deployment.compilation
    return SizeRequest(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        query_len=query_len,
        tiers=tiers,
        ceiling=platform_ceiling(device_of(deployment.device).compute_capability),
        interactivity=deployment.engine.performance_mode is PerformanceMode.INTERACTIVITY,
        asked_sizes=compilation.cudagraph_capture_sizes,
        asked_max=compilation.max_cudagraph_capture_size,
        model_max=_model_max(deployment.model.config),
    )


def _model_max(config: HfConfig | None) -> int | None:
    """The maximum in tokens that the engine sets for a model, if any (rules 2.7)."""
    architectures = config.facts.get("architectures") if config is not None else None
    first = architectures[0] if isinstance(architectures, list | tuple) and architectures else None
    return MODEL_MAXIMA.get(first) if isinstance(first, str) else None


@frozen
class CaptureSizes:
    """The sizes in force, ascending, their maximum (0 without any), and how they came about."""

    sizes: tuple[int, ...]
    maximum: int
    decisions: tuple[Decision, ...]


def platform_ceiling(compute_capability: tuple[int, int] | None) -> int:
    """Largest default maximum in tokens: data-centre Blackwell (10.x) gets 1024, others 512."""
    return 1024 if compute_capability and compute_capability[0] == 10 else 512


def capture_sizes(request: SizeRequest) -> CaptureSizes:
    """The capture sizes that the engine would use.

    Raises:
        PlanError: the maximum is below 1, the list is empty, or the two contradict each other.
    """
    wanted_max = request.given_max
    if wanted_max is None:
        wanted_max = min(request.max_num_seqs * request.query_len * 2, request.ceiling)
    bound = min(request.max_num_batched_tokens, wanted_max)
    if bound < 1:
        raise PlanError(
            f"the maximum is {wanted_max} tokens and the token budget {request.max_num_batched_tokens}; "
            "capture needs at least 1: raise it, or set cudagraph_mode NONE",
            fields=(MAX_FIELD, TOKENS_FIELD),
        )
    if request.asked_sizes is not None:
        sizes = _usable(request, request.asked_sizes)
    else:
        extra = () if request.given_max is not None else _uniform_decode_sizes(request, wanted_max)
        sizes = _default_grid(request, bound, extra)
    maximum = sizes[-1] if sizes else 0
    _refuse_contradiction(request, sizes, maximum)
    return CaptureSizes(sizes, maximum, (*_size_decisions(request, sizes), *_max_decisions(request, maximum)))


def _usable(request: SizeRequest, asked: tuple[int, ...]) -> tuple[int, ...]:
    if not asked:
        raise PlanError(
            "the list is [] while cudagraph_mode asks for graphs; give at least one size, leave it out, "
            "or set cudagraph_mode NONE",
            fields=(SIZES_FIELD, "compilation.cudagraph_mode"),
        )
    if min(asked) < 1:
        raise PlanError(
            f"{min(asked)} is too small; the smallest value is 1",
            fields=(SIZES_FIELD,),
        )
    return tuple(sorted({size for size in asked if size <= request.max_num_batched_tokens}))


def _default_grid(request: SizeRequest, bound: int, extra: tuple[int, ...]) -> tuple[int, ...]:
    sizes = {1, 2, 4}
    if request.interactivity:
        sizes = set(range(1, INTERACTIVE_SIZES + 1))
    sizes.update(range(8, 256, 8), range(256, bound + 1, 16))
    sizes = {size for size in sizes if size <= bound}
    if request.max_num_batched_tokens <= bound:
        sizes.add(request.max_num_batched_tokens)
    sizes.update(size for size in extra if size <= request.max_num_batched_tokens)
    return tuple(sorted(sizes))


def _uniform_decode_sizes(request: SizeRequest, wanted_max: int) -> tuple[int, ...]:
    """Sizes that fit uniform decode batches exactly; only a default maximum brings them."""
    if request.query_len == 1:
        return (request.max_num_seqs,) if request.max_num_seqs <= wanted_max else ()
    return tuple(
        size
        for tier in request.tiers
        for num_reqs in _request_grid(min(tier.max_num_reqs, request.ceiling))
        if (size := num_reqs * tier.query_len) <= wanted_max
    )


def _request_grid(widest: int) -> set[int]:
    grid = {1, 2, 4, *range(8, 256, 8), *range(256, widest + 1, 16), widest}
    return {num_reqs for num_reqs in grid if num_reqs <= widest}


def _refuse_contradiction(request: SizeRequest, sizes: tuple[int, ...], maximum: int) -> None:
    if request.asked_max is None or request.asked_sizes is None or request.asked_max == maximum:
        return
    kept = f"{maximum} is the largest size"
    if sizes != tuple(sorted(set(request.asked_sizes))):
        kept += f" within {TOKENS_FIELD} {request.max_num_batched_tokens}"
    raise PlanError(
        f"{request.asked_max} is asked as maximum but {kept}; make the two agree or give only one",
        fields=(MAX_FIELD, SIZES_FIELD),
    )


def _size_decisions(request: SizeRequest, sizes: tuple[int, ...]) -> tuple[Decision, ...]:
    asked = request.asked_sizes
    if asked is None or asked == sizes:
        return ()
    too_large = sorted({size for size in asked if size > request.max_num_batched_tokens})
    if too_large:
        because = f"sizes above {TOKENS_FIELD} {request.max_num_batched_tokens} are dropped: {too_large}"
        rule = "sizes-within-token-budget"
    else:
        because = "sizes are sorted and duplicates dropped"
        rule = "sizes-sorted"
    return (Decision(path=SIZES_FIELD, asked=list(asked), became=list(sizes), rule=rule, because=because),)


def _max_decisions(request: SizeRequest, maximum: int) -> tuple[Decision, ...]:
    if request.asked_max == maximum:
        return ()
    if request.asked_max is not None:
        rule = "max-truncated-to-grid"
        because = (
            f"{maximum} is the last size of the default grid that is no larger than {request.asked_max} "
            f"and the token budget {request.max_num_batched_tokens}"
        )
    elif request.asked_sizes is not None:
        rule, because = "max-from-sizes", "the largest capture size in force"
    elif request.model_max is not None:
        rule = "max-of-model"
        because = (
            f"the engine captures this model up to {request.model_max} tokens, within the token budget "
            f"{request.max_num_batched_tokens}, on the grid"
        )
    else:
        rule = "max-default"
        because = (
            f"min(2 x {request.max_num_seqs} requests x query length {request.query_len}, "
            f"platform ceiling {request.ceiling}, token budget {request.max_num_batched_tokens}), on the grid"
        )
    return (Decision(path=MAX_FIELD, asked=request.asked_max, became=maximum, rule=rule, because=because),)
