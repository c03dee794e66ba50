"""Comparing a running vLLM with its plan: an extension for vLLM's workers.

    vllm serve MODEL --config vllm.yaml --worker-extension-cls planner.engines.vllm_worker.PlanComparison

    for rank, found in enumerate(llm.collective_rpc("graphplan_differences", args=(plan_text,))):
        print(rank, found)

It reads the candidates that vLLM made before it captured, and changes nothing. Nothing of vLLM is
imported: the extension becomes a base class of its worker, and finds there what it reads.
Source: vLLM 0.33, the graph managers of its V2 runner and the dispatcher of its V1 runner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from attrs import asdict as attrs_asdict
from attrs import frozen

from planner.descriptors import PlanEntry
from planner.documents.load import load_plan
from planner.documents.plan import DRAFT, TARGET, Plan
from planner.errors import MachineError
from planner.modes import CUDAGraphMode
from planner.rules.draft_autoregressive import DRAFT_DECODE, DRAFT_PREFILL

TESTED_VERSIONS = ("0.33",)

MOST_LISTED = 20
"""Differences that a message lists for one family."""

_SPECULATORS = {
    "query_cudagraph_manager": DRAFT,
    "cudagraph_manager": DRAFT,
    "prefill_cudagraph_manager": DRAFT_PREFILL,
    "decode_cudagraph_manager": DRAFT_DECODE,
}
"""Where the drafters of the V2 runner keep their graphs, and the families that those are."""

Record = Mapping[str, Any]
"""One graph by the fields of the runner's own descriptor, with plain values."""

_DEFAULTS: Record = {"num_active_loras": 0, "num_ubatches": 1, "has_lora": False, "uniform": False}


@frozen(kw_only=True)
class Candidates:
    """The graphs that a vLLM made up its mind to capture, by family; ``is_v1`` names its runner."""

    is_v1: bool
    families: Mapping[str, Sequence[Record]]


class PlanComparison:
    """What a worker of vLLM can do beside its own work, by ``collective_rpc``."""

    model_runner: Any

    def graphplan_candidates(self) -> dict[str, list[Record]]:
        """The graphs of each family as this rank captures them, in capture order.

        Raises:
            MachineError: this vLLM is none of those that were tested, or has none yet.
        """
        require_tested_version()
        return {family: list(records) for family, records in candidates(self.model_runner).families.items()}

    def graphplan_differences(self, plan: str) -> list[str]:
        """Where this rank and ``plan`` differ, a line each; none where they agree.

        ``plan`` is the text of a Plan, or the name of a file that the worker can read.

        Raises:
            DocumentError: it is no Plan.
            MachineError: this vLLM is none of those that were tested, or has no candidates yet.
        """
        require_tested_version()
        return differences(load_plan(plan), candidates(self.model_runner))


def require_tested_version() -> None:
    """Refuses a vLLM whose candidates nobody has compared.

    Raises:
        MachineError: it is one, or none is installed.
    """
    try:
        found = version("vllm")
    except PackageNotFoundError:
        raise MachineError("no vLLM is installed here; this runs in its workers only") from None
    if ".".join(found.split(".")[:2]) not in TESTED_VERSIONS:
        raise MachineError(
            f"this is vLLM {found}, and the comparison was tested with {', '.join(TESTED_VERSIONS)} only; "
            "compare its log instead, with planner check PLAN --log"
        )


def candidates(runner: Any) -> Candidates:
    """The graphs that a model runner of vLLM is going to capture, or has captured.

    Raises:
        MachineError: it has not made them yet, as before its KV cache is laid out.
    """
    dispatcher = getattr(runner, "cudagraph_dispatcher", None)
    if dispatcher is not None:
        if not dispatcher.keys_initialized:
            raise _not_yet()
        families = {TARGET: tuple(_dispatched(dispatcher))}
        of_draft = getattr(getattr(runner, "drafter", None), "cudagraph_dispatcher", None)
        if of_draft is not None and of_draft.keys_initialized:
            families[DRAFT] = tuple(_dispatched(of_draft))
        return Candidates(is_v1=True, families=families)
    manager = getattr(runner, "cudagraph_manager", None)
    if manager is None:
        raise _not_yet()
    families = {TARGET: managed(manager)}
    speculator = getattr(runner, "speculator", None)
    for name, family in _SPECULATORS.items():
        of_draft = getattr(speculator, name, None)
        # A single draft token leaves no passes after the first.
        is_idle = family == DRAFT_DECODE and getattr(speculator, "num_speculative_steps", None) == 1
        if of_draft is not None and not is_idle:
            families.update(_by_draft_length(family, managed(of_draft)))
    return Candidates(is_v1=False, families=families)


