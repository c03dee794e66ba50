"""Padding of uniform decode: by the number of requests, for the engine's own default, and for a traffic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import evolve, frozen

from planner.compile import compile_plan
from planner.documents.deployment import CaptureSection, Deployment
from planner.documents.plan import TARGET, Plan
from planner.errors import GraphplanError
from planner.modes import CapturePolicy, CUDAGraphMode
from planner.report.coverage import surveyed
from planner.traffic.histogram import Histogram
from planner.verify.coverage import Coverage, Gap, Served
from planner.verify.survey import Survey

SGLANG_SIZES = ("cuda_graph_bs", "cuda_graph_bs_decode", "cuda_graph_bs_prefill")
SGLANG_LIMITS = ("cuda_graph_max_bs", "cuda_graph_max_bs_decode", "cuda_graph_max_bs_prefill")
"""SGLang's settings of capture sizes; without them it takes its own."""


@frozen(kw_only=True)
class DecodeRange:
    """Decode of ``first`` to ``last`` requests of ``query_len`` in a graph of ``size`` tokens.

    ``size`` and ``mode`` are ``None`` where such batches run eagerly.
    """

    first: int
    last: int
    query_len: int
    size: int | None = None
    mode: CUDAGraphMode | None = None

    def padding(self, num_reqs: int) -> float:
        """The padded share of the graph's tokens, from 0 to 1."""
        return 0.0 if self.size is None else 1 - num_reqs * self.query_len / self.size


@frozen(kw_only=True)
class TrafficPadding:
    """What a traffic's steps cost, all as shares from 0 to 1; ``None`` without such steps.

    ``decode`` is the padded part of what uniform decode computes in graphs, ``decode_eager`` the steps of
    it without a graph; ``other`` and ``other_eager`` are the same of all other steps.
    """

    decode: float | None = None
    decode_eager: float | None = None
    other: float | None = None
    other_eager: float | None = None


def decode_ranges(survey: Survey) -> tuple[DecodeRange, ...]:
    """What decode runs in, by ascending requests, each number in the query length that is in use for it.

    Of LoRA cases that are covered in different ways, it is the first.
    """
    group = next((group for group in survey.groups if group.active), None)
    if group is None:
        return ()
    uniform = [
        one for one in group.coverages if one.batches.query_len is not None and one.batches.num_ubatches == 1
    ]
    found: list[DecodeRange] = []
    done = 0
    for coverage in sorted(uniform, key=lambda one: (one.batches.most_reqs, -(one.batches.query_len or 0))):
        length = coverage.batches.query_len or 1
        gaps = sorted((*coverage.served, *coverage.unserved), key=lambda gap: gap.fewest)
        found.extend(_range(gap, max(gap.fewest, done + 1), length) for gap in gaps if gap.most > done)
        done = max(done, coverage.batches.most_reqs)
    return tuple(found)


def _range(gap: Gap, first: int, query_len: int) -> DecodeRange:
    entry = gap.entry if isinstance(gap, Served) else None
    return DecodeRange(
        first=first,
        last=gap.most,
        query_len=query_len,
        size=entry.num_tokens if entry else None,
        mode=entry.mode if entry else None,
    )


def default_plan(plan: Plan) -> Plan | None:
    """What the engine would capture for the plan's deployment if nothing were said of sizes.

    ``None`` where the plan does not have the deployment, or the engine refuses it.
    """
    if plan.deployment == Deployment():
        return None
    try:
        return compile_plan(_without_sizes(plan.deployment))
    except GraphplanError:
        return None


def _without_sizes(deployment: Deployment) -> Deployment:
    """``deployment`` with the engine's own choice of sizes."""
    compilation = evolve(
        deployment.compilation, cudagraph_capture_sizes=None, max_cudagraph_capture_size=None
    )
    capture = CaptureSection(policy=CapturePolicy.ENGINE)
    sglang, tensorrt = deployment.sglang, deployment.tensorrt_llm
    if sglang is not None:
        sglang = evolve(sglang, **dict.fromkeys((*SGLANG_SIZES, *SGLANG_LIMITS)))
    if tensorrt is not None and tensorrt.cuda_graph_config is not None:
        config = evolve(tensorrt.cuda_graph_config, batch_sizes=None, max_batch_size=None)
        tensorrt = evolve(tensorrt, cuda_graph_config=config, prefill_capture_num_tokens=None)
    return evolve(deployment, compilation=compilation, capture=capture, sglang=sglang, tensorrt_llm=tensorrt)


def traffic_padding(plan: Plan, histogram: Histogram) -> TrafficPadding:
    """What the steps of ``histogram`` cost in the target's graphs of ``plan``."""
    survey = surveyed(plan, TARGET)
    if survey is None:
        return TrafficPadding()
    decode = _cost(list(_decode_costs(decode_ranges(survey), histogram)))
    other = _cost(list(_other_costs(survey, histogram)))
    return TrafficPadding(decode=decode[0], decode_eager=decode[1], other=other[0], other_eager=other[1])


_Cost = tuple[int, int | None, int]
"""Tokens of a batch, those of its graph (``None``: it has none), and how many such steps there are."""


def _decode_costs(ranges: Sequence[DecodeRange], histogram: Histogram) -> Iterator[_Cost]:
    """What every step of decode costs."""
    place = 0
    for num_reqs, count in clamped(histogram, ranges[-1].last if ranges else 0).items():
        while ranges[place].last < num_reqs:
            place += 1
        yield num_reqs * ranges[place].query_len, ranges[place].size, count


def clamped(histogram: Histogram, most: int) -> dict[int, int]:
    """Steps of decode by requests, ascending; more of them than run at once are so many as ``most``."""
    steps: dict[int, int] = {}
    for num_reqs, count in histogram.decode_steps().items():
        if (served := min(num_reqs, most)) > 0:
            steps[served] = steps.get(served, 0) + count
    return dict(sorted(steps.items()))


def _other_costs(survey: Survey, histogram: Histogram) -> Iterator[_Cost]:
    """The same of steps with prefill, taken to be of the fewest requests that have so many tokens."""
    group = next((group for group in survey.groups if group.active), None)
    mixed = next((one for one in group.coverages if _is_mixed(one)), None) if group else None
    if mixed is None:
        return
    served = sorted(mixed.served, key=lambda one: (one.first, one.fewest))
    place = 0
    for num_tokens, count in sorted(histogram.token_steps().items()):
        while place < len(served) and served[place].last < num_tokens:
            place += 1
        found = place < len(served) and served[place].first <= num_tokens
        yield num_tokens, served[place].entry.num_tokens if found else None, count


def _is_mixed(coverage: Coverage) -> bool:
    """Whether these are whole steps with some prefill."""
    batches = coverage.batches
    return batches.query_len is None and batches.max_query_len is None and batches.num_ubatches == 1


def _cost(costs: Sequence[_Cost]) -> tuple[float | None, float | None]:
    """The padded share of what runs in graphs, and the share of the steps that do not."""
    steps = sum(count for _, _, count in costs)
    if not steps:
        return None, None
    batched = sum(tokens * count for tokens, size, count in costs if size is not None)
    computed = sum(size * count for _, size, count in costs if size is not None)
    eager = sum(count for _, size, count in costs if size is None)
    return (1 - batched / computed if computed else None), eager / steps
