"""A plan against what a server printed at start: each thing that both say, and what only one says.

What the log does not say is named, never passed over: a log may be cut, filtered or of another engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from attrs import evolve, frozen

from planner.describe import size_runs
from planner.documents.deployment import Json
from planner.documents.plan import TARGET, Finding, Plan, Severity
from planner.engines.shared import lookup_runner
from planner.errors import PlanError
from planner.modes import CUDAGraphMode, Runner
from planner.rules.draft_autoregressive import DRAFT_DECODE
from planner.rules.encoder import ENCODER
from planner.rules.rounding import rounded_to_query_len
from planner.rules.settings import SUPPORTED_ENGINES
from planner.rules.sizes import CaptureSizes
from planner.server_log import OUT_OF_MEMORY, CapturedGraphs, ServerLog
from planner.verify.model_names import may_be_same_model
from planner.verify.wording import joined

SETTINGS_FIX = (
    "compile what the server was started with: max_num_seqs, max_num_batched_tokens, speculative, lora, "
    "compilation, device"
)
WHOLE_LOG_FIX = "give all that the server printed, standard error included, down to its first request"
MODEL_FIX = "give the log of the server that the plan is for, or compile the plan of this server"
INCOMPLETE = "incomplete"
DTYPES = {"half": "float16", "float": "float32"}
"""vLLM's other names of data types."""

MEMORY_FIX = "lower gpu_memory_utilization, or capture fewer or smaller sizes"


@frozen(kw_only=True)
class Compared:
    """One thing that plan and server may both say.

    ``agrees`` is ``None`` where it could not be compared, as one of them does not say it. ``note`` is
    what was done to the server's value first, or that it is of a capture that did not end.
    """

    subject: str
    plan: Json
    server: Json
    agrees: bool | None
    note: str | None = None
    finding: Finding | None = None

    @property
    def is_incomplete(self) -> bool:
        """Whether the server captured a part of its graphs only."""
        return self.note == INCOMPLETE


@frozen(kw_only=True)
class Comparison:
    """All that was compared, further ``facts`` of the server, and what a person should know."""

    compared: tuple[Compared, ...]
    facts: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]


@frozen(kw_only=True)
class _Planned:
    """What a plan says about the target, resolved or, in one written by hand, read off its entries."""

    mode: CUDAGraphMode | None
    sizes: tuple[int, ...] | None
    maximum: int | None
    runner: Runner | None = None
    query_len: int | None = None


def compare_with_log(plan: Plan, said: ServerLog) -> Comparison:
    """What differs between ``plan`` and what its server said.

    Raises:
        PlanError: the plan is for another engine than vLLM, whose logs are not read.
    """
    if (runner := lookup_runner(plan, TARGET)) is not None:
        raise PlanError(
            f"the plan is for {runner}, and only logs of vllm are read; drop the log",
            fields=("engine.name",),
        )
    planned = _planned(plan)
    compared = (
        *_version(plan, said),
        *_model(plan, said),
        *_settings(planned, said),
        *_mode(plan, planned, said),
        *_sizes(planned, said),
        *_graphs(plan, said),
    )
    return Comparison(
        compared=compared,
        facts=tuple(_facts(said)),
        findings=(
            *_failures(said),
            *_without_repeats(one.finding for one in compared if one.finding is not None),
            *_not_compared(compared, said),
        ),
    )


def _without_repeats(findings: Iterable[Finding]) -> Iterator[Finding]:
    """``findings``, a fix that several have with the first of them only."""
    given: set[str | None] = set()
    for finding in findings:
        yield evolve(finding, fix=None) if finding.fix in given else finding
        given.add(finding.fix)


