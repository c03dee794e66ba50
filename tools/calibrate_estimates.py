"""Constants for estimates: captures of several model shapes measured, fitted, and tried on another shape.

Usage: python tools/calibrate_estimates.py --out DIR [--shapes 0.6b 8b 14b] [--repeats 2]
       python tools/calibrate_estimates.py --fit DIR/0.6b.json DIR/8b.json > planner/estimate/calibration.json
       python tools/calibrate_estimates.py --score DIR/14b.json

Each capture is a process of its own: the project's reference decoder with random weights, once with FULL
graphs alone and once with pieces as well. Shapes take turns, so that a machine that slows down slows all.
``--device cpu --shapes tiny small`` tries the script. With ``--constants FILE`` a score is of that file's
constants, not of those that are shipped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from planner.estimate.calibration import Calibration, calibration
from tools.estimate_fitting import fitted, scored

CONTEXT_TOKENS = 256
NUM_TINY_GRAPHS = 400
TARGET = "target"

_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
_WIDTHS = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads")
SHAPES: dict[str, dict[str, Any]] = {
    name: {**_QWEN3, **dict(zip(_WIDTHS, widths, strict=True))}
    for name, widths in {
        "0.6b": (28, 1024, 3072, 16),
        "1.7b": (28, 2048, 6144, 16),
        "4b": (36, 2560, 9728, 32),
        "8b": (36, 4096, 12288, 32),
        "14b": (40, 5120, 17408, 40),
        "tiny": (2, 64, 128, 8),
        "small": (4, 64, 128, 8),
    }.items()
}
for _name in ("tiny", "small"):
    SHAPES[_name].update(head_dim=8, vocab_size=128)

KINDS: dict[str, dict[str, Any]] = {
    "full": {"max_num_seqs": 512, "cudagraph_mode": "FULL_DECODE_ONLY"},
    "mixed": {"max_num_seqs": 128, "cudagraph_mode": "FULL_AND_PIECEWISE"},
}
"""Which graphs are captured: 51 FULL ones, and 35 PIECEWISE entries with 19 FULL ones."""


def main() -> None:
    """Measure, fit or score, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=("0.6b", "8b", "14b"))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder for one file a shape, instead of standard output")
    parser.add_argument("--fit", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--score", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--constants", type=Path, metavar="FILE")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.device, *options.one)))
    elif options.fit:
        print(json.dumps(fitted([_read(path) for path in options.fit]), indent=1))
    elif options.score:
        shipped = options.constants is None
        constants = calibration() if shipped else Calibration.from_json(_read(options.constants))
        print(json.dumps([row for path in options.score for row in scored(_read(path), constants)], indent=1))
    else:
        found = measured(options)
        if options.out is None:
            print(json.dumps(found, indent=1))


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def deployment(shape: str, kind: str, device: str) -> dict[str, Any]:
    """The deployment whose plan is captured."""
    options = KINDS[kind]
    seqs = options["max_num_seqs"] if device == "cuda" else options["max_num_seqs"] // 16
    return {
        "apiVersion": "graphplan/v1",
        "kind": "Deployment",
        "model": {
            "config": SHAPES[shape],
            "max_model_len": 4096,
            "dtype": "bfloat16" if device == "cuda" else "float32",
        },
        "scheduler": {"max_num_seqs": seqs},
        "compilation": {"cudagraph_mode": options["cudagraph_mode"]},
        "device": {"name": "H200"},
    }


def measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All shapes, each kind of plan as often as asked for, every time in a fresh process."""
    command = f"python tools/calibrate_estimates.py --repeats {options.repeats} --shapes "
    command += " ".join(options.shapes)
    found: dict[str, dict[str, Any]] = {
        shape: {
            "shape": shape,
            "command": command,
            "context_tokens": CONTEXT_TOKENS,
            "deployments": {kind: deployment(shape, kind, options.device) for kind in KINDS},
            "micro": [],
            "runs": {kind: [] for kind in KINDS},
        }
        for shape in options.shapes
    }
    for _ in range(options.repeats):
        micro = _in_process(options.device, "micro", "micro")
        for shape, figures in found.items():
            figures["environment"] = micro["environment"]
            figures["micro"].append(micro)
            for kind in KINDS:
                figures["runs"][kind].append(_in_process(options.device, shape, kind))
                if options.out:
                    options.out.mkdir(parents=True, exist_ok=True)
                    text = json.dumps(figures, indent=1) + "\n"
                    (options.out / f"{shape}.json").write_text(text, encoding="utf-8")
    return list(found.values())


def _in_process(device: str, shape: str, kind: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--device", device, "--one", shape, kind]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{shape} {kind} failed:\n{done.stderr}")
    took = time.perf_counter() - began
    print(f"{shape} {kind}: {took:.0f} s with its process", file=sys.stderr, flush=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def one(device: str, shape: str, kind: str) -> dict[str, Any]:
    """One measurement in this process."""
    return tiny_graphs(device) if shape == "micro" else capture(device, shape, kind)


def capture(device: str, shape: str, kind: str) -> dict[str, Any]:
    """Captures a plan once: seconds, bytes that the device lost, and a row an entry."""
    import torch

    from executor.capturing import Rig, StandIn
    from executor.models.config import DecoderConfig
    from planner import compile_plan, load_deployment

    if device == "cpu":
        torch.set_num_threads(1)
    plan = compile_plan(load_deployment(deployment(shape, kind, device)))
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    stand_in = StandIn(model=DecoderConfig.of(SHAPES[shape]), dtype=dtype, max_model_len=CONTEXT_TOKENS)
    rig = Rig.build(plan, stand_in, device)
    before = used_bytes(device)
    report = rig.manager.capture(rig.target.create_forward_fn)
    if report.failed:
        sys.exit(f"not measured: {report.failed[0].error}")
    buffers, tables = rig.target.buffers, rig.target.block_tables
    inputs = (
        *(buffers.input_ids, buffers.positions, buffers.query_start_loc, buffers.seq_lens),
        *(buffers.is_padding, *tables.block_tables, *tables.slot_mappings),
    )
    pool_bytes = rig.manager.pool.num_bytes
    output_bytes = sum(tensor.nbytes for tensor in rig.manager.output_buffers)
    grown = used_bytes(device) - before
    return {
        "seconds": report.seconds,
        # A CPU counts no memory: there the sum of what is known stands in for what the device lost.
        "device_bytes": grown if device == "cuda" else report.num_bytes + output_bytes,
        "pool_bytes": pool_bytes,
        "input_bytes": sum(tensor.nbytes for tensor in inputs),
        "output_bytes": output_bytes,
        "entries": [row_of(record) for record in report.records],
    }


def row_of(record: Any) -> dict[str, Any]:
    """What was measured of one entry."""
    names = ("warmup_seconds", "seconds", "num_bytes", "num_nodes", "num_graphs")
    entry = record.entry
    return {
        "mode": entry.mode.name,
        "num_tokens": entry.num_tokens,
        **{name: getattr(record, name) for name in names},
    }


def tiny_graphs(device: str) -> dict[str, Any]:
    """What a graph of one node costs, beyond its node: seconds and bytes."""
    import torch

    from executor.backends.base import backend_for
    from executor.pieces import record_whole

    backend = backend_for(device)
    pool = backend.new_pool()
    cell = torch.zeros(1, device=device)
    with torch.no_grad(), backend.session():
        kept = [record_whole(backend, pool, lambda: cell.add_(1)) for _ in range(20)]
        for graphs in kept:
            graphs.recordings[0].wait_until_ready()
        before, began = used_bytes(device), time.perf_counter()
        kept += [record_whole(backend, pool, lambda: cell.add_(1)) for _ in range(NUM_TINY_GRAPHS)]
        for graphs in kept:
            graphs.recordings[0].wait_until_ready()
        seconds = time.perf_counter() - began
        grown = used_bytes(device) - before
    gpu = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return {
        "environment": {"gpu": gpu, "torch": torch.__version__.partition("+")[0]},
        "graph_seconds": seconds / NUM_TINY_GRAPHS,
        "graph_bytes": grown / NUM_TINY_GRAPHS,
    }


def used_bytes(device: str) -> int:
    """Memory of the device that is taken once PyTorch's caches are flushed; 0 on a CPU."""
    if device != "cuda":
        return 0
    import torch

    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


if __name__ == "__main__":
    main()