def _by_draft_length(family: str, records: Sequence[Record]) -> dict[str, tuple[Record, ...]]:
    """Under a schedule passes are captured anew for each number of draft tokens: families of their own."""
    families: dict[str, tuple[Record, ...]] = {}
    for record in records:
        length = record.get("num_speculative_tokens")
        name = family if length is None else f"{family}_{length}"
        kept = {key: value for key, value in record.items() if key != "num_speculative_tokens"}
        families[name] = (*families.get(name, ()), kept)
    return families


def _not_yet() -> MachineError:
    return MachineError("this vLLM has no candidates yet; ask once it is ready to serve")


def managed(manager: Any) -> tuple[Record, ...]:
    """The descriptors of a graph manager of the V2 runner, pieces before whole forwards."""
    by_mode = {mode.name: descriptors for mode, descriptors in manager._capture_descs.items()}  # noqa: SLF001
    return tuple(
        _record(descriptor.cg_mode, asdict(descriptor))
        for name in (CUDAGraphMode.PIECEWISE.name, CUDAGraphMode.FULL.name)
        for descriptor in by_mode.get(name, ())
    )


def _dispatched(dispatcher: Any) -> Iterator[Record]:
    for mode, descriptors in dispatcher.get_capture_descs():
        for descriptor in descriptors:
            yield _record(mode, asdict(descriptor))


def _record(mode: Any, fields: Record) -> Record:
    """A descriptor with plain values, which cross from process to process; defaults are left out."""
    kept = {
        key: value
        for key, value in fields.items()
        if key != "cg_mode" and value is not None and value != _DEFAULTS.get(key)
    }
    return {"mode": mode.name, **kept}


def planned(entry: PlanEntry, *, is_v1: bool) -> Record:
    """An entry of a plan in the form of the runner's own descriptors."""
    descriptor = entry.batch_descriptor if is_v1 else entry.execution_descriptor
    return _record(entry.mode, attrs_asdict(descriptor))


def differences(plan: Plan, found: Candidates) -> list[str]:
    """Where a plan and the graphs that a vLLM captures differ, a line each.

    The V1 runner sorts equal sizes in no particular order; of the V2 runner the order counts as well.
    """
    lines: list[str] = []
    for family in dict.fromkeys((*plan.graphs, *found.families)):
        entries = [planned(entry, is_v1=found.is_v1) for entry in plan.graphs.get(family, ())]
        lines.extend(_of_family(family, entries, found.families.get(family, ()), ordered=not found.is_v1))
    return lines


def _of_family(
    family: str, expected: Sequence[Record], found: Sequence[Record], *, ordered: bool
) -> Iterator[str]:
    wanted, captured = Counter(map(_words, expected)), Counter(map(_words, found))
    missing, beyond = list((wanted - captured).elements()), list((captured - wanted).elements())
    yield from _listed(family, "in the plan and not in vLLM", missing)
    yield from _listed(family, "in vLLM and not in the plan", beyond)
    if ordered and not missing and not beyond and list(expected) != list(found):
        first = next(
            index for index, pair in enumerate(zip(expected, found, strict=True)) if pair[0] != pair[1]
        )
        yield (
            f"{family}: the order differs from graph {first + 1} on: {_words(expected[first])} in the plan, "
            f"{_words(found[first])} in vLLM"
        )


def _listed(family: str, what: str, graphs: Sequence[str]) -> Iterator[str]:
    for graph in graphs[:MOST_LISTED]:
        yield f"{family}: {graph} is {what}"
    if len(graphs) > MOST_LISTED:
        yield f"{family}: and {len(graphs) - MOST_LISTED} more are {what}"


def _words(record: Record) -> str:
    rest = ", ".join(f"{key} {value}" for key, value in record.items() if key not in ("mode", "num_tokens"))
    return f"{record['mode']} {record['num_tokens']} tokens{f' ({rest})' if rest else ''}"