def _planned(plan: Plan) -> _Planned:
    resolved = plan.resolved.get(TARGET)
    if resolved is not None:
        return _Planned(
            mode=resolved.cudagraph_mode,
            sizes=resolved.cudagraph_capture_sizes,
            maximum=resolved.max_cudagraph_capture_size,
            runner=resolved.runner,
            query_len=resolved.decode_query_len,
        )
    mixed: set[tuple[CUDAGraphMode, int]] = set()
    has_decode = False
    for entry in plan.graphs.get(TARGET, ()):
        if entry.uniform_token_count is None and entry.max_query_len is None:
            mixed.add((entry.mode, entry.num_tokens))
        else:
            has_decode = True
    sizes = tuple(sorted({tokens for _, tokens in mixed}))
    return _Planned(
        mode=_mode_of({mode for mode, _ in mixed}, has_decode=has_decode),
        # Decode graphs have rounded sizes, and only as many requests as there are.
        sizes=sizes or None,
        maximum=sizes[-1] if sizes else None,
    )


def _mode_of(mixed: set[CUDAGraphMode], *, has_decode: bool) -> CUDAGraphMode | None:
    """The mode that makes graphs of these kinds; ``None`` where none does."""
    if len(mixed) > 1:
        return None
    mode = next(iter(mixed), CUDAGraphMode.NONE)
    if not has_decode:
        return mode
    pairs = {
        CUDAGraphMode.NONE: CUDAGraphMode.FULL_DECODE_ONLY,
        CUDAGraphMode.PIECEWISE: CUDAGraphMode.FULL_AND_PIECEWISE,
    }
    return pairs.get(mode)


def _version(plan: Plan, said: ServerLog) -> Iterator[Compared]:
    planned, server = plan.deployment.engine.version or SUPPORTED_ENGINES["vllm"][-1], said.config.version
    message = f"the server is vLLM {server}, the plan follows the rules of {planned}"
    agrees = None if server is None else server.split(".")[:2] == planned.split(".")[:2]
    warning = Severity.WARNING
    yield _compared(
        "vllm", planned, server, "log-version", message, agrees=agrees, severity=warning, fix=None
    )


def _model(plan: Plan, said: ServerLog) -> Iterator[Compared]:
    """Whether the log is of the plan's server: its model, and the settings that both state."""
    name, model = plan.name or plan.deployment.name, said.config.model
    if name and model:
        message = f"the server has the model {model}, the plan is named {name}"
        agrees, warning = may_be_same_model(name, model), Severity.WARNING
        yield _compared(
            "model", name, model, "log-other-model", message, agrees=agrees, severity=warning, fix=MODEL_FIX
        )
    parallel, config, dtype = plan.deployment.parallel, said.config, plan.deployment.model.dtype
    stated = (
        ("parallel.tensor_parallel_size", parallel.tensor_parallel_size, config.tensor_parallel_size),
        ("parallel.pipeline_parallel_size", parallel.pipeline_parallel_size, config.pipeline_parallel_size),
        ("parallel.data_parallel_size", _data_parallel_size(plan, said), config.data_parallel_size),
        ("model.dtype", None if dtype == "auto" else DTYPES.get(dtype or "", dtype), config.dtype),
        ("model.max_model_len", plan.deployment.model.max_model_len, config.max_model_len),
    )
    for path, ours, theirs in stated:
        if ours is not None and theirs is not None:
            subject = path.rpartition(".")[2]
            yield _compared(subject, ours, theirs, "log-settings-differ", fix=f"{path}: {theirs}")


def _data_parallel_size(plan: Plan, said: ServerLog) -> int | None:
    """The plan's ranks; those of a dense model are one by one, and the engine may print either number."""
    resolved = plan.resolved.get(TARGET)
    ours = resolved.data_parallel_size if resolved else None
    asked = plan.deployment.parallel.data_parallel_size
    return asked if ours is None or asked == said.config.data_parallel_size else ours


def _settings(planned: _Planned, said: ServerLog) -> Iterator[Compared]:
    """Settings behind the graphs, which explain other differences."""
    ours, theirs = _text(planned.runner), _text(said.runner)
    yield _compared("runner", ours, theirs, "log-runner-differs", fix=f"engine.runner: {theirs}")
    drafts, query_len = said.config.num_speculative_tokens, planned.query_len
    yield _compared(
        "num_speculative_tokens",
        None if query_len is None else query_len - 1,
        drafts,
        "log-drafts-differ",
        fix=f"speculative.num_speculative_tokens: {drafts}",
    )


