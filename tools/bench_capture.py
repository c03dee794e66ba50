"""Capture and replay on a GPU: the executor against the textbook loop, in one run.

Usage: python tools/bench_capture.py [--json FILE] [--device cpu --shrink]

A Qwen3-0.6B-shaped decoder with random weights in bf16. Capture times come from processes of their own,
each loop twice, in both orders; "first" is the
executor with warm_up="first". The device cpu is for trying the
script: it leaves the textbook loop out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from attrs import evolve

from executor.capturing import Part, Rig, StandIn
from executor.dflash import DFlashCudaGraphManager
from executor.dispatching import graph_key
from executor.guide import CaptureOptions
from executor.manager import CudaGraphManager
from executor.models.config import DecoderConfig, DFlashConfig
from executor.verify import verify_entries
from planner import Plan, compile_plan, load_deployment
from planner.descriptors import BatchExecutionDescriptor, PlanEntry
from planner.modes import CUDAGraphMode

MODEL = Path(__file__).resolve().parent.parent / "plans/models/qwen3-0.6b/config.json"
DRAFT_TOKENS = 15
LOOPS = ("executor", "first", "textbook", "textbook", "first", "executor")
REPEATS = 30
NONE = CUDAGraphMode.NONE


def main() -> None:
    """Run all parts and print what they measured."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shrink", action="store_true", help="a tiny model, to try the script")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--loop", choices=("executor", "first", "textbook"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.loop:
        print(json.dumps(one_loop(options)))
        return
    figures: dict[str, Any] = {"environment": environment(options)}
    figures["capture"] = compare_loops(options)
    figures["replay"] = replay(options)
    figures["dflash"] = dflash(options)
    figures["faults"] = faults(options)
    report(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def environment(options: argparse.Namespace) -> dict[str, str]:
    """What the figures were measured on."""
    gpu = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    return {"torch": torch.__version__, "device": gpu, "python": sys.version.split()[0]}


def decode_plan() -> Plan:
    """The 51 default sizes of vLLM as FULL decode graphs."""
    return compile_plan(
        load_deployment(
            {
                "apiVersion": "graphplan/v1",
                "kind": "Deployment",
                "model": {"config": str(MODEL), "max_model_len": 4096},
                "scheduler": {"max_num_seqs": 512},
                "compilation": {"cudagraph_mode": "FULL_DECODE_ONLY"},
                "device": {"name": "H200"},
            }
        )
    )


def dflash_plan() -> Plan:
    """51 PIECEWISE and 32 FULL target entries, 32 FULL draft entries with a prologue."""
    return compile_plan(
        load_deployment(
            {
                "apiVersion": "graphplan/v1",
                "kind": "Deployment",
                "model": {"config": str(MODEL), "max_model_len": 4096},
                "scheduler": {"max_num_seqs": 32},
                "speculative": {
                    "method": "dflash",
                    "num_speculative_tokens": DRAFT_TOKENS,
                    "attention_support": "ALWAYS",
                },
                "device": {"name": "H200"},
            }
        )
    )


def stand_in(options: argparse.Namespace, *, draft: bool = False) -> StandIn:
    """The models of all parts."""
    shape = DecoderConfig.from_file(MODEL)
    if options.shrink:
        shape = shape.shrunk()
    drafter = None
    if draft:
        layers = shape.num_hidden_layers
        ids = tuple(sorted({round(1 + index * (layers - 3) / 4) for index in range(5)} & set(range(layers))))
        drafter = DFlashConfig(
            decoder=evolve(shape, num_hidden_layers=min(5, layers)),
            target_layer_ids=ids,
            target_hidden_size=shape.hidden_size,
            mask_token_id=shape.vocab_size - 1,
            block_size=DRAFT_TOKENS + 1,
        )
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    return StandIn(model=shape, draft=drafter, dtype=dtype, max_model_len=256)


def compare_loops(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Each loop in a fresh process, both orders."""
    command = [sys.executable, __file__, "--device", options.device, *(["--shrink"] * options.shrink)]
    found = []
    for loop in LOOPS if options.device == "cuda" else ("executor", "first"):
        done = subprocess.run([*command, "--loop", loop], check=True, capture_output=True, text=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return found


def one_loop(options: argparse.Namespace) -> dict[str, Any]:
    """Captures the decode plan once; seconds, and MiB that the device lost for it."""
    plan = decode_plan()
    rig = Rig.build(plan, stand_in(options), options.device)
    synchronize(options)
    before = used_mib(options)
    started = time.perf_counter()
    if options.loop != "textbook":
        how = CaptureOptions(warm_up="first", below_autograd=True) if options.loop == "first" else None
        kept: Any = rig.manager.capture(rig.target.create_forward_fn, options=how)
        require(not kept.failed, kept.failed)
    else:
        kept = textbook(rig.parts())
    synchronize(options)
    seconds = time.perf_counter() - started
    return {
        "loop": options.loop,
        "seconds": seconds,
        "mib": used_mib(options) - before,
        "entries": len(plan.entries("target")),
    }


def textbook(parts: Iterable[Part]) -> list[Any]:
    """A warm-up forward and ``torch.cuda.graph`` for each entry, in one pool, also where pieces are due."""
    pool, graphs = None, []
    with torch.no_grad():
        for part in parts:
            for entry in part.manager.entries:
                part.create_forward_fn(entry.execution_descriptor, True)(NONE)
                forward = part.create_forward_fn(entry.execution_descriptor, False)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool):
                    output = forward(NONE)
                pool = pool or graph.pool()
                graphs.append((graph, output))
    return graphs


def replay(options: argparse.Namespace) -> dict[str, Any]:
    """Replay against eager, the manager's share of a replay, and every entry against eager."""
    plan = decode_plan()
    rig = Rig.build(plan, stand_in(options), options.device)
    capture = rig.manager.capture(rig.target.create_forward_fn)
    started = time.perf_counter()
    inspected = rig.manager._graphs  # noqa: SLF001 - compared with the graphs below the manager
    digests = [recording.digests() for graphs in inspected.values() for recording in graphs.recordings]
    inspect_seconds = time.perf_counter() - started
    steps = {}
    for tokens in (1, 8, 64, 512):
        desc = next(e.execution_descriptor for e in plan.entries("target") if e.num_tokens == tokens)
        forward = rig.target.create_forward_fn(desc, True)
        rig.target.trials.fill(desc)
        steps[tokens] = {
            "eager_ms": timed(options, lambda run=forward: run(NONE)),  # type: ignore[misc]
            "graph_ms": timed(options, lambda key=desc: rig.manager.run_fullgraph(key)),  # type: ignore[misc]
        }
    return {
        "seconds": capture.seconds,
        "warmup_seconds": sum(record.warmup_seconds for record in capture.records),
        "record_seconds": sum(record.seconds for record in capture.records),
        "num_bytes": capture.num_bytes,
        "nodes": sorted({record.num_nodes for record in capture.records if record.num_nodes}),
        "inspect_seconds": inspect_seconds,
        "digests": len({digest for digest in digests if digest}),
        "steps": steps,
        "overhead_us": overhead(options, rig.manager, plan.entries("target")[-1]),
        "verify": verified(
            verify_entries(
                rig.manager,
                rig.target.create_forward_fn,
                rig.target.trials.fill,
                rig.target.trials.replay_context,
            )
        ),
        "verify_first": verified_first(rig),
    }


def verified_first(rig: Rig) -> dict[str, Any]:
    """Every entry once more, captured with the first one warmed up alone."""
    captured = rig.manager.capture(rig.target.create_forward_fn, options=CaptureOptions(warm_up="first"))
    require(not captured.failed, captured.failed)
    return verified(
        verify_entries(
            rig.manager,
            rig.target.create_forward_fn,
            rig.target.trials.fill,
            rig.target.trials.replay_context,
        )
    )


def overhead(options: argparse.Namespace, manager: CudaGraphManager, entry: PlanEntry) -> dict[str, float]:
    """CPU microseconds of a replay through the manager, and of the graph's own, alternating.

    "waited" is one call after the GPU was waited for, "in a row" one of ten that follow each other.
    """
    key = graph_key(manager.plan, manager.family, entry)
    recording = manager.graphs_of(entry).recordings[0]
    graph = getattr(recording, "graph", recording)
    calls = [("manager", partial(manager.run_fullgraph, key)), ("bare", graph.replay)]
    times: dict[str, list[float]] = {}
    for _ in range(300):
        for name, call in calls:
            for manner, repeats in (("waited", 1), ("in a row", 10)):
                synchronize(options)
                started = time.perf_counter()
                for _ in range(repeats):
                    call()
                spent = (time.perf_counter() - started) / repeats * 1e6
                times.setdefault(f"{name}, {manner}", []).append(spent)
        calls.reverse()
    return {name: statistics.median(values) for name, values in times.items()}


def dflash(options: argparse.Namespace) -> dict[str, Any]:
    """Pieces of the target and graphs of the drafter: capture, checks, and a drafting step."""
    plan = dflash_plan()
    rig = Rig.build(plan, stand_in(options, draft=True), options.device)
    found: dict[str, Any] = {}
    for part in rig.parts():
        captured = part.capture()
        require(not captured.failed, captured.failed)
        modes = [str(record.entry.mode) for record in captured.records]
        found[captured.family] = {
            "seconds": captured.seconds,
            "num_bytes": captured.num_bytes,
            "entries": {mode: modes.count(mode) for mode in sorted(set(modes))},
            "graphs": sum(record.num_graphs for record in captured.records),
            "verify": verified(part.verify()),
        }
    draft = rig.draft
    if draft is None or draft.manager is None:
        sys.exit("the plan has no drafter")
    apart = DFlashCudaGraphManager(plan, "draft", device=rig.manager.device, pool=rig.manager.pool)
    draft.buffers.make_inert()
    apart.capture(*draft._capture_inputs[:-1], lambda _: None)  # noqa: SLF001 - all but the prologue
    steps = {}
    for reqs in (1, 8, 32):
        desc = next(e.execution_descriptor for e in plan.entries("draft") if e.num_reqs == reqs)
        draft.fill(desc)
        steps[reqs] = {
            "inside_ms": timed(options, lambda key=desc: draft.manager.run_fullgraph(key)),  # type: ignore[misc, union-attr]
            "eager_prologue_ms": timed(options, lambda key=desc: apart_step(draft, apart, key)),  # type: ignore[misc]
            "eager_ms": timed(options, lambda key=desc: draft.create_forward_fn(key, True)(NONE)),  # type: ignore[misc]
        }
    found["drafting"] = steps
    return found


def apart_step(draft: Any, manager: DFlashCudaGraphManager, desc: BatchExecutionDescriptor) -> None:
    """The prologue eagerly, then the graph of the query forward alone."""
    with torch.no_grad():
        draft.precompute_context_kv(desc.num_reqs)
    manager.run_fullgraph(desc)


def faults(options: argparse.Namespace) -> dict[str, Any]:
    """Entry 10 made to fail in two ways; all others are then captured into the same pool."""
    return {
        name: one_fault(options, fail) for name, fail in (("item", fail_by_item), ("memory", fail_by_memory))
    }


def one_fault(options: argparse.Namespace, fail: Callable[[torch.Tensor], object]) -> dict[str, Any]:
    """What is left of the decode plan if its tenth entry fails."""
    plan = decode_plan()
    rig = Rig.build(plan, stand_in(options), options.device)
    tenth = plan.entries("target")[9].execution_descriptor

    def create(desc: BatchExecutionDescriptor, warmup: bool) -> Any:
        forward = rig.target.create_forward_fn(desc, warmup)

        def failing(cg_mode: CUDAGraphMode) -> Any:
            output = forward(cg_mode)
            fail(output[0])
            return output

        return failing if desc == tenth and not warmup else forward

    captured = rig.manager.capture(create)
    verdicts = verify_entries(
        rig.manager, rig.target.create_forward_fn, rig.target.trials.fill, rig.target.trials.replay_context
    )
    return {
        "failed": [(record.entry.num_tokens, record.error) for record in captured.failed],
        "captured": len(captured.captured),
        "verify": verified(verdicts),
    }


def fail_by_item(tensor: torch.Tensor) -> object:
    """Reads a value back to the host."""
    return tensor.sum().item()


def fail_by_memory(tensor: torch.Tensor) -> object:
    """Asks for more memory than the device has."""
    if tensor.device.type == "cpu":
        raise torch.OutOfMemoryError("as a GPU would say")
    _, total = torch.cuda.mem_get_info()
    return torch.empty(total, dtype=torch.uint8, device=tensor.device)


def verified(verdicts: Any) -> dict[str, Any]:
    """How many entries agree, and the largest error."""
    return {
        "entries": len(verdicts),
        "ok": sum(verdict.ok for verdict in verdicts),
        "repeat": sum(verdict.repeats for verdict in verdicts),
        "largest_error": max(verdict.error for verdict in verdicts),
    }


def timed(options: argparse.Namespace, call: Callable[[], object]) -> float:
    """Median milliseconds of a call with all its work on the device."""
    times = []
    with torch.no_grad():
        for _ in range(3 if options.device == "cpu" else REPEATS):
            synchronize(options)
            started = time.perf_counter()
            call()
            synchronize(options)
            times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times)


def require(holds: bool, what: object) -> None:
    """Ends the benchmark where its figures would mean nothing."""
    if not holds:
        sys.exit(f"not measured: {what}")


def synchronize(options: argparse.Namespace) -> None:
    """Waits for the device."""
    if options.device == "cuda":
        torch.cuda.synchronize()


def used_mib(options: argparse.Namespace) -> float:
    """Memory of the device that is taken once PyTorch's caches are flushed."""
    if options.device != "cuda":
        return 0.0
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**20


def report(figures: dict[str, Any]) -> None:
    """Print the figures as the README quotes them."""
    print(", ".join(figures["environment"].values()))
    loops = figures["capture"]
    for row in loops:
        print(
            f"capture {row['entries']} FULL  {row['loop']:9} {row['seconds']:6.2f} s  {row['mib']:6.0f} MiB"
        )
    textbook = [row["seconds"] for row in loops if row["loop"] == "textbook"]
    for loop in ("executor", "first") if textbook else ():
        own = [row["seconds"] for row in loops if row["loop"] == loop]
        ratios = [theirs / ours for theirs in textbook for ours in own]
        print(f"capture ratio textbook / {loop}: {min(ratios):.2f} to {max(ratios):.2f}")
    single = figures["replay"]
    print(
        f"warm-up {single['warmup_seconds']:.2f} s, recording {single['record_seconds']:.2f} s, "
        f"nodes {single['nodes'][:1]} to {single['nodes'][-1:]}, digests {single['inspect_seconds']:.2f} s"
    )
    for tokens, row in single["steps"].items():
        print(f"decode {tokens:4} tokens  eager {row['eager_ms']:7.3f} ms  graph {row['graph_ms']:7.3f} ms")
    print("one replay costs the CPU", {key: round(value, 1) for key, value in single["overhead_us"].items()})
    print("decode entries against eager", single["verify"], "warmed up first only", single["verify_first"])
    for name in ("target", "draft"):
        row = figures["dflash"][name]
        print(
            f"dflash {name} {row['entries']} as {row['graphs']} graphs  {row['seconds']:.2f} s  "
            f"{row['num_bytes'] / 2**20:.0f} MiB  {row['verify']}"
        )
    for reqs, row in figures["dflash"]["drafting"].items():
        print(
            f"drafting {reqs:3} requests  prologue inside {row['inside_ms']:.3f} ms  "
            f"eager prologue + graph {row['eager_prologue_ms']:.3f} ms  eager {row['eager_ms']:.3f} ms"
        )
    for name, row in figures["faults"].items():
        print(f"entry 10 fails by {name}: {row['failed']}; {row['captured']} others, {row['verify']}")


if __name__ == "__main__":
    main()
