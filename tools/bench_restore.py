"""Graphs rebuilt from a file against captured ones on a GPU, each start in a process of its own.

Usage: python tools/bench_restore.py [--model small|large|dflash|compiled] [--rounds N] [--json FILE]

small is a decoder of Qwen3-0.6B's shape with 51 FULL entries, large one of Qwen3-8B's, compiled the small
one under torch.compile; dflash has 51 PIECEWISE and 32 FULL entries of a target and 32 FULL ones of its
drafter. A first start captures and saves into an empty cache. Then come, forth and back: "textbook", a
warm-up forward and torch.cuda.graph for each entry; "each" and "first", this project's own captures;
"restore" without comparing, and "verified" with every entry compared with eager on poisoned buffers.
Seconds are from the start of the work to the last entry that may serve, lookup and file included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT), str(PROJECT / "tools")]

import bench_capture
import torch
from attrs import asdict, evolve

from cache.safe import SafeCache
from executor.capturing import Rig, StandIn, Warmth, capture_warm, circumstances
from executor.guide import CaptureOptions
from executor.models.config import DecoderConfig
from planner import Plan

LARGE = PROJECT / "plans/models/qwen3-8b/config.json"
STARTS = ("textbook", "each", "first", "restore", "verified")
MODELS = ("small", "large", "dflash", "compiled")


def main() -> None:
    """Run the starts and print what they measured."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=MODELS, action="append", help="one or more, all by default")
    parser.add_argument("--rounds", type=int, default=2, help="how often each start is measured")
    parser.add_argument("--layers", type=int, help="layers of the model, all by default")
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=STARTS)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--start", choices=("save", *STARTS), help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start:
        print(json.dumps(one_start(options)))
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    figures = {model: compare(options, model) for model in options.model or MODELS}
    for model, starts in figures.items():
        report(model, starts)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def compare(options: argparse.Namespace, model: str) -> list[dict[str, Any]]:
    """A start that saves, then all others in fresh processes, in both orders."""
    command = [sys.executable, __file__, "--model", model]
    if options.layers:
        command += ["--layers", str(options.layers)]
    order = [start for n in range(options.rounds) for start in options.starts[:: -1 if n % 2 else 1]]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for start in ("save", *order):
            done = subprocess.run(
                [*command, "--start", start, "--cache", folder], check=False, capture_output=True, text=True
            )
            if done.returncode:
                sys.exit(f"{model} {start}: {done.stderr[-3000:]}")
            found.append(json.loads(done.stdout.splitlines()[-1]))
            print(model, json.dumps(found[-1]), flush=True)
    return found


def rig_of(options: argparse.Namespace) -> tuple[Plan, StandIn, Rig]:
    """Plan and models of one start."""
    (model,) = options.model
    plan = bench_capture.dflash_plan() if model == "dflash" else bench_capture.decode_plan()
    shown = argparse.Namespace(device="cuda", shrink=False)
    stand_in = bench_capture.stand_in(shown, draft=model == "dflash")
    if model == "large":
        stand_in = evolve(stand_in, model=DecoderConfig.from_file(LARGE))
    if options.layers:
        stand_in = evolve(stand_in, model=evolve(stand_in.model, num_hidden_layers=options.layers))
    rig = Rig.build(plan, stand_in, "cuda")
    if model == "compiled":
        torch._dynamo.config.recompile_limit = 1024  # the layers share their code  # noqa: SLF001
        torch._dynamo.config.accumulated_recompile_limit = 1 << 20  # noqa: SLF001
        rig.target.model.compile(dynamic=True)
    return plan, stand_in, rig


def one_start(options: argparse.Namespace) -> dict[str, Any]:
    """One start; its seconds, the memory that it took, and what it says of its entries."""
    plan, stand_in, rig = rig_of(options)
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    began = time.perf_counter()
    if options.start == "textbook":
        kept: Any = bench_capture.textbook(rig)
        told: dict[str, Any] = {}
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    else:
        seconds, told = captured(options, plan, stand_in, rig)
        kept = None
    used = free - torch.cuda.mem_get_info()[0]
    del kept
    return {"start": options.start, "seconds": seconds, "mib": used >> 20, **told}


def captured(
    options: argparse.Namespace, plan: Plan, stand_in: StandIn, rig: Rig
) -> tuple[float, dict[str, Any]]:
    """A start with the executor; its seconds without what is saved for the next one."""
    cold = options.start in ("each", "first")
    warmth = Warmth(
        cache=SafeCache(options.cache, cold=cold),
        materialize=not cold,
        verify="all" if options.start == "verified" else "none",
    )
    fast = options.start != "each" and options.model != ["compiled"]
    how = CaptureOptions(warm_up="first" if fast else "each", below_autograd=fast)
    seconds, told = 0.0, {}
    for part in rig.parts():
        if cold:
            report = part.capture(options=how)
            seconds += report.seconds
            continue
        outcome = capture_warm(part, how, warmth, circumstances(plan, part, stand_in), verify=False)
        seconds += outcome.ready_seconds
        rebuilt, report = outcome.rebuilding, outcome.report
        family = report.family
        told[family] = {
            "restored": rebuilt.num_restored,
            "captured": sum(not made.restored for made in report.captured),
            "reason": rebuilt.reason,
            "refused": sorted({made.refused for made in report.records if made.refused}),
            "dropped": len(rebuilt.dropped),
            "times": {} if rebuilt.times is None else asdict(rebuilt.times),
        }
        if rebuilt.saved is not None:
            told[family]["file_mib"] = len(rebuilt.saved.content) / 2**20
            told[family]["obstacles"] = sorted(set(rebuilt.saved.obstacles.values()))
        told[family]["not_saved"] = rebuilt.not_saved
        if report.failed:
            sys.exit(f"not measured: {report.failed[0]}")
    torch.cuda.synchronize()
    warmth.cache.close()
    return seconds, told


def report(model: str, starts: list[dict[str, Any]]) -> None:
    """Medians of each kind of start, against the textbook loop and this project's own captures."""
    kinds = dict.fromkeys(start["start"] for start in starts)
    medians = {kind: statistics.median(s["seconds"] for s in starts if s["start"] == kind) for kind in kinds}
    for kind, seconds in medians.items():
        against = ", ".join(
            f"{medians[other] / seconds:.2f}x of {other}"
            for other in ("textbook", "each", "first")
            if other in medians and other != kind
        )
        memory = max(s["mib"] for s in starts if s["start"] == kind)
        print(f"{model} {kind}: {seconds:.3f} s, {memory} MiB ({against})")
    for start in starts:
        if start["start"] == "restore":
            for family, told in start.items():
                if isinstance(told, dict):
                    parts = ", ".join(
                        f"{name} {value * 1000:.0f} ms" for name, value in told["times"].items()
                    )
                    print(
                        f"{model} {family}: {told['restored']} restored, {told['captured']} captured; {parts}"
                    )


if __name__ == "__main__":
    main()