def _mode(plan: Plan, planned: _Planned, said: ServerLog) -> Iterator[Compared]:
    ours, theirs = planned.mode, said.cudagraph_mode
    if plan.deployment.verifies_adaptively and theirs is CUDAGraphMode.FULL:
        theirs = None  # It captures in another mode then, and does not say so (rules 3.3).
    message, fix = f"cudagraph_mode: {ours} in the plan, {theirs} in the server", SETTINGS_FIX
    if said.lowered_because:
        message += f", which says: {said.lowered_because}"
        if said.attention_support is not None:
            fix = f"model.attention_support: {said.attention_support}"
    yield _compared("cudagraph_mode", _text(ours), _text(theirs), "log-mode-differs", message, fix=fix)


def _sizes(planned: _Planned, said: ServerLog) -> Iterator[Compared]:
    if CUDAGraphMode.NONE in (planned.mode, said.cudagraph_mode):
        return  # Sizes are without effect.
    printed = said.config.cudagraph_capture_sizes, said.config.max_cudagraph_capture_size
    sizes, maximum = _sizes_in_force(planned, said, *printed)
    note = None if (sizes, maximum) == printed else "once v1 has rounded it"
    ours, theirs = set(planned.sizes or ()), set(sizes or ())
    differences = ((ours - theirs, "only in the plan"), (theirs - ours, "only in the server"))
    yield _compared(
        "cudagraph_capture_sizes",
        None if planned.sizes is None else list(planned.sizes),
        None if sizes is None else list(sizes),
        "log-sizes-differ",
        "cudagraph_capture_sizes: "
        + "; ".join(f"{where}: {size_runs(sorted(some))}" for some, where in differences if some),
        note=note,
    )
    yield _compared("max_cudagraph_capture_size", planned.maximum, maximum, "log-max-differs", note=note)


def _sizes_in_force(
    planned: _Planned, said: ServerLog, sizes: tuple[int, ...] | None, maximum: int | None
) -> tuple[tuple[int, ...] | None, int | None]:
    """The server's sizes and maximum, which the V1 runner rounds after they were printed (rules 2.7)."""
    drafts, mode = said.config.num_speculative_tokens, said.cudagraph_mode or planned.mode
    query_len = planned.query_len if drafts is None else drafts + 1
    decodes_whole = mode is not None and mode.decode_mode() is CUDAGraphMode.FULL
    is_v1 = (said.runner or planned.runner) is Runner.V1
    if not (is_v1 and decodes_whole and sizes and query_len):
        return sizes, maximum
    try:
        rounded = rounded_to_query_len(CaptureSizes(sizes, maximum or sizes[-1], ()), query_len)
    except PlanError:
        return sizes, maximum
    return rounded.sizes, rounded.maximum


def _graphs(plan: Plan, said: ServerLog) -> Iterator[Compared]:
    """The number of graphs of each family and mode: a bar counts entries, and no pieces of them."""
    planned = Counter(
        (_family_told(family), entry.mode) for family, entries in plan.graphs.items() for entry in entries
    )
    keys = dict.fromkeys((*planned, *((told.family, told.mode) for told in said.graphs)))
    for family, mode in keys:
        ours = planned[family, mode]
        theirs = _number_told(said, family, mode, planned=ours)
        message = f"graphs.{family}: {ours} {mode} in the plan, {theirs} in the server"
        one = _compared(f"{family} {mode}", ours, theirs, "log-graph-count-differs", message)
        told = said.graphs_of(family, mode)
        if told is not None and told in _unfinished(said):
            one = evolve(one, server=told.captured, agrees=False, note=INCOMPLETE)
        yield one


def _family_told(family: str) -> str:
    """The family as the server counts it: one bar is for all numbers of draft tokens."""
    return DRAFT_DECODE if family.startswith(f"{DRAFT_DECODE}_") else family


