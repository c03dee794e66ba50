#!/usr/bin/env python3
"""Compares the planner with vLLM's own parser and planning code, in an environment made for that.

Not part of CI: the environment takes about 4 GiB and some minutes. No GPU is needed: vLLM's Python runs
with its compiled parts left out, on a CUDA platform that is told which device it has.

    tools/check_against_vllm.py                       # makes the environment, compares, removes it
    tools/check_against_vllm.py --environment DIR     # keeps the environment for the next time

What is compared, and what that shows:

* every command line of the corpus: vLLM's parser takes it and what is exported of it, and both give the
  same arguments; what the importer refuses, it refuses as well
* the deployments in plans/deployments and random ones: the exported line starts, in vLLM's own config, the
  same runner, mode, limits and capture sizes as the plan has, and its graph managers make the same graphs of
  the target and of drafts; what the planner refuses, vLLM refuses as well

What attention can replay is the plan's word: which backend vLLM selects, only a GPU with its kernels tells.
Packages come from the registry that pip is set up for; --torch names the PyTorch without CUDA there.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

TOOLS = Path(__file__).resolve().parent
PROJECT = TOOLS.parent

VERSION = "0.33.0"
TORCH = "torch==2.13.0+cpu"
VISION = "torchvision==0.28.0"
OWN = ("attrs", "cattrs", "click", "hypothesis", "pytest", "PyYAML", "rich", "sqlitedict", "triton")
LEFT_OUT = re.compile(
    r"torch|flashinfer|apache-tvm|tilelang|nvidia|quack|tokenspeed|humming|cuda|fastsafetensors|ray\b|amd",
    re.IGNORECASE,
)
"""Requirements of vLLM that need CUDA, or are brought by hand."""


def main() -> int:
    """The exit code: 1 where something differs, 3 where the environment cannot be made."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--version", default=VERSION, help="of vLLM; another is compared for curiosity only")
    options.add_argument("--torch", default=TORCH, help="requirement of a PyTorch without CUDA")
    options.add_argument("--environment", type=Path, help="folder of an environment that is kept")
    options.add_argument("--random", type=int, default=500, help="random deployments that can be planned")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    folder = given.environment or Path(tempfile.mkdtemp(prefix="vllm-"))
    try:
        if not (folder / "complete").exists():
            make_environment(folder, given.version, given.torch)
        return compare(folder, given.random, given.seed)
    except subprocess.CalledProcessError as error:
        print(f"the environment cannot be made: {error}", file=sys.stderr)
        return 3
    finally:
        if given.environment is None:
            shutil.rmtree(folder, ignore_errors=True)


def make_environment(folder: Path, version: str, torch: str) -> None:
    """Installs vLLM's Python and what it imports, without anything that needs CUDA."""
    venv.create(folder, with_pip=True, clear=True)
    python, wheels = folder / "bin" / "python", folder / "wheels"
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "download", "--no-deps", "--dest", str(wheels), f"vllm=={version}"], check=True)
    wheel = next(wheels.glob("vllm-*.whl"))
    subprocess.run([*pip, "install", torch, *requirements(wheel), *OWN], check=True)
    subprocess.run([*pip, "install", "--no-deps", VISION, str(wheel)], check=True)
    shutil.rmtree(wheels)
    packages = next(folder.glob("lib/python*/site-packages"))
    subprocess.run([sys.executable, str(TOOLS / "vllm_side" / "stand_ins.py"), str(packages)], check=True)
    (folder / "complete").touch()


def requirements(wheel: Path) -> Iterator[str]:
    """What a wheel of vLLM requires without any extra, as far as it runs on a CPU."""
    with ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        about = message_from_bytes(archive.read(name))
    for requirement in about.get_all("Requires-Dist", []):
        if "extra ==" not in requirement and not LEFT_OUT.match(requirement):
            yield requirement


def compare(folder: Path, count: int, seed: int) -> int:
    """Runs the comparisons in the environment; its exit code."""
    command = [str(folder / "bin" / "python"), "-m", "vllm_side", "--random", str(count), "--seed", str(seed)]
    env = os.environ | {
        "PYTHONPATH": f"{PROJECT}{os.pathsep}{TOOLS}",
        # With no device named, Triton counts as usable on a machine without one.
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(folder / "cache"),
    }
    return subprocess.run(command, cwd=PROJECT, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
