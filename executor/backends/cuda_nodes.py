"""What stands in a CUDA graph: nodes, kernels and edges, read through the CUDA bindings.

The bindings are an optional package; without them nothing is known and nothing fails.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

KERNEL_NODE = 0
"""``CU_GRAPH_NODE_TYPE_KERNEL``."""


@cache
def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError:
        return None
    return driver


def num_nodes(graph: torch.cuda.CUDAGraph) -> int | None:
    """Nodes of ``graph``, which was captured with ``keep_graph=True``."""
    driver = _driver()
    if driver is None:
        return None
    return int(_checked(driver.cuGraphGetNodes(graph.raw_cuda_graph(), 0))[1])


def describe_nodes(graph: torch.cuda.CUDAGraph) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The names of all kernels, and the graph in lines: its nodes in order, then its edges.

    A node's line has its type, and of a kernel its name, grid, block and shared memory.

    Addresses are left out: the text of two processes is the same if they recorded the same work.
    """
    driver = _driver()
    if driver is None:
        return None
    raw = graph.raw_cuda_graph()
    _, count = _checked(driver.cuGraphGetNodes(raw, 0))
    nodes, _ = _checked(driver.cuGraphGetNodes(raw, count))
    numbers = {int(node): number for number, node in enumerate(nodes)}
    names: dict[int, str] = {}
    lines = [_line(driver, node, names) for node in nodes]
    return tuple(names.values()), (*lines, *_edges(driver, raw, numbers))


def _line(driver: Any, node: Any, names: dict[int, str]) -> str:
    (kind,) = _checked(driver.cuGraphNodeGetType(node))
    if int(kind) != KERNEL_NODE:
        return str(int(kind))
    (params,) = _checked(driver.cuGraphKernelNodeGetParams(node))
    function = int(params.func)
    if function not in names:
        found, name = driver.cuFuncGetName(params.func)
        names[function] = name.decode() if int(found) == 0 and isinstance(name, bytes) else str(name)
    grid = (params.gridDimX, params.gridDimY, params.gridDimZ)
    block = (params.blockDimX, params.blockDimY, params.blockDimZ)
    return f"{names[function]} {grid} {block} {params.sharedMemBytes}"


def _edges(driver: Any, raw: Any, numbers: dict[int, int]) -> list[str]:
    read = getattr(driver, "cuGraphGetEdges_v2", driver.cuGraphGetEdges)
    *_, count = _checked(read(raw, 0))
    if not count:
        return []
    sources, targets, *_ = _checked(read(raw, count))
    pairs = sorted(
        (numbers[int(source)], numbers[int(target)]) for source, target in zip(sources, targets, strict=True)
    )
    return [f"{source}>{target}" for source, target in pairs]


def _checked(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    error, *values = answer
    if int(error) != 0:
        raise RuntimeError(f"the CUDA driver answered {error}")
    return tuple(values)
