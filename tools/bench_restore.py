"""Graphs rebuilt from a file against captured ones on a GPU, each start in a process of its own.

Usage: python tools/bench_restore.py [--model small|large|dflash|compiled|huggingface] [--rounds N]
       python tools/bench_restore.py --model small --soak 100

small is a decoder of Qwen3-0.6B's shape with 51 FULL entries, large one of Qwen3-8B's, compiled the small
one under torch.compile, huggingface the same shape as transformers has it; dflash has 51 PIECEWISE and 32
FULL entries of a target and 32 FULL ones of its drafter. A first start captures and saves into an empty
cache. Then come, forth and back: "textbook", a warm-up forward and torch.cuda.graph for each entry; "each"
and "first", this project's own captures; "restore" without comparing, and "verified" with every entry
compared with eager on poisoned buffers. Seconds are from the start of the work to the last entry that may
serve, lookup and file included.

With --soak N, one process restores N times, each among other allocations of random size, and compares
every entry with eager.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT), str(PROJECT / "tools")]

import bench_capture
import torch
from attrs import asdict, evolve

from cache.safe import SafeCache
from executor.capturing import Part, Rig, StandIn, Warmth, capture_warm, circumstances
from executor.guide import CaptureOptions
from executor.manager import CudaGraphManager
from executor.models.config import DecoderConfig
from executor.models.huggingface import HuggingFaceDecoder
from executor.verify import verify_entries
from planner import Plan

LARGE = PROJECT / "plans/models/qwen3-8b/config.json"
STARTS = ("textbook", "each", "first", "restore", "verified")
MODELS = ("small", "large", "dflash", "compiled", "huggingface")

MAX_MODEL_LEN = 256
"""Of the static cache of the transformers model."""

KEPT_SHARE, MAX_HELD = 0.5, 1 << 28
"""Of a soak: how many of the other allocations stay for the next restore, and the elements of the largest."""


def main() -> None:
    """Run the starts and print what they measured."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=MODELS, action="append", help="one or more, all by default")
    parser.add_argument("--rounds", type=int, default=2, help="how often each start is measured")
    parser.add_argument("--layers", type=int, help="layers of the model, all by default")
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=STARTS)
    parser.add_argument("--soak", type=int, help="how many times one process restores, nothing else")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--start", choices=("save", "soak", *STARTS), help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start:
        print(json.dumps(soak(options) if options.start == "soak" else one_start(options)))
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
    if options.soak:
        command += ["--soak", str(options.soak)]
        order = ["soak"]
    else:
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


def parts_of(options: argparse.Namespace) -> tuple[Plan, StandIn, list[Part]]:
    """Plan, models and families of one start."""
    (model,) = options.model
    plan = bench_capture.dflash_plan() if model == "dflash" else bench_capture.decode_plan()
    shown = argparse.Namespace(device="cuda", shrink=False)
    stand_in = bench_capture.stand_in(shown, draft=model == "dflash")
    if model == "large":
        stand_in = evolve(stand_in, model=DecoderConfig.from_file(LARGE))
    if options.layers:
        stand_in = evolve(stand_in, model=evolve(stand_in.model, num_hidden_layers=options.layers))
    if model == "huggingface":
        return plan, stand_in, [of_transformers(plan, options.layers)]
    rig = Rig.build(plan, stand_in, "cuda")
    if model == "compiled":
        torch._dynamo.config.recompile_limit = 1024  # the layers share their code  # noqa: SLF001
        torch._dynamo.config.accumulated_recompile_limit = 1 << 20  # noqa: SLF001
        rig.target.model.compile(dynamic=True)
    return plan, stand_in, list(rig.parts())


def of_transformers(plan: Plan, layers: int | None) -> Part:
    """The family of a transformers model of random weights."""
    import transformers

    config = transformers.Qwen3Config.from_json_file(str(bench_capture.MODEL))
    config.num_hidden_layers = layers or config.num_hidden_layers
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    most = max(entry.num_reqs or 1 for entry in plan.entries("target"))
    decoder = HuggingFaceDecoder(model, most, MAX_MODEL_LEN)
    manager = CudaGraphManager(plan, "target", device="cuda")
    create = decoder.create_forward_fn
    return Part(
        manager=manager,
        create_forward_fn=create,
        capture=partial(manager.capture, create, "Capturing"),
        verify=partial(verify_entries, manager, create, decoder.fill),
        static=decoder.static_tensors,
        front=decoder.front_of,
    )


def one_start(options: argparse.Namespace) -> dict[str, Any]:
    """One start; its seconds, the memory that it took, and what it says of its entries."""
    plan, stand_in, parts = parts_of(options)
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    began = time.perf_counter()
    if options.start == "textbook":
        kept: Any = bench_capture.textbook(parts)
        told: dict[str, Any] = {}
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    else:
        seconds, told = captured(options, plan, stand_in, parts)
        kept = None
    used = free - torch.cuda.mem_get_info()[0]
    del kept
    return {"start": options.start, "seconds": seconds, "mib": used >> 20, **told}


def captured(
    options: argparse.Namespace, plan: Plan, stand_in: StandIn, parts: Sequence[Part]
) -> tuple[float, dict[str, Any]]:
    """A start with the executor; its seconds without what is saved for the next one."""
    cold = options.start in ("each", "first")
    warmth = Warmth(
        cache=SafeCache(options.cache, cold=cold),
        materialize=not cold,
        verify="all" if options.start == "verified" else "none",
    )
    how = options_of(options)
    seconds, told = 0.0, {}
    for part in parts:
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


def options_of(options: argparse.Namespace) -> CaptureOptions:
    """How a start captures; a compiled model needs a warm-up for each entry."""
    fast = options.start != "each" and options.model != ["compiled"]
    return CaptureOptions(warm_up="first" if fast else "each", below_autograd=fast)


def soak(options: argparse.Namespace) -> dict[str, Any]:
    """Restores again and again among other allocations; what was restored, and what was wrong."""
    rng = random.Random(0)
    held: list[torch.Tensor] = []
    totals: Counter[str] = Counter()
    began = time.perf_counter()
    for _ in range(options.soak):
        held = [each for each in held if rng.random() < KEPT_SHARE]
        held += [torch.empty(rng.randrange(1, MAX_HELD), device="cuda") for _ in range(rng.randrange(4))]
        plan, stand_in, parts = parts_of(options)
        warmth = Warmth(cache=SafeCache(options.cache), materialize=True, verify="all")
        for part in parts:
            about = circumstances(plan, part, stand_in)
            outcome = capture_warm(part, options_of(options), warmth, about, verify=False)
            totals["wrong"] += len(outcome.rebuilding.dropped) if outcome.rebuilding else 0
            totals["restored"] += sum(made.restored for made in outcome.report.captured)
            totals["captured"] += sum(not made.restored for made in outcome.report.captured)
        for part in parts:
            part.manager.release_graphs()
        warmth.cache.close()
        totals["restores"] += 1
    return {"start": "soak", "seconds": time.perf_counter() - began, "mib": 0, **totals}


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