def _number_told(said: ServerLog, family: str, mode: CUDAGraphMode, *, planned: int) -> int | None:
    """How many graphs the server had to capture; ``None`` where it does not say."""
    told = said.graphs_of(family, mode)
    if told is not None:
        return None if planned > told.total and said.may_be_of_trial(told) else told.total
    if said.captures_nothing or said.cudagraph_mode is CUDAGraphMode.NONE:
        return 0
    # Once all is captured, a bar that is missing among others is none that was cut off. The V1 runner
    # captures its draft along with the target, and encoders have no bars.
    has_bar = family == TARGET or (said.runner is Runner.V2 and family != ENCODER)
    tells_bars = any(other.family == TARGET for other in said.graphs)
    return 0 if has_bar and tells_bars and said.is_captured else None


def _failures(said: ServerLog) -> Iterator[Finding]:
    """A capture that did not come to its end."""
    unfinished = _unfinished(said)
    if said.is_captured or not (unfinished or said.failure):
        return
    reached = joined(f"{_counted(told)} graphs of {told.family}" for told in unfinished)
    message = (
        f"the server's capture ended at {reached}" if reached else "the server did not finish its capture"
    )
    message += f": {said.failure}" if said.failure else "; the log ends there"
    yield Finding(
        severity=Severity.ERROR,
        code="log-capture-failed",
        message=message,
        fix=MEMORY_FIX if said.failure == OUT_OF_MEMORY else WHOLE_LOG_FIX,
    )


def _unfinished(said: ServerLog) -> tuple[CapturedGraphs, ...]:
    """Graphs whose capture ended too early; a bar may be torn where the capture came to its end."""
    if said.is_captured:
        return ()
    return tuple(told for told in said.graphs if told.captured < told.total)


def _counted(told: CapturedGraphs) -> str:
    return f"{told.captured} of {told.total} {told.mode}"


def _not_compared(compared: Iterable[Compared], said: ServerLog) -> Iterator[Finding]:
    """What could not be compared.

    That is a warning where the log is silent on the target's graphs themselves, and an error where it
    stops before any graph.
    """
    open_ones = [one for one in compared if one.agrees is None]
    untold = [one.subject for one in open_ones if one.server is None]
    unplanned = [one.subject for one in open_ones if one.server is not None]
    parts = [f"not in the log: {', '.join(untold)}"] if untold else []
    parts += [f"not in the plan: {', '.join(unplanned)}"] if unplanned else []
    if parts:
        matters = any(name.startswith((f"{TARGET} ", "cudagraph_")) for name in untold)
        is_cut = not (said.graphs or said.is_captured)
        stops = is_cut and any(name.startswith(f"{TARGET} ") for name in untold)
        message = f"not compared, as {'; '.join(parts)}"
        yield Finding(
            severity=Severity.ERROR if stops else Severity.WARNING if matters else Severity.INFO,
            code="log-not-compared",
            message=f"{message}; the log stops before any graph was captured" if stops else message,
            fix=WHOLE_LOG_FIX if matters else None,
        )


def _facts(said: ServerLog) -> Iterator[tuple[str, str]]:
    """What only the server can say."""
    if said.starts > 1:
        yield "starts", f"{said.starts}, of which the last counts"
    if said.ranks:
        cost = f"{max(rank.seconds for rank in said.ranks):g} s"
        memory = [rank.gib for rank in said.ranks if rank.gib is not None]
        if memory:
            cost += f", {max(memory):g} GiB"
        yield "capture", cost if len(said.ranks) == 1 else f"{cost}, the most of {len(said.ranks)} ranks"


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _compared(
    subject: str,
    plan: Json,
    server: Json,
    code: str,
    message: str | None = None,
    *,
    agrees: bool | None = None,
    note: str | None = None,
    severity: str = Severity.ERROR,
    fix: str | None = SETTINGS_FIX,
) -> Compared:
    """A comparison, by equality unless ``agrees`` says otherwise, with its finding where the two differ."""
    if agrees is None and plan is not None and server is not None:
        agrees = plan == server
    finding = None
    if agrees is False:
        message = message or f"{subject}: {plan} in the plan, {server} in the server"
        finding = Finding(severity=severity, code=code, message=message, fix=fix)
    return Compared(subject=subject, plan=plan, server=server, agrees=agrees, note=note, finding=finding)
