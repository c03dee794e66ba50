"""What records are found by: content, never names or places."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

import planner
from cache.errors import CacheError, Fault
from cache.tables import Kind
from planner.documents.data import plain
from planner.documents.deployment import Deployment, Json
from planner.documents.digest import PREFIX, canonical_json, plan_digest
from planner.documents.plan import Plan

HEX_DIGEST = re.compile("[0-9a-f]{64}")

WITHOUT_RULES = frozenset({"cli", "importers", "shipped_models", "testing.py"})
"""Parts of the planner that no plan depends on."""

# fmt: off
VOLATILE = frozenset(
    {
        "_api_process_count", "_api_process_rank", "_coord_store_port", "_data_parallel_master_port_list",
        "assigned_physical_gpu_ids", "compilation_time", "cpu_distributed_timeout_seconds",
        "data_parallel_index", "data_parallel_rank", "data_parallel_rank_local",
        "distributed_timeout_seconds", "encoder_compilation_time", "engine_id",
        "max_parallel_loading_workers", "node_rank", "numa_bind", "numa_bind_cpus", "numa_bind_nodes",
        "placement_group", "rank", "ray_runtime_env", "ray_workers_use_nsight", "traced_files",
    }
)
# fmt: on
"""Settings of vLLM 0.33 that differ from start to start, or from rank to rank, of one server."""

_PLACE = re.compile(
    "(?:.*_)?(?:addr|address|dir|host|hostname|ip|path|port|ports|url|urls|uri)", re.IGNORECASE
)


@frozen
class Key:
    """Where a record is: its kind, and the SHA-256 of what it is found by."""

    kind: Kind
    digest: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.digest}"


def key_of(kind: Kind, **parts: Json) -> Key:
    """The key of a record that is found by ``parts``."""
    return Key(kind, hashlib.sha256(canonical_json({"kind": str(kind), **parts})).hexdigest())


def plan_key(deployment: Deployment, rules: str | None = None) -> Key:
    """The key of the plan of ``deployment``, by these or by this program's rules."""
    return key_of(Kind.PLAN, deployment=deployment_digest(deployment), rules=rules or rules_version())


def capture_key(plan: str, environment: str, model: str, family: str, rank: int) -> Key:
    """The key of a capture. ``plan`` is a ``stable_digest``, two more are digests of fingerprints."""
    return key_of(Kind.CAPTURE, plan=plan, environment=environment, model=model, family=family, rank=rank)


def traffic_key(plan: str, family: str) -> Key:
    """The key of what was replayed; batches do not depend on the machine that serves them."""
    return key_of(Kind.TRAFFIC, plan=plan, family=family)


def artifact_key(capture: Key, name: str) -> Key:
    """The key of the file ``name`` that belongs to a capture."""
    return key_of(Kind.ARTIFACT, capture=capture.digest, name=name)


def deployment_digest(deployment: Deployment) -> str:
    """SHA-256 over all of a deployment but its name."""
    described = plain(deployment)
    described.pop("name", None)
    return hashlib.sha256(canonical_json(described)).hexdigest()


def stable_digest(plan: Plan) -> str:
    """The digest of ``plan`` without the settings that differ from start to start.

    It equals the plan's own where none of them is given.
    """
    return plan_digest(stable(plan.deployment), plan.resolved, plan.graphs)


def stable(deployment: Deployment) -> Deployment:
    """``deployment`` without ports, host names, places and the like, which no graph depends on."""
    changed: dict[str, Any] = {}
    for name in ("attention", "parallel", "scheduler", "speculative", "lora", "compilation", "kv_transfer"):
        section = getattr(deployment, name)
        if section is not None:
            changed[name] = evolve(section, ignored=without_volatile(section.ignored))
    connector = changed["kv_transfer"]
    changed["kv_transfer"] = evolve(
        connector, kv_connector_extra_config=without_volatile(connector.kv_connector_extra_config)
    )
    draft = changed.get("speculative")
    if draft is not None and draft.model is not None and is_place(draft.model):
        changed["speculative"] = evolve(draft, model=None)
    engine = evolve(deployment.engine, env=without_volatile(deployment.engine.env))
    return evolve(deployment, engine=engine, **changed)


def without_volatile(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``settings``, and mappings inside, without those that no graph depends on."""
    kept = {
        key: without_volatile(value) if isinstance(value, Mapping) else value
        for key, value in settings.items()
        if not is_volatile(key)
    }
    # A mapping that had nothing else in it goes with it.
    return {key: value for key, value in kept.items() if value != {} or settings[key] == {}}


def is_volatile(setting: str) -> bool:
    """Whether a setting says where something is or runs, and not what is computed."""
    return setting in VOLATILE or _PLACE.fullmatch(setting) is not None


def is_place(model: str) -> bool:
    """Whether the name of a model is a path, and not the name of a repository."""
    return model.startswith(("/", ".", "~")) or model.count("/") > 1


@cache
def rules_version() -> str:
    """SHA-256 over the planner's source: plans of other rules are other plans.

    Taken from the files, because a number that somebody has to raise is forgotten.
    """
    return code_digest(Path(planner.__file__).parent, leave_out=WITHOUT_RULES)


def code_digest(*places: Path, leave_out: frozenset[str] = frozenset()) -> str:
    """SHA-256 over Python and JSON files, or all of those in a folder but ``leave_out`` of its parts.

    Raises:
        CacheError: there are none, or one cannot be read.
    """
    digest = hashlib.sha256()
    try:
        sources = sorted(_sources(places, leave_out))
        if not sources:
            raise CacheError(
                "the program's own source is not installed, so nothing tells its versions apart",
                fault=Fault.UNREACHABLE,
            )
        for name, path in sources:
            digest.update(f"{name}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    except OSError as error:
        reason = f"the program's own source cannot be read: {error.strerror}"
        raise CacheError(reason, fault=Fault.UNREACHABLE, path=str(error.filename)) from None
    return digest.hexdigest()


def _sources(places: tuple[Path, ...], leave_out: frozenset[str]) -> Iterator[tuple[str, Path]]:
    for place in places:
        if not place.is_dir():
            yield place.name, place
            continue
        for path in place.rglob("*"):
            relative = path.relative_to(place)
            if path.suffix in (".py", ".json") and relative.parts[0] not in leave_out and path.is_file():
                yield f"{place.name}/{relative.as_posix()}", path


def as_digest(text: str) -> str:
    """The hexadecimal digits of a digest or of the beginning of one, with or without ``sha256:``.

    Raises:
        CacheError: it is none.
    """
    digits = text.removeprefix(PREFIX)
    if not digits or len(digits) > 64 or not set(digits) <= set("0123456789abcdef"):
        raise CacheError(
            f"{text!r} is not the beginning of a digest; give hexadecimal digits", fault=Fault.INVALID
        )
    return digits
