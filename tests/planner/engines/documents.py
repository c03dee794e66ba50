"""Deployments of engines beside vLLM, in a few words."""

from __future__ import annotations

from typing import Any

from planner import Deployment, load_deployment


def deployment(name: str, **sections: Any) -> Deployment:
    """A deployment of the engine ``name`` with these sections."""
    header = {"apiVersion": "graphplan/v1", "kind": "Deployment"}
    engine = {"name": name, **sections.pop("engine", {})}
    return load_deployment({**header, "engine": engine, **sections})


def sglang(own: dict[str, Any] | None = None, **sections: Any) -> Deployment:
    """A deployment of SGLang; ``own`` is the section of its own."""
    return deployment("sglang", **({"sglang": own} if own is not None else {}), **sections)


def tensorrt(own: dict[str, Any] | None = None, **sections: Any) -> Deployment:
    """A deployment of TensorRT-LLM; ``own`` is the section of its own."""
    return deployment("tensorrt-llm", **({"tensorrt_llm": own} if own is not None else {}), **sections)


def sizes(text: str) -> list[int]:
    """``1, 2, 8..24/8`` as the sizes that it stands for."""
    found: list[int] = []
    for part in text.split(","):
        first, _, rest = part.strip().partition("..")
        last, _, step = rest.partition("/")
        found.extend(range(int(first), int(last or first) + 1, int(step or 1)))
    return found
