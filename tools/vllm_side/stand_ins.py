"""Lays out vLLM's Python for a machine without CUDA; runs in the fresh environment before anything else.

Every compiled module becomes an empty Python module of its name. The one that vLLM's CUDA platform
imports first declares what is asked of operations while modules are imported.
"""

from __future__ import annotations

import sys
from pathlib import Path

FIRST = "_C_stable_libtorch"
DECLARATIONS = '''\
"""A stand-in: which operations there are, as far as that is asked while modules are imported."""

import torch

library = torch.library.Library("_C", "DEF")
for name in (
    "cutlass_scaled_mm_supports_fp8",
    "cutlass_scaled_mm_supports_block_fp8",
    "cutlass_scaled_mm_supports_fp4",
    "cutlass_group_gemm_supported",
):
    library.define(f"{name}(int capability) -> bool")
    library.impl(name, lambda capability: True, "CompositeImplicitAutograd")
vision = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    vision.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
'''
ENTRY_POINT = "[vllm.platform_plugins]\ngraphplan = vllm_side.device:plugin\n"


def lay_out(packages: Path) -> None:
    """Replaces what is compiled under the folder of packages, and registers the platform."""
    for compiled in [*packages.glob("vllm/**/*.so"), *packages.glob("torchvision/**/*.so*")]:
        name = compiled.name.partition(".")[0]
        compiled.unlink()
        compiled.with_name(f"{name}.py").write_text(DECLARATIONS if name == FIRST else "")
    about = packages / "graphplan_device-0.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: graphplan-device\nVersion: 0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINT)


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
