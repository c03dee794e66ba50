"""A warm start against a cold one on a GPU, each in a process of its own.

Usage: python tools/bench_restart.py [--json FILE] [--layers N] [--only plain|compiled] [--device cpu]

A Qwen3-0.6B-shaped decoder with random weights, vLLM's 51 default sizes as FULL. "each" and "first" are
cold captures (the contract's path, and warm_up="first" below autograd), "warm" goes by the record that
one more cold capture left in an empty cache, "hot" begins to serve once 99 % of the recorded traffic has
its graphs. Seconds are from the start of the capture to the last entry that is waited for; the lookup and
the loading of kernels are in them. The traffic is the histogram in plans/traffic.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

import torch
from attrs import evolve

from cache.safe import SafeCache
from executor.calls import noted, one_a_kernel
from executor.capturing import Part, Rig, StandIn, circumstances
from executor.guide import CaptureOptions
from executor.models.config import DecoderConfig
from executor.restart import Restart, output_shapes
from planner import Plan, compile_plan, load_deployment
from planner.traffic.load import load_histogram

MODEL = PROJECT / "plans/models/qwen3-0.6b/config.json"
TRAFFIC = PROJECT / "plans/traffic/azure-2023-conversation.csv"
PLAIN = ("each", "first", "warm", "hot", "hot", "warm", "first", "each")
COMPILED = ("each", "warm", "hot")
READY_AFTER = 0.99


def main() -> None:
    """Run the parts and print what they measured."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shrink", action="store_true", help="a tiny model, to try the script")
    parser.add_argument("--layers", type=int, help="layers of the compiled model, all by default")
    parser.add_argument("--only", choices=("plain", "compiled"), help="one part of the two")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--start", choices=("record", *dict.fromkeys(PLAIN)), help=argparse.SUPPRESS)
    parser.add_argument("--compiled", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start:
        print(json.dumps(one_start(options)))
        return
    gpu = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    print(f"{gpu}, torch {torch.__version__}")
    figures = {}
    if options.only != "compiled":
        figures["plain"] = compare(options, PLAIN)
    if options.only != "plain":
        figures["compiled"] = compare(options, COMPILED, "--compiled")
    for name, starts in figures.items():
        report(name, starts)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def compare(options: argparse.Namespace, starts: tuple[str, ...], *more: str) -> list[dict[str, Any]]:
    """A recording start into an empty cache, then each start in a fresh process."""
    command = [sys.executable, __file__, "--device", options.device, *(["--shrink"] * options.shrink), *more]
    if options.layers and more:
        command += ["--layers", str(options.layers)]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for start in ("record", *starts):
            fresh = {
                "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor-{len(found)}",
                "TRITON_CACHE_DIR": f"{folder}/triton-{len(found)}",
            }
            done = subprocess.run(
                [*command, "--start", start, "--cache", f"{folder}/cache"],
                check=False,
                capture_output=True,
                text=True,
                env={**os.environ, **fresh},
            )
            if done.returncode:
                sys.exit(f"{start}: {done.stderr[-2000:]}")
            found.append(json.loads(done.stdout.splitlines()[-1]))
            print(
                start, *more, json.dumps({k: v for k, v in found[-1].items() if k != "results"}), flush=True
            )
    return found


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


def one_start(options: argparse.Namespace) -> dict[str, Any]:
    """One start; its seconds, and a digest of what each entry replays."""
    plan = decode_plan()
    shape = DecoderConfig.from_file(MODEL)
    shape = shape.shrunk() if options.shrink else shape
    if options.layers and options.compiled:
        shape = evolve(shape, num_hidden_layers=options.layers)
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    stand_in = StandIn(model=shape, dtype=dtype, max_model_len=256)
    rig = Rig.build(plan, stand_in, options.device)
    (part,) = rig.parts()
    if options.compiled:
        torch._dynamo.config.recompile_limit = 1024  # the layers share their code  # noqa: SLF001
        torch._dynamo.config.accumulated_recompile_limit = 1 << 20  # noqa: SLF001
        rig.target.model.compile(dynamic=True)
    synchronize(options)
    is_cold = options.start in ("each", "first")
    cache = SafeCache(options.cache, cold=is_cold)
    about = circumstances(plan, part, stand_in)
    began = time.perf_counter()
    restart = Restart.look_up(cache, about)
    looked_up = time.perf_counter()
    loaded = restart.prepare(part.manager.device)
    synchronize(options)
    prepared = time.perf_counter()
    guide = restart.guide(part.manager.entries, READY_AFTER if options.start == "hot" else 1.0)
    fast = options.start in ("first", "warm", "hot") and not options.compiled
    how = CaptureOptions(
        guide=guide,
        warm_up="first" if options.start == "first" else "each",
        below_autograd=fast,
        inspect=options.start == "record",
    )
    captured = part.capture(options=how)
    synchronize(options)
    ready = time.perf_counter()
    ready_entries = len(captured.captured)
    if captured.num_remaining:
        captured = part.manager.capture_more(captured.num_remaining)
    if captured.failed:
        sys.exit(f"not measured: {captured.failed}")
    if options.start == "record":
        remember(options, restart, part, captured, cache, plan)
    cache.close()
    return {
        "start": options.start,
        "seconds": ready - began,
        "lookup": looked_up - began,
        "load": prepared - looked_up,
        "calls": loaded.made,
        "calls_left_out": loaded.left_out,
        "capture": ready - prepared,
        "warmups": sum(made.warmup_seconds for made in captured.records),
        "recording": sum(made.seconds for made in captured.records),
        "ready_entries": ready_entries,
        "warm": restart.is_warm,
        "why": restart.reason,
        "results": results(rig, part),
    }


def remember(options: Any, restart: Restart, part: Part, captured: Any, cache: SafeCache, plan: Plan) -> None:
    """Keeps the capture, and the traffic of the histogram as if this server had replayed it."""
    calls = (
        () if options.compiled else noted(part.create_forward_fn, [made.entry for made in captured.captured])
    )
    stored = restart.remember(
        captured,
        outputs=output_shapes(part.manager.output_buffers),
        calls=one_a_kernel(calls, part.manager.device),
        compiled=options.compiled,
    )
    table, counts = plan.dispatch_table("target"), {}
    for num_reqs, steps in load_histogram(TRAFFIC).decode_steps().items():
        found: Any = table.dispatch(num_reqs=num_reqs, num_tokens=num_reqs, uniform_token_count=1)  # type: ignore[call-arg]
        entry = next(each for each in part.manager.entries if each.execution_descriptor == found)
        counts[entry] = counts.get(entry, 0) + steps
    if not stored or not cache.add_usage(restart.about.plan, "target", counts):
        sys.exit("not measured: the cache took nothing")


def results(rig: Rig, part: Part) -> dict[str, str]:
    """SHA-256 of what each entry replays on the same inputs."""
    found = {}
    for entry in part.manager.captured_entries:
        desc = entry.execution_descriptor
        rig.target.trials.fill(desc)
        output = part.manager.run_fullgraph(desc)[0]
        found[str(entry.num_tokens)] = hashlib.sha256(output.float().cpu().numpy().tobytes()).hexdigest()
    return found


def synchronize(options: argparse.Namespace) -> None:
    """Waits for the device."""
    if options.device == "cuda":
        torch.cuda.synchronize()


def report(name: str, starts: list[dict[str, Any]]) -> None:
    """The medians of each kind of start, and warm against cold."""
    kinds = dict.fromkeys(start["start"] for start in starts)
    medians = {kind: statistics.median(s["seconds"] for s in starts if s["start"] == kind) for kind in kinds}
    for kind, seconds in medians.items():
        ratios = ", ".join(
            f"{medians[cold] / seconds:.2f}x of {cold}" for cold in ("each", "first") if cold in medians
        )
        print(f"{name} {kind}: {seconds:.2f} s ({ratios})")
    for kind in kinds:
        same = [
            sum(s["results"][size] == starts[0]["results"][size] for size in s["results"])
            for s in starts
            if s["start"] == kind
        ]
        print(
            f"{name} {kind}: {same} of {len(starts[0]['results'])} entries replay the same bits as the first"
        )


if __name__ == "__main__":
    main()
