"""Comparing a running vLLM with its plan, on stand-ins of what the extension reads."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve

from planner import Plan, compile_plan, dump_plan, load_deployment
from planner.documents.plan import DRAFT, TARGET
from planner.engines import vllm_worker
from planner.engines.vllm_worker import PlanComparison, candidates, differences, planned
from planner.errors import DocumentError, MachineError


class Mode(Enum):
    """The engine's own enumeration, of which only the names are read."""

    PIECEWISE = 1
    FULL = 2


@dataclass(frozen=True)
class Descriptor:
    """The engine's own descriptor of its V2 runner."""

    cg_mode: Mode
    num_tokens: int
    num_reqs: int | None
    uniform_token_count: int | None = None
    max_query_len: int | None = None
    num_active_loras: int = 0
    num_ubatches: int = 1


@dataclass(frozen=True)
class ScheduledDescriptor(Descriptor):
    num_speculative_tokens: int = 0


@dataclass(frozen=True)
class Key:
    """The engine's own descriptor of its V1 runner."""

    num_tokens: int
    num_reqs: int | None = None
    uniform: bool = False
    has_lora: bool = False
    num_active_loras: int = 0


def plan_of(**sections: Any) -> Plan:
    return compile_plan(load_deployment({"apiVersion": "graphplan/v1", "kind": "Deployment", **sections}))


def manager_of(plan: Plan, family: str) -> Any:
    """A graph manager that made exactly the graphs of a family; the engine's order of modes is no order."""
    descs: dict[Mode, list[Descriptor]] = {Mode.FULL: [], Mode.PIECEWISE: []}
    for entry in plan.graphs.get(family, ()):
        found = entry.execution_descriptor
        mode = Mode[found.cg_mode.name]
        fields = {key: value for key, value in vars(found).items() if key != "cg_mode"}
        descs[mode].append(Descriptor(mode, **fields))
    return SimpleNamespace(_capture_descs=descs)


def runner_of(plan: Plan, **speculator: Any) -> Any:
    drafts = SimpleNamespace(**speculator) if speculator else None
    return SimpleNamespace(cudagraph_manager=manager_of(plan, TARGET), speculator=drafts)


@pytest.fixture
def tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_worker, "version", lambda _: "0.33.0")


def worker_of(runner: Any) -> PlanComparison:
    """A worker as vLLM makes it: the extension is one of its base classes."""
    worker = PlanComparison()
    worker.model_runner = runner
    return worker


DFLASH = {"scheduler": {"max_num_seqs": 6}, "speculative": {"method": "dflash", "num_speculative_tokens": 3}}


@pytest.mark.usefixtures("tested")
def test_a_server_that_captures_its_plan_has_no_differences() -> None:
    plan = plan_of(**DFLASH)
    worker = worker_of(runner_of(plan, query_cudagraph_manager=manager_of(plan, DRAFT)))
    assert worker.graphplan_differences(dump_plan(plan)) == []


@pytest.mark.usefixtures("tested")
def test_each_difference_is_one_line() -> None:
    asked, running = plan_of(scheduler={"max_num_seqs": 4}), plan_of(scheduler={"max_num_seqs": 2})
    assert worker_of(runner_of(running)).graphplan_differences(dump_plan(asked)) == [
        "target: PIECEWISE 8 tokens is in the plan and not in vLLM",
        "target: FULL 4 tokens (num_reqs 4, uniform_token_count 1) is in the plan and not in vLLM",
    ]
    assert worker_of(runner_of(asked)).graphplan_differences(dump_plan(running)) == [
        "target: PIECEWISE 8 tokens is in vLLM and not in the plan",
        "target: FULL 4 tokens (num_reqs 4, uniform_token_count 1) is in vLLM and not in the plan",
    ]


def test_a_family_that_one_side_does_not_have_differs() -> None:
    plan = plan_of(**DFLASH)
    lines = differences(plan, candidates(runner_of(plan)))
    assert lines
    assert all(line.startswith("draft: FULL ") and "not in vLLM" in line for line in lines)


def test_many_differences_are_counted() -> None:
    plan = plan_of(scheduler={"max_num_seqs": 256})
    lines = differences(evolve(plan, graphs={TARGET: ()}), candidates(runner_of(plan)))
    assert len(lines) == vllm_worker.MOST_LISTED + 1
    more = len(plan.entries()) - vllm_worker.MOST_LISTED
    assert lines[-1] == f"target: and {more} more are in vLLM and not in the plan"


def test_the_order_counts_on_the_v2_runner() -> None:
    plan = plan_of(scheduler={"max_num_seqs": 4})
    first, second, *rest = plan.entries()
    swapped = evolve(plan, graphs={TARGET: (second, first, *rest)})
    (line,) = differences(swapped, candidates(runner_of(plan)))
    assert line.startswith("target: the order differs from graph 1 on: PIECEWISE 4 tokens in the plan, ")


def test_passes_of_a_schedule_are_families_of_their_own() -> None:
    schedule = {"num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 8, 2]]}
    plan = plan_of(
        scheduler={"max_num_seqs": 8},
        speculative={"method": "eagle3", "num_speculative_tokens": 3, **schedule},
    )
    assert {"draft_decode_2", "draft_decode_3"} <= set(plan.graphs)
    decode = {Mode.FULL: []}
    for length in (3, 2):
        for entry in plan.entries(f"draft_decode_{length}"):
            decode[Mode.FULL].append(
                ScheduledDescriptor(
                    Mode.FULL,
                    entry.num_tokens,
                    entry.num_reqs,
                    entry.uniform_token_count,
                    num_speculative_tokens=length,
                )
            )
    runner = runner_of(
        plan,
        num_speculative_steps=3,
        prefill_cudagraph_manager=manager_of(plan, "draft_prefill"),
        decode_cudagraph_manager=SimpleNamespace(_capture_descs=decode),
    )
    assert differences(plan, candidates(runner)) == []


def test_a_single_draft_token_leaves_no_passes_to_capture() -> None:
    plan = plan_of(
        scheduler={"max_num_seqs": 8}, speculative={"method": "eagle3", "num_speculative_tokens": 1}
    )
    runner = runner_of(
        plan,
        num_speculative_steps=1,
        prefill_cudagraph_manager=manager_of(plan, "draft_prefill"),
        decode_cudagraph_manager=manager_of(plan, TARGET),
    )
    assert differences(plan, candidates(runner)) == []


def v1_runner(plan: Plan) -> Any:
    keys: dict[Mode, list[Key]] = {}
    for entry in plan.entries():
        found = entry.batch_descriptor
        keys.setdefault(Mode[entry.mode.name], []).append(
            Key(found.num_tokens, found.num_reqs, found.uniform, found.has_lora, found.num_active_loras)
        )
    listed = [(mode, list(reversed(found))) for mode, found in keys.items()]
    dispatcher = SimpleNamespace(keys_initialized=True, get_capture_descs=lambda: listed)
    return SimpleNamespace(cudagraph_dispatcher=dispatcher)


def test_the_v1_runner_is_compared_by_its_own_keys_in_any_order() -> None:
    plan = plan_of(engine={"runner": "v1"}, scheduler={"max_num_seqs": 8}, lora={"max_loras": 2})
    found = candidates(v1_runner(plan))
    assert found.is_v1
    assert differences(plan, found) == []
    assert differences(evolve(plan, graphs={TARGET: plan.entries()[1:]}), found)


@pytest.mark.usefixtures("tested")
def test_candidates_are_plain_data_that_crosses_processes() -> None:
    plan = plan_of(scheduler={"max_num_seqs": 2})
    found = worker_of(runner_of(plan)).graphplan_candidates()
    assert json.loads(json.dumps(found)) == {
        TARGET: [planned(entry, is_v1=False) for entry in plan.entries()]
    }
    assert found[TARGET][0] == {"mode": "PIECEWISE", "num_tokens": 4}


@pytest.mark.parametrize(
    "runner",
    [
        SimpleNamespace(cudagraph_manager=None),
        SimpleNamespace(cudagraph_dispatcher=SimpleNamespace(keys_initialized=False)),
    ],
)
def test_a_server_that_has_not_decided_yet_says_so(runner: Any) -> None:
    with pytest.raises(MachineError, match="ask once it is ready"):
        candidates(runner)


def test_a_version_that_was_not_tested_is_refused_politely(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(scheduler={"max_num_seqs": 2})
    monkeypatch.setattr(vllm_worker, "version", lambda _: "0.34.1")
    for ask in (
        lambda worker: worker.graphplan_candidates(),
        lambda worker: worker.graphplan_differences(dump_plan(plan)),
    ):
        with pytest.raises(
            MachineError, match=r"vLLM 0\.34\.1, and the comparison was tested with 0\.33 only"
        ):
            ask(worker_of(runner_of(plan)))


def test_without_vllm_it_says_where_it_runs() -> None:
    with pytest.raises(MachineError, match="no vLLM is installed here"):
        worker_of(None).graphplan_candidates()


@pytest.mark.usefixtures("tested")
def test_what_is_no_plan_is_refused() -> None:
    with pytest.raises(DocumentError):
        worker_of(runner_of(plan_of())).graphplan_differences("kind: Deployment\napiVersion: graphplan/v1\n")


def test_the_extension_adds_nothing_that_a_worker_could_have() -> None:
    """Its worker refuses an extension with a name of its own."""
    names = {name for name in dir(PlanComparison) if not name.startswith("__")}
    assert names == {"graphplan_candidates", "graphplan_differences"}


def test_importing_it_loads_no_engine() -> None:
    code = "import sys, planner.engines.vllm_worker; print({'torch', 'vllm'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
